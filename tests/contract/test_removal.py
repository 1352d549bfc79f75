"""The contract: what was removed stays gone, and nothing else goes with it."""

from __future__ import annotations

import threading
import time

import pytest
from tests.contract.expect import buffers, expect
from tests.contract.subjects import Box, chain, contents


def test_removed_blocks_stay_removed(box: Box) -> None:
    hashes = chain(8)
    gone = {hashes[0], hashes[3], hashes[4]}
    left = set(hashes) - gone
    with box.namespace() as namespace:
        namespace.put_batch(hashes, contents(hashes, 2000))
        expect(namespace, hashes, hashes)
        assert namespace.remove([*gone, *chain(2, "never there")]) == 3
        expect(namespace, hashes, left)
        assert namespace.remove(list(gone)) == 0
    with box.namespace() as namespace:
        expect(namespace, hashes, left)
        expect(namespace, hashes[1:], left)


def test_a_removed_block_can_be_put_again(box: Box) -> None:
    hashes = chain(4)
    with box.namespace() as namespace:
        namespace.put_batch(hashes, contents(hashes, 2000))
        for _ in range(3):
            assert namespace.remove(hashes[1:3]) == 2
            report = namespace.put_batch(hashes, contents(hashes, 2000))
            assert (report.stored, report.present) == (2, 2)
            expect(namespace, hashes, hashes)
    with box.namespace() as namespace:
        expect(namespace, hashes, hashes)


def test_a_whole_namespace_can_be_removed(box: Box) -> None:
    hashes = chain(5)
    with box.open() as store:
        one = store.namespace({"tenant": "a"}, layers=2, slice_bytes=1000)
        other = store.namespace({"tenant": "b"}, layers=2, slice_bytes=1000)
        for namespace in (one, other):
            namespace.put_batch(hashes, contents(hashes, 2000))
            expect(namespace, hashes, hashes)
        assert one.remove() == 5
        assert one.remove() == 0
        expect(one, hashes, ())
        expect(other, hashes, hashes)
        assert one.put_batch(hashes[:2], contents(hashes[:2], 2000)).stored == 2
        expect(one, hashes, hashes[:2])
    with box.open() as store:
        one = store.namespace({"tenant": "a"}, layers=2, slice_bytes=1000)
        other = store.namespace({"tenant": "b"}, layers=2, slice_bytes=1000)
        expect(one, hashes, hashes[:2])
        expect(other, hashes, hashes)


def test_a_removal_during_a_put_has_one_result_for_every_reader(box: Box) -> None:
    """Blocks removed while they are put are there or not, the same for everybody."""
    hashes = chain(30)
    with box.namespace(slice_bytes=20_000) as namespace:
        transfer = namespace.submit_put(hashes, contents(hashes, 40_000))
        namespace.remove(hashes)
        assert transfer.wait(60)
        present = namespace.contains(hashes)
        stored = {one for one, is_there in zip(hashes, present, strict=True) if is_there}
        expect(namespace, hashes, stored)
    with box.namespace(slice_bytes=20_000) as namespace:
        expect(namespace, hashes, stored)


def test_regression_removal_needs_no_free_space(box: Box) -> None:
    """A store that is full, as a cache always is, must be able to forget."""
    with box.namespace(slice_bytes=20_000, capacity="8MiB") as namespace:
        for number in range(60):
            hashes = chain(6, f"{number}.")
            namespace.put_batch(hashes, contents(hashes, 40_000))
        for number in range(600):
            namespace.remove(chain(1, f"{number}."))
        namespace.put_batch(chain(6), contents(chain(6), 40_000))
        if box.subject.evicts:
            expect(namespace, chain(6), chain(6))


@pytest.mark.parametrize("what", ["blocks", "namespace"])
def test_regression_a_get_in_flight_brings_no_removed_block_back(what: str, box: Box) -> None:
    with box.namespace(slice_bytes=100_000) as namespace:
        for turn in range(30):
            hashes = chain(4, f"{turn}.")
            namespace.put_batch(hashes, contents(hashes, 200_000))
            args = (hashes, buffers(namespace, 4))
            reader = threading.Thread(target=namespace.get_batch, args=args)
            reader.start()
            time.sleep(turn % 5 * 0.0001)
            namespace.remove(hashes if what == "blocks" else None)
            reader.join()
            assert namespace.get_batch(hashes, buffers(namespace, 4)) == 0


def test_a_watch_reports_removed_blocks_that_were_not_stored_again(box: Box) -> None:
    hashes = chain(6)
    with box.open() as store:
        namespace = store.namespace({"tenant": "a"}, layers=2, slice_bytes=1000)
        watch = store.watch_removals(4)
        namespace.put_batch(hashes, contents(hashes, 2000))
        assert (watch.waiting, watch.take(10)) == (0, ({}, True))
        namespace.remove(hashes[:3])
        namespace.put_batch(hashes, contents(hashes, 2000)[1:2], first=1)
        assert watch.waiting == 3
        assert watch.take(2) == ({namespace.id: hashes[:1]}, True)
        assert watch.take(2) == ({namespace.id: hashes[2:3]}, True)
        namespace.put_batch(hashes, contents(hashes, 2000))
        namespace.remove(hashes)
        taken, complete = watch.take(10)
        assert not complete
        assert set(taken[namespace.id]) < set(hashes)
    assert watch.take(1) == ({}, False)
