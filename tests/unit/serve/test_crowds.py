"""A client that wants everything: requests, connections, leases. The others are served."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from tests.checkout import ROOT
from tests.contract.subjects import chain, contents
from tests.served import ServerProcess
from tests.unit.serve import raw
from tests.unit.serve.blocks import (
    BLOCK_BYTES,
    COUNT,
    HASHES,
    LIMIT_S,
    Blocks,
    opened,
    show,
    wait_until,
)

REQUESTS = 10_000
# Most connections of one process, and of all: crates/serve/src/account.rs.
MOST_OF_ONE, MOST = 32, 256


@contextmanager
def program(text: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Another process. It must end by itself with its standard input."""
    command = [sys.executable, "-c", text, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


GREEDY = """
import sys, threading
from pathlib import Path
from tests.unit.serve import raw
from tests.unit.serve.blocks import HASHES
count = int(sys.argv[3])
message = raw.look(bytes.fromhex(sys.argv[2]), HASHES)
with raw.greeted(Path(sys.argv[1])) as greedy:
    sender = threading.Thread(target=lambda: [greedy.send(message) for _ in range(count)])
    print("started", flush=True)
    sender.start()
    right = sum(greedy.reply() == (raw.COUNT, bytes([len(HASHES)])) for _ in range(count))
    sender.join()
    print(right, flush=True)
"""


def test_a_client_with_many_requests_delays_no_other(server: ServerProcess, blocks: Blocks) -> None:
    with program(GREEDY, server.path, blocks.space.id, REQUESTS) as greedy:
        assert line(greedy) == "started"
        done = threading.Event()
        answers: list[str] = []

        def wait() -> None:
            answers.append(line(greedy))
            done.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        taken = list[float]()
        while not done.is_set() or not taken:
            count, took = blocks.timed()
            assert count == COUNT
            taken.append(took)
        waiter.join()
    assert answers == [str(REQUESTS)]
    most_ms = max(taken) * 1000
    show(f"{len(taken)} gets during {REQUESTS} requests of another: at most {most_ms:.1f} ms")


@pytest.mark.slow
def test_a_client_that_reads_no_answer_is_left(server: ServerProcess, blocks: Blocks) -> None:
    with raw.greeted(server.path) as silent:
        silent.socket.setblocking(False)
        try:
            for _ in range(1_000_000):
                silent.socket.sendall(bytes([1, 0, 0, 0, 0, 10]))
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            pass
        wait_until(lambda: server.tenant()["sessions"] == 1, "the connection ends", 0.1)
    assert blocks.hits() == COUNT
    # It is slow, but says nothing wrong.
    assert server.tenant()["malformed_sessions"] == 0


def test_one_process_has_a_bounded_number_of_connections(
    server: ServerProcess, blocks: Blocks
) -> None:
    with ExitStack() as stack:
        # The client of this process has one already.
        for _ in range(MOST_OF_ONE - 1):
            stack.enter_context(raw.greeted(server.path))
        assert server.tenant()["sessions"] == MOST_OF_ONE
        with raw.Raw(server.path) as refused:
            refused.send(raw.hello())
            assert refused.has_ended()
        assert server.tenant()["refused_sessions"] == 1
        assert blocks.hits() == COUNT
    wait_until(lambda: server.tenant()["sessions"] == 1, "connections end")
    with raw.greeted(server.path) as late:
        assert late.ask(raw.look(blocks.id, HASHES))[0] == raw.COUNT


CROWD = """
import sys
from contextlib import ExitStack
from pathlib import Path
from tests.unit.serve import raw
with ExitStack() as stack:
    for _ in range(int(sys.argv[2])):
        stack.enter_context(raw.greeted(Path(sys.argv[1])))
    print("connected", flush=True)
    sys.stdin.read()
"""


def test_a_client_that_finds_the_server_full_waits_for_a_place(
    server: ServerProcess, blocks: Blocks
) -> None:
    with opened(server.socket) as late, ExitStack() as stack:
        assert late.store.served
        late.store.close()
        wait_until(lambda: server.tenant()["sessions"] == 1, "its connection ends")
        for _ in range(MOST // MOST_OF_ONE - 1):
            crowd = stack.enter_context(program(CROWD, server.path, MOST_OF_ONE))
            assert line(crowd) == "connected"
        # One connection is this test's.
        last = stack.enter_context(program(CROWD, server.path, MOST_OF_ONE - 1))
        assert line(last) == "connected"
        wait_until(lambda: server.tenant()["sessions"] == MOST, "the server is full")
        with opened(server.socket) as refused:
            assert not refused.store.served
            assert refused.hits() == 0
            assert blocks.hits() == COUNT
            assert server.tenant()["refused_sessions"] >= 1
            stack.close()
            wait_until(lambda: refused.hits() == COUNT, "the client gets a place")


# A server may let it wait for places, so it goes on only for a while.
HOARD = """
import sys, time
from pathlib import Path
from tests.contract.subjects import chain
from tests.unit.serve import raw
request = {"lease": raw.lease, "acquire": raw.acquire}[sys.argv[3]]
hashes = chain(200, "many")
with raw.greeted(Path(sys.argv[1])) as greedy:
    turn, until = 0, time.monotonic() + 3
    while turn < 2000 and time.monotonic() < until:
        one, turn = hashes[turn % len(hashes)], turn + 1
        assert greedy.ask(request(bytes.fromhex(sys.argv[2]), [one]))[0] in (5, raw.LEASED)
    print("full", flush=True)
    sys.stdin.read()
"""

KINDS = [
    "lease",
    "acquire",
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_keeps_all_leases_leaves_the_pool_to_others(
    kind: str, server: ServerProcess, blocks: Blocks
) -> None:
    many, mine = chain(200, "many"), chain(20, "mine")
    for hashes in (mine, many):
        assert blocks.space.put_batch(hashes, contents(hashes, BLOCK_BYTES)).failed == 0
    with program(HOARD, server.path, blocks.space.id, kind) as greedy:
        assert line(greedy) == "full"
        held = server.tenant()
        out = [bytearray(BLOCK_BYTES) for _ in mine]
        found = blocks.space.get_batch(mine, out)
        hits = blocks.hits()
    wait_until(lambda: server.tenant()["leases"] == 0, "leases end with their process")
    share = held["pool_bytes"] // 8
    # What this process copied a moment ago may count as well.
    assert held["view_bytes"] <= share
    assert held["copy_bytes"] <= 2 * share
    assert held["leases"] <= 2 * 1024
    assert found == 20
    assert out == contents(mine, BLOCK_BYTES)
    assert hits == COUNT


def test_leases_to_copy_end_after_their_time(server: ServerProcess, blocks: Blocks) -> None:
    with raw.greeted(server.path) as client:
        assert client.ask(raw.acquire(blocks.id, HASHES))[0] == 5
        assert server.tenant()["copy_bytes"] > 0
        wait_until(lambda: server.tenant()["lapsed_leases"] == 1, "the lease lapses", 0.05)
        assert server.tenant()["copy_bytes"] == 0
        assert client.ask(raw.look(blocks.id, HASHES)) == (raw.COUNT, raw.varint(COUNT))


@pytest.mark.slow
def test_a_connection_that_never_says_hello_is_left(server: ServerProcess) -> None:
    with raw.Raw(server.path) as silent:
        wait_until(lambda: server.tenant()["sessions"] == 1, "the connection is there")
        assert silent.has_ended()
    assert server.tenant()["malformed_sessions"] == 0
