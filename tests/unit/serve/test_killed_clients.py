"""A client that is killed: its leases end with it, whatever its children inherited."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.checkout import ROOT
from tests.dose import dose
from tests.served import ServerProcess
from tests.unit.serve.blocks import COUNT, LIMIT_S, Blocks, show, wait_until

KILLS = dose(5, 20)
# 50 ms on an idle machine; a busy one may need a hundred times as long.
MOST_S = 5.0

HOLD = """
import os, signal, sys, time, warnings
from tests.unit.serve.blocks import HASHES, opened
warnings.simplefilter("ignore", DeprecationWarning)
with opened(sys.argv[1]) as blocks:
    lease = blocks.space.lease(HASHES)
    child = os.fork() if sys.argv[2] == "forks" else 0
    if child == 0 and sys.argv[2] == "forks":
        signal.alarm(60)
        os.close(1)
        while True:
            time.sleep(1)
    print(len(lease), child, flush=True)
    time.sleep(60)
"""


@contextmanager
def holding(server: ServerProcess, how: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that leases all blocks, and the number of its child, or 0."""
    command = [sys.executable, "-c", HOLD, server.socket, how]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        child = 0
        try:
            assert process.stdout is not None
            count, child = map(int, process.stdout.readline().split())
            assert count == COUNT
            yield process, child
        finally:
            process.kill()
            if child:
                os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("how", ["alone", "forks"])
def test_leases_of_a_killed_client_end(how: str, server: ServerProcess, blocks: Blocks) -> None:
    taken = []
    wait_until(lambda: server.tenant()["leases"] == 0, "the test's own leases end")
    for _ in range(KILLS):
        with holding(server, how) as (process, child):
            held = server.tenant()
            assert (held["leases"], held["clients"]) == (1, 2)
            assert held["view_bytes"] > 0
            process.kill()
            taken.append(wait_until(lambda: server.tenant()["leases"] == 0, "leases end", 0.0005))
            left = server.tenant()
            assert (left["view_bytes"], left["clients"]) == (0, 1)
            if child:
                # It still has the socket.
                os.kill(child, 0)
    assert blocks.hits() == COUNT
    median_ms = statistics.median(taken) * 1000
    show(f"leases of a killed client ({how}) end after {median_ms:.2f} ms (median of {KILLS})")
    assert statistics.median(taken) <= MOST_S


def test_a_stopped_client_keeps_its_leases_and_is_no_burden(
    server: ServerProcess, blocks: Blocks
) -> None:
    with holding(server, "alone") as (process, _):
        os.kill(process.pid, signal.SIGSTOP)
        for _ in range(50):
            assert blocks.hits() == COUNT
        assert server.tenant()["view_bytes"] > 0
        os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.wait(LIMIT_S)
        wait_until(lambda: server.tenant()["leases"] == 0, "leases end")
