"""A segment that ends in the middle of an extent costs the blocks behind its end, and no others."""

from __future__ import annotations

import hashlib
import mmap
import os
from pathlib import Path

import pytest
from tests.unit.stores import chain

import dalsegno

SIZE, LAYERS, COUNT = 65536, 4, 8


def content(of: bytes) -> bytes:
    return hashlib.shake_128(of).digest(SIZE)


def buffers(*, aligned: bool) -> list[memoryview]:
    memory = mmap.mmap(-1, (COUNT + 1) * SIZE)
    start = 0 if aligned else 1
    return [memoryview(memory)[start + at * SIZE :][:SIZE] for at in range(COUNT)]


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("timeout_s", [None, 20.0])
@pytest.mark.parametrize("dram", [0, "4MiB"])
@pytest.mark.parametrize("lost", [1, 3, 7])
def test_blocks_before_the_end_are_read(
    tmp_path: Path, dram: object, timeout_s: float | None, lost: int, *, aligned: bool
) -> None:
    hashes, path = chain(COUNT), tmp_path / "kv"
    with dalsegno.open(path, capacity="64MiB", dram=0) as store:
        namespace = store.namespace({"model": "m"}, layers=LAYERS, slice_bytes=SIZE // LAYERS)
        assert namespace.put_batch(hashes, [content(one) for one in hashes]).stored == COUNT
    (space,) = dalsegno.list_extents(str(path))
    (extent,) = space["extent_rows"]
    (segment,) = path.glob("segment-*")
    end = extent["offset"] + extent["bytes"]
    # The last layer of the last blocks.
    os.truncate(segment, end - (lost - 1) * SIZE // LAYERS - 1)
    with dalsegno.open(path, capacity="64MiB", dram=dram) as store:
        namespace = store.namespace({"model": "m"}, layers=LAYERS, slice_bytes=SIZE // LAYERS)
        out = buffers(aligned=aligned)
        hits = namespace.get_each(hashes, out, timeout_s=timeout_s)
        assert hits == [at < COUNT - lost for at in range(COUNT)]
        assert [bytes(one) for one in out[: COUNT - lost]] == [
            content(one) for one in hashes[: COUNT - lost]
        ]
        assert store.stats()["log"]["misses"]["truncated"] == lost
        with namespace.lease(hashes) as lease:
            assert len(lease) == (COUNT - lost if dram else 0)
