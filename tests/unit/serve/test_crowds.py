"""A client that wants everything: requests, connections, leases. The others are served."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.checkout import ROOT
from tests.contract.subjects import chain, contents
from tests.served import ServerProcess, serving
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
# Most connections of one process, and of all: crates/serve/src/account/bounds.rs.
MOST_OF_ONE, MOST = 32, 512


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


def test_a_process_takes_over_its_own_idle_connections(
    server: ServerProcess, blocks: Blocks
) -> None:
    with ExitStack() as stack:
        lines = [stack.enter_context(raw.greeted(server.path)) for _ in range(MOST_OF_ONE + 8)]
        # The last ones are there, and the first ones were closed.
        assert lines[-1].ask(raw.look(blocks.id, HASHES))[0] == raw.COUNT
        assert lines[0].has_ended()
        wait_until(lambda: server.tenant()["sessions"] <= MOST_OF_ONE, "the others end")
        assert server.tenant()["taken_over_sessions"] >= 8
        assert server.tenant()["refused_sessions"] == 0
        wait_until(lambda: blocks.hits() == COUNT, "the client connects again")
    wait_until(lambda: server.tenant()["sessions"] == 1, "connections end")


def test_a_refused_connection_gets_the_reason(server: ServerProcess, blocks: Blocks) -> None:
    assert blocks.hits() == COUNT
    with ExitStack() as stack:
        # Connections with a watch of removals are not taken over.
        for _ in range(MOST_OF_ONE):
            watching = stack.enter_context(raw.greeted(server.path))
            assert watching.ask(raw.watch(8))[0] == raw.DONE
        with raw.Raw(server.path) as refused:
            kind, text = refused.failure(raw.hello())
            assert kind == raw.UNAVAILABLE
            assert f"{MOST_OF_ONE} connections" in text
            assert refused.has_ended()
        assert server.tenant()["refused_sessions"] >= 1
    wait_until(lambda: blocks.hits() == COUNT, "the client gets a connection")


CROWD = """
import sys, time
from contextlib import ExitStack
from pathlib import Path
from tests.unit.serve import raw
with ExitStack() as stack:
    for _ in range(int(sys.argv[2])):
        # Many at once find connections that were taken over and have not ended yet.
        while True:
            line = raw.Raw(Path(sys.argv[1]))
            if line.ask(raw.hello())[0] == raw.WELCOME:
                stack.enter_context(line)
                break
            line.__exit__()
            time.sleep(0.05)
    print("connected", flush=True)
    sys.stdin.read()
"""


def test_idle_connections_of_many_processes_lock_nobody_out(
    server: ServerProcess, blocks: Blocks
) -> None:
    with ExitStack() as stack:
        for _ in range(MOST // MOST_OF_ONE + 1):
            crowd = stack.enter_context(program(CROWD, server.path, MOST_OF_ONE))
            assert line(crowd) == "connected"
        with raw.greeted(server.path) as late:
            assert late.ask(raw.look(blocks.id, HASHES))[0] == raw.COUNT
        wait_until(lambda: server.tenant()["sessions"] <= MOST, "the others end")
        wait_until(lambda: blocks.hits() == COUNT, "the client is served")


NAMES = """
import sys
from pathlib import Path
from tests.unit.serve import raw
with raw.greeted(Path(sys.argv[1])) as greedy:
    created = 0
    while greedy.ask(raw.register(raw.description(f"{sys.argv[2]} {created}")))[0] == raw.DONE:
        created += 1
    print(created, flush=True)
    # What it knows works.
    assert greedy.ask(raw.register(raw.description(f"{sys.argv[2]} 0")))[0] == raw.DONE
    sys.stdin.read()
"""


def test_greedy_clients_leave_namespaces_to_others(tmp_path: Path) -> None:
    with serving(tmp_path / "store", {"namespaces": 64}) as server, ExitStack() as stack:
        for name in ("a", "b"):
            greedy = stack.enter_context(program(NAMES, server.path, name))
            assert 1 < int(line(greedy)) < 40
        with opened(server.socket) as modest:
            modest.fill()
            assert modest.hits() == COUNT


# A server may let it wait for places, so it goes on only for a while.
def test_puts_of_large_blocks_wait_for_each_other_until_their_timeout(tmp_path: Path) -> None:
    size, writers = 3 << 20, 8
    settings = {"capacity": "256MiB", "segment": "8MiB", "dram": "16MiB"}
    with serving(tmp_path / "store", settings) as server, ExitStack() as stack:
        clients = [stack.enter_context(raw.greeted(server.path)) for _ in range(writers)]
        with opened(server.socket) as blocks:
            space = blocks.store.namespace({"size": "large"}, layers=1, slice_bytes=size)
            hashes = chain(40, "large")
            assert space.put_batch(hashes[:1], [bytes(size)]).failed == 0
            # The process holds all that it may, and the leases lapse after two seconds.
            for client in clients:
                client.ask(raw.acquire(bytes.fromhex(space.id), hashes[:1]))
            assert server.tenant()["copy_bytes"] > 0
            report = space.put_batch(hashes[1:9], [bytes(size)] * 8, timeout_s=LIMIT_S)
            assert report.failed == 0


def test_namespaces_that_several_connections_register_at_once_count_once(tmp_path: Path) -> None:
    racers = 8
    with serving(tmp_path / "store", {"namespaces": 256}) as server, ExitStack() as stack:
        clients = [stack.enter_context(raw.greeted(server.path)) for _ in range(racers)]
        created = 0
        while True:
            message = raw.register(raw.description(f"of all {created}"))
            for client in clients:
                client.send(message)
            answers = {client.reply()[0] for client in clients}
            if raw.DONE not in answers:
                break
            created += 1
        # As many as one connection may create.
        assert created == 96


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


def test_a_handful_of_greedy_clients_leaves_a_lease_to_others(
    server: ServerProcess, blocks: Blocks
) -> None:
    many = chain(200, "many")
    assert blocks.space.put_batch(many, contents(many, BLOCK_BYTES)).failed == 0
    with ExitStack() as stack:
        for _ in range(5):
            greedy = stack.enter_context(program(HOARD, server.path, blocks.space.id, "lease"))
            assert line(greedy) == "full"
        with blocks.space.lease(HASHES) as lease:
            assert len(lease) >= 1
        assert blocks.hits() == COUNT


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
