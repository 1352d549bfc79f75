"""Puts whose blocks are kept in the DRAM pool only, by every call that puts blocks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import dalsegno

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

SLICE_BYTES = 4096
COUNT = 4


def hashes(name: int) -> list[bytes]:
    return [bytes([name, number]) * 16 for number in range(COUNT)]


def by_layer(space: dalsegno.Namespace, chain: list[bytes]) -> dalsegno.LayerWriter:
    writer = space.layer_writer(chain)
    for layer in range(2):
        writer.store_layer(layer, [bytes(SLICE_BYTES)] * writer.count)
    return writer


def ended(transfer: dalsegno.Transfer[Result]) -> Result:
    assert transfer.wait(60)
    return transfer.result()


def test_every_put_can_keep_its_blocks_in_the_pool_only(tmp_path: Path) -> None:
    blocks = [bytes(2 * SLICE_BYTES)] * COUNT
    puts: list[Callable[[dalsegno.Namespace, list[bytes]], object]] = [
        lambda space, chain: space.put_batch(chain, blocks, pool_only=True).pool_only,
        lambda space, chain: ended(space.submit_put(chain, blocks, pool_only=True)).pool_only,
        lambda space, chain: space.allocate(COUNT).commit(chain, pool_only=True).pool_only,
        lambda space, chain: by_layer(space, chain).commit(pool_only=True),
    ]
    with dalsegno.open(tmp_path, capacity="64MiB", dram="8MiB") as store:
        space = store.namespace({"model": "m"}, layers=2, slice_bytes=SLICE_BYTES)
        for name, put in enumerate(puts):
            assert put(space, hashes(name)) == COUNT
            assert space.probe(hashes(name)) == COUNT
        later = hashes(len(puts))
        ended(by_layer(space, later).submit_commit(pool_only=True))
        assert space.contains(later) == [True] * COUNT
        stats = store.stats()
        assert (stats["pool_only_blocks"], stats["blocks"]) == (5 * COUNT, 0)
        assert space.remove(later) == COUNT
        assert by_layer(space, hashes(0)).commit() == COUNT, "they were not stored"
    with dalsegno.open(tmp_path) as store:
        space = store.namespace({"model": "m"}, layers=2, slice_bytes=SLICE_BYTES)
        assert [space.probe(hashes(name)) for name in range(5)] == [COUNT, 0, 0, 0, 0]


def test_without_a_pool_the_blocks_are_declined(tmp_path: Path) -> None:
    with dalsegno.open(tmp_path, capacity="64MiB", dram=0) as store:
        space = store.namespace({"model": "m"}, layers=2, slice_bytes=SLICE_BYTES)
        report = space.put_batch(hashes(0), [bytes(2 * SLICE_BYTES)] * COUNT, pool_only=True)
        assert (report.declined, report.kept) == (COUNT, [False] * COUNT)
        assert by_layer(space, hashes(0)).commit(pool_only=True) == 0
