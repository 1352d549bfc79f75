"""What a call costs the other calls of its process: nothing, however it ends."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from tests.contract.subjects import chain, contents
from tests.contract.threads import threads
from tests.served import ServerProcess, serving
from tests.unit.serve import raw
from tests.unit.serve.blocks import (
    BLOCK_BYTES,
    COUNT,
    HASHES,
    LAYERS,
    SLICE_BYTES,
    Blocks,
    opened,
    wait_until,
)

import dalsegno

SHORT_S = 0.02
# After that a silent server counts as away.
SILENCE_S = 1.0
# More than a client has at most.
THREADS = 20
TRIES = 5


def test_a_timeout_costs_no_lease_and_no_connection(server: ServerProcess, blocks: Blocks) -> None:
    with blocks.space.lease(HASHES) as lease:
        before = server.tenant()
        for _ in range(TRIES):
            server.pause()
            assert blocks.hits(SHORT_S) == 0
            server.go_on()
            wait_until(lambda: blocks.hits() == COUNT, "hits go on")
        after = server.tenant()
        # A call that found the connection owing its reply opened another one.
        assert after["sessions"] >= before["sessions"] == 1
        assert after["view_bytes"] == before["view_bytes"] > 0
        assert lease.valid_blocks() == COUNT


def test_a_lease_whose_reply_came_too_late_is_released(
    server: ServerProcess, blocks: Blocks
) -> None:
    # Another connection, so that the end of the first would not end the leases of the process.
    watch = blocks.store.watch_removals(capacity=10)
    for one in HASHES:
        server.pause()
        assert len(blocks.space.lease([one], timeout_s=SHORT_S)) == 0
        server.go_on()
        wait_until(lambda: blocks.hits() == COUNT, "hits go on")
    wait_until(lambda: server.tenant()["leases"] == 0, "the leases end")
    with blocks.space.lease(HASHES) as lease:
        assert len(lease) == COUNT
    del watch


def test_no_call_waits_for_the_registration_of_another_thread(
    server: ServerProcess, blocks: Blocks
) -> None:
    def register(number: int) -> None:
        blocks.store.namespace({"model": f"new {number}"}, layers=1, slice_bytes=4096)

    def is_held_up(number: int) -> bool:
        """Whether a call with a timeout outlives a registration that ends after a second."""
        registering = threading.Thread(target=register, args=(number,))
        server.pause()
        registering.start()
        blocks.hits(SHORT_S)
        is_over = not registering.is_alive()
        server.go_on()
        registering.join()
        wait_until(lambda: blocks.hits() == COUNT, "hits go on")
        return is_over

    assert not all(is_held_up(number) for number in range(TRIES))


def test_a_new_server_learns_of_a_namespace_when_it_is_used(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as first, opened(first.socket) as client:
        client.fill()
        many = [
            client.store.namespace({"model": f"number {number}"}, layers=1, slice_bytes=4096)
            for number in range(100)
        ]
        first.close()
        with serving(tmp_path / "store") as second:
            wait_until(lambda: client.hits() == COUNT, "hits go on")
            assert second.stats()["requests"] < len(many)
            [one] = chain(1, "of the last")
            assert many[-1].put_batch([one], [bytes(4096)]).failed == 0
            assert many[-1].probe([one]) == 1


def test_calls_wait_for_a_connection_of_their_own_when_no_further_one_is_there(
    server: ServerProcess, blocks: Blocks
) -> None:
    missed: list[int] = []

    def work() -> None:
        missed.append(sum(blocks.hits() != COUNT for _ in range(20)))

    with ExitStack() as stack:
        for _ in range(31):
            stack.enter_context(raw.greeted(server.path))
        with threads([work] * THREADS):
            pass
    assert missed == [0] * THREADS


def unix_sockets() -> set[int]:
    """The descriptors of this process that are sockets."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        # The descriptor of the listing itself is gone by now.
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(entry.stat().st_mode):
                found.add(int(entry.name))
    return found


def test_a_connection_that_was_closed_between_two_calls_is_replaced(server: ServerProcess) -> None:
    before = unix_sockets()
    with opened(server.socket) as client:
        client.fill()
        for turn in range(TRIES):
            for number in unix_sockets() - before:
                # What the server does when it needs connections for others.
                with socket.socket(fileno=os.dup(number)) as line:
                    line.shutdown(socket.SHUT_RDWR)
            assert client.hits() == COUNT, turn
            assert client.store.served


def shared_bytes() -> int:
    """Memory files in the memory of this process."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    [kib] = [line.split()[1] for line in lines if line.startswith("Pss_Shmem")]
    return int(kib) << 10


def test_a_client_gives_back_what_it_does_not_use(tmp_path: Path) -> None:
    sizes = {"capacity": "512MiB", "segment": "64MiB", "dram": "256MiB", "staging": "64MiB"}
    large, small = 33 << 20, 4 << 20
    with (
        serving(tmp_path / "store", sizes) as server,
        dalsegno.open(server.socket) as store,
    ):
        spaces = {
            size: store.namespace({"size": str(size)}, layers=1, slice_bytes=size)
            for size in (large, small)
        }
        before = shared_bytes()
        [one] = chain(1, "large")
        assert spaces[large].put_batch([one], [bytes(large)]).failed == 0
        assert shared_bytes() - before < large // 2, "at once"

        def put(number: int) -> None:
            [one] = chain(1, f"small {number}")
            assert spaces[small].put_batch([one], [bytes(small)]).failed == 0

        with threads([partial(put, number) for number in range(4)]):
            pass
        wait_until(lambda: shared_bytes() - before < small // 2, "memory of puts", 0.1)
        wait_until(lambda: server.tenant()["sessions"] == 1, "connections", 0.1)
        [again] = chain(1, "small 0")
        out = [bytearray(b"\1" * small)]
        assert spaces[small].get_batch([again], out) == 1
        assert out == [bytes(small)]


def test_a_put_that_was_given_up_stores_nothing_although_its_memory_was_given_back(
    server: ServerProcess, blocks: Blocks
) -> None:
    hashes = chain(4, "given up")
    memory = blocks.space.allocate(len(hashes))
    for at, content in enumerate(contents(hashes, BLOCK_BYTES)):
        memoryview(memory[at])[:] = content
    server.pause()
    assert memory.commit(hashes, timeout_s=SHORT_S).failed == len(hashes)
    del memory
    with opened(server.socket) as other:
        other.space.put_batch(hashes, contents(hashes, BLOCK_BYTES), timeout_s=SHORT_S)
    server.go_on()
    wait_until(lambda: blocks.hits() == COUNT, "hits go on")
    # What was not given up in time may be stored, with the right bytes.
    out = [bytearray(BLOCK_BYTES) for _ in hashes]
    found = blocks.space.get_batch(hashes, out)
    assert out[:found] == contents(hashes, BLOCK_BYTES)[:found]


def test_a_put_by_layer_ends_by_its_timeouts(server: ServerProcess, blocks: Blocks) -> None:
    hashes = chain(COUNT, "by layer")

    def writer(timeout_s: float | None = None) -> dalsegno.LayerWriter:
        return blocks.space.layer_writer(hashes, count=COUNT, timeout_s=timeout_s)

    took = []
    for _ in range(TRIES):
        server.pause()
        start = time.perf_counter()
        assert writer(SHORT_S).count == COUNT
        took.append(time.perf_counter() - start)
        server.go_on()
        wait_until(lambda: blocks.hits() == COUNT, "hits go on")
    assert min(took) < SILENCE_S / 2
    one = writer()
    for layer in range(LAYERS):
        one.store_layer(layer, [bytes(SLICE_BYTES)] * COUNT)
    server.pause()

    def commit() -> None:
        # The server may be away for longer than a put without a timeout waits.
        with contextlib.suppress(dalsegno.UnavailableError):
            one.commit()

    with threads([commit]):
        wait_until(lambda: is_committed(one), "another commit does not wait for the first one")
        server.go_on()


def is_committed(writer: dalsegno.LayerWriter) -> bool:
    """Whether the blocks of a writer were handed over."""
    with pytest.raises(dalsegno.DalsegnoError) as error:
        writer.store_layer(0, [bytes(SLICE_BYTES)] * COUNT, timeout_s=SHORT_S)
    return "committed already" in str(error.value)


def test_a_closed_store_has_no_connection_although_a_watch_lives(server: ServerProcess) -> None:
    with opened(server.socket) as other:
        watch = other.store.watch_removals(capacity=10)
        assert server.tenant()["sessions"] == 2
        other.store.close()
        wait_until(lambda: server.tenant()["sessions"] == 0, "its connections end")
        blocks, is_complete = watch.take(1)
        assert not blocks
        assert not is_complete
        assert server.tenant()["sessions"] == 0


def test_leases_of_a_new_server_end_although_a_watch_remembers_the_old_one(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as first, opened(first.socket) as client:
        client.fill()
        watch = client.store.watch_removals(capacity=10)
        first.close()
        with serving(tmp_path / "store") as second:
            wait_until(lambda: client.hits() == COUNT, "hits go on")
            with client.space.lease(HASHES) as lease:
                assert len(lease) == COUNT
            watch.take(1)
            wait_until(lambda: second.tenant()["leases"] == 0, "the lease ends")


def test_an_allocation_gives_its_memory_back_although_the_server_has_its_file(
    server: ServerProcess, blocks: Blocks
) -> None:
    hashes = chain(40, "allocated")
    before = shared_bytes()
    memory = blocks.space.allocate(len(hashes))
    for at, content in enumerate(contents(hashes, BLOCK_BYTES)):
        memoryview(memory[at])[:] = content
    assert memory.commit(hashes).failed == 0
    held = shared_bytes() - before
    assert held > 20 * BLOCK_BYTES
    del memory
    wait_until(lambda: shared_bytes() - before < held // 2, "its memory")
    assert blocks.space.probe(hashes) == len(hashes)
