"""A server that is killed, stopped or not there yet: a miss within the call's time, then hits."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.checkout import ROOT
from tests.contract.subjects import chain, contents
from tests.contract.threads import threads
from tests.dose import dose
from tests.served import POOL, SIZES, ServerProcess, serving
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

import dalsegno

KILLS = dose(4, 8)
DEADLINE_S = 30.0


@contextmanager
def traffic(blocks: Blocks, deadline_s: float) -> Iterator[list[tuple[float, int, float]]]:
    """Gets all the time, in a thread. Yields when each began, how many hits, and how long."""
    seen: list[tuple[float, int, float]] = []
    ends = threading.Event()

    def work() -> None:
        while not ends.is_set():
            start = time.perf_counter()
            seen.append((start, *blocks.timed(deadline_s)))
            time.sleep(0.0002)

    with threads([work]):
        try:
            yield seen
        finally:
            ends.set()


def test_a_killed_server_is_a_miss_immediately_and_hits_go_on_after_it(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "store", {**SIZES, **POOL})
    first, back = [], []
    with opened(server.socket) as blocks:
        blocks.fill()
        for _ in range(KILLS):
            with traffic(blocks, DEADLINE_S) as seen:
                wait_until(lambda: len(seen) > 20 and seen[-1][1] == COUNT, "hits")
                killed = time.perf_counter()
                server.kill()
                wait_until(lambda: seen[-1][1] == 0, "a miss")
            after = [row for row in seen if row[0] + row[2] > killed]
            first.append(next(row[2] for row in after if row[1] == 0))
            assert max(row[2] for row in after) < DEADLINE_S
            assert blocks.hits() == 0
            assert not blocks.store.served
            server = ServerProcess(tmp_path / "store", {**SIZES, **POOL})
            back.append(wait_until(lambda: blocks.hits() == COUNT, "hits go on"))
    server.close()
    median_ms = statistics.median(first) * 1000
    show(f"the first miss of a killed server takes {median_ms:.2f} ms (median of {KILLS})")
    show(f"hits go on {statistics.median(back) * 1000:.0f} ms after it listens again (median)")


def test_no_put_that_was_acknowledged_is_lost_with_the_server(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "store", {**SIZES, **POOL})
    kept, hashes = list[bytes](), list[bytes]()
    with opened(server.socket) as blocks:
        for turn in range(5):
            hashes[:] = chain(6, f"{turn}.")
            report = blocks.space.put_batch(hashes, contents(hashes, BLOCK_BYTES))
            kept += [one for one, is_kept in zip(hashes, report.kept, strict=True) if is_kept]
            server.kill()
            server = ServerProcess(tmp_path / "store", {**SIZES, **POOL})
            wait_until(lambda: blocks.space.probe(hashes) == 6, "the client is back")
        assert len(kept) == 30
        out = [bytearray(BLOCK_BYTES) for _ in kept]
        assert blocks.space.get_each(kept, out) == [True] * len(kept)
        assert out == contents(kept, BLOCK_BYTES)
    server.close()


def test_hits_go_on_after_a_server_that_hung_was_killed(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as server, opened(server.socket) as blocks:
        blocks.fill()
        server.pause()
        assert blocks.hits(0.02) == 0
        server.kill()
        with serving(tmp_path / "store"):
            wait_until(lambda: blocks.hits() == COUNT, "hits go on")


SILENT = """
import itertools, sys
from tests.unit.serve.blocks import COUNT, opened, wait_until
with opened(sys.argv[1]) as blocks:
    blocks.fill()
    for said in itertools.chain(["hits"], sys.stdin):
        wait_until(lambda: blocks.hits() == (COUNT if said.strip() == "hits" else 0), said)
        print(said.strip(), flush=True)
"""


def test_a_server_that_stops_responding_is_logged_once_and_its_return(
    server: ServerProcess,
) -> None:
    pipe = subprocess.PIPE
    environment = {**os.environ, "DALSEGNO_LOG": "warn"}
    with subprocess.Popen(
        [sys.executable, "-c", SILENT, server.socket],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        cwd=ROOT,
        env=environment,
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        assert client.stderr is not None
        assert client.stdout.readline() == "hits\n"
        for _ in range(2):
            server.pause()
            client.stdin.write("misses\n")
            client.stdin.flush()
            assert client.stdout.readline() == "misses\n"
            assert "does not respond" in client.stderr.readline()
            server.go_on()
            client.stdin.write("hits\n")
            client.stdin.flush()
            assert client.stdout.readline() == "hits\n"
            assert "the server is there" in client.stderr.readline()
        client.stdin.close()
        assert client.stderr.read() == ""


def test_a_stopped_server_costs_one_deadline(server: ServerProcess, blocks: Blocks) -> None:
    deadline_s = 0.1
    server.pause()
    hits, took = blocks.timed(deadline_s)
    assert hits == 0
    assert took >= deadline_s
    calls = [blocks.timed(deadline_s) for _ in range(2000)]
    assert {hits for hits, _ in calls} == {0}
    p50_s = statistics.median(took for _, took in calls)
    show(f"a stopped server: {took * 1000:.0f} ms once, then {p50_s * 1e6:.1f} us (p50)")
    assert p50_s <= deadline_s / 5, "later calls wait for nothing"
    assert blocks.space.probe(HASHES) == 0
    assert blocks.space.contains(HASHES) == [False] * COUNT
    assert len(blocks.space.lease(HASHES)) == 0
    assert blocks.space.put_batch(HASHES, contents(HASHES, BLOCK_BYTES)).failed == COUNT
    with pytest.raises(dalsegno.UnavailableError, match="did not respond in time"):
        blocks.space.remove(HASHES)
    server.go_on()
    wait_until(lambda: blocks.hits() == COUNT, "hits go on")


def test_a_call_without_a_deadline_ends_although_the_server_is_stopped(
    server: ServerProcess, blocks: Blocks
) -> None:
    server.pause()
    assert blocks.hits() == 0
    server.go_on()
    wait_until(lambda: blocks.hits() == COUNT, "hits go on")


def test_many_threads_with_a_stopped_server_end_at_their_deadline(
    server: ServerProcess, blocks: Blocks
) -> None:
    taken: list[float] = []
    together = threading.Barrier(4)

    def work() -> None:
        together.wait()
        taken.append(blocks.timed(0.3)[1])

    server.pause()
    with threads([work] * 4):
        pass
    server.go_on()
    # Not one deadline after the other would be, but on a machine that is busy with something else.
    assert sorted(taken)[1] < 10


def test_leases_stay_readable_when_the_server_is_gone(
    server: ServerProcess, blocks: Blocks
) -> None:
    with blocks.space.lease(HASHES) as lease:
        views = list(lease)
        server.kill()
        assert blocks.hits() == 0
        # Nobody else has this memory any more.
        with serving(server.path):
            wait_until(lambda: blocks.hits() == COUNT, "hits go on")
            copies = [bytes(view) for view in views]
            assert lease.valid_blocks() == COUNT
            assert copies == contents(HASHES, BLOCK_BYTES)


def test_a_client_waits_for_a_server_that_comes_later(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(f"unix:{path}/serve/socket") as blocks:
        assert not blocks.store.served
        assert blocks.hits() == 0
        assert blocks.space.put_batch(HASHES, contents(HASHES, BLOCK_BYTES)).failed == COUNT
        with serving(path):
            wait_until(lambda: blocks.store.served, "the client connects")
            blocks.fill()
            assert blocks.hits() == COUNT


def test_a_watch_of_removals_has_a_gap_while_the_server_is_gone(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "store", {**SIZES, **POOL})
    with opened(server.socket) as blocks:
        blocks.fill()
        watch = blocks.store.watch_removals()
        assert blocks.space.remove(HASHES[3:]) == 1
        assert (watch.waiting, watch.take(9)) == (1, ({blocks.space.id: HASHES[3:]}, True))
        server.kill()
        # Nothing says what left meanwhile.
        assert watch.take(9) == ({}, False)
        with serving(server.path):
            wait_until(lambda: blocks.hits() == 3, "hits go on")
            wait_until(lambda: watch.take(9) == ({}, True), "the watch goes on")
            assert blocks.space.remove(HASHES[2:3]) == 1
            assert watch.take(9) == ({blocks.space.id: HASHES[2:3]}, True)


# It reads its lease again when it is asked to.
READER = """
import sys
from tests.contract.subjects import chain, contents
from tests.unit.serve.blocks import BLOCK_BYTES, opened
hashes = chain(16)
with opened(sys.argv[1]) as blocks:
    blocks.space.put_batch(hashes, contents(hashes, BLOCK_BYTES))
    with blocks.space.lease(hashes) as lease:
        print(len(lease), flush=True)
        sys.stdin.readline()
        copies = [bytes(view) for view in lease]
        valid = lease.valid_blocks()
        assert copies[:valid] == contents(hashes, BLOCK_BYTES)[:valid]
"""


@pytest.mark.parametrize(
    "pool",
    [
        "16MiB",
        "1MiB",
        "32MiB",
    ],
)
def test_a_lease_outlives_a_server_that_comes_back_with_another_pool_file_size(
    pool: str, tmp_path: Path
) -> None:
    file = Path("/dev/shm", f"dalsegno-test-{os.getpid()}")
    server = ServerProcess(tmp_path / "store", {**SIZES, **POOL}, pool_file=str(file))
    try:
        command, pipe = [sys.executable, "-c", READER, server.socket], subprocess.PIPE
        with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "16\n"
            server.kill()
            with serving(tmp_path / "store", {"dram": pool}, pool_file=str(file)):
                reader.communicate("\n", timeout=LIMIT_S)
            assert reader.returncode == 0
    finally:
        server.kill()
        file.unlink(missing_ok=True)
