"""Requests and blocks of any size: the results are those of a store in the process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.subjects import chain, contents
from tests.served import ServerProcess, serving
from tests.unit.serve.blocks import BLOCK_BYTES, COUNT, Blocks, opened

import dalsegno

MIB = 1 << 20
LARGE = {"capacity": "128MiB", "segment": "8MiB", "staging": "32MiB"}


def expect_all(space: dalsegno.Namespace, hashes: list[bytes]) -> None:
    """Puts and gets blocks in one call each, and compares every byte."""
    right = contents(hashes, space.block_bytes)
    assert space.put_batch(hashes, right).stored == len(hashes)
    for _ in range(2):
        out = [bytearray(space.block_bytes) for _ in hashes]
        assert space.get_batch(hashes, out) == len(hashes)
        assert out == right
    mixed = [one for pair in zip(hashes, chain(len(hashes), "no"), strict=True) for one in pair]
    out = [bytearray(space.block_bytes) for _ in mixed]
    assert space.get_each(mixed, out) == [True, False] * len(hashes)
    assert out[::2] == right
    assert space.contains(mixed) == [True, False] * len(hashes)
    assert space.probe(hashes) == space.touch(hashes) == len(hashes)
    assert sum(run["blocks"] for run in space.locate(hashes)) == len(hashes)
    assert space.remove(mixed) == len(hashes)
    assert space.probe(hashes) == 0


def test_more_blocks_than_a_message_holds_come_back(server: ServerProcess, blocks: Blocks) -> None:
    """More hashes than a frame may have, and more blocks than the pool has places."""
    space = blocks.store.namespace({"model": "small"}, layers=2, slice_bytes=50)
    expect_all(space, chain(4100))
    assert server.tenant()["malformed_sessions"] == 0


@pytest.mark.parametrize("slice_bytes", [1, 65_535, 65_536, 65_537, 2 * MIB])
def test_blocks_of_any_size_come_back(slice_bytes: int, tmp_path: Path) -> None:
    with serving(tmp_path / "store", LARGE) as server, dalsegno.open(server.path) as store:
        space = store.namespace({"model": "sizes"}, layers=3, slice_bytes=slice_bytes)
        expect_all(space, chain(5))


def test_a_put_larger_than_the_pool_is_stored(tmp_path: Path) -> None:
    settings = {**LARGE, "dram": "4MiB"}
    with serving(tmp_path / "store", settings) as server, opened(server.socket) as blocks:
        expect_all(blocks.space, chain(32 * MIB // BLOCK_BYTES))
        blocks.fill()
        assert blocks.hits() == COUNT


def test_compressed_blocks_come_back(server: ServerProcess, blocks: Blocks) -> None:
    space = blocks.store.namespace({"model": "z"}, layers=3, slice_bytes=30_000, codec="zstd")
    expect_all(space, chain(20))


def test_blocks_larger_than_the_pool_are_refused_or_come_back(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "store", {**LARGE, "dram": "1MiB"}) as server,
        dalsegno.open(server.path) as store,
    ):
        try:
            space = store.namespace({"model": "huge"}, layers=3, slice_bytes=MIB)
        except dalsegno.InvalidError:
            return
        expect_all(space, chain(2))
