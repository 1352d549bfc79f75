"""`Namespace.load` into the pages of an engine, and puts by layer out of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.stores import chain

import dalsegno

LAYERS, PAGES, PAGE = 3, 16, 2048
# Keys and values apart.
SLICE_BYTES = 2 * PAGE
PARTS = [(0, PAGE), (PAGES * PAGE, PAGE)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[dalsegno.Store]:
    settings = {"capacity": "64MiB", "staging": "16MiB", "dram": "8MiB"}
    with dalsegno.open(tmp_path / "store", **settings) as store:
        yield store


@pytest.fixture
def namespace(store: dalsegno.Store) -> dalsegno.Namespace:
    return store.namespace({"model": "m"}, layers=LAYERS, slice_bytes=SLICE_BYTES)


class Engine:
    """A KV cache `[keys and values, pages, bytes]` for each layer."""

    def __init__(self) -> None:
        self.caches: list[Any] = [np.zeros((2, PAGES, PAGE), np.uint8) for _ in range(LAYERS)]
        self.memory = dalsegno.PagedMemory(self.caches, pages=PAGES, stride=PAGE, parts=PARTS)

    def fill(self, table: list[int]) -> np.ndarray:
        """Computes blocks; returns their bytes, `[blocks, layers, bytes]`."""
        noise = np.random.default_rng(len(table)).integers(
            0, 256, (len(table), LAYERS, 2, PAGE), np.uint8
        )
        for layer, cache in enumerate(self.caches):
            cache[:, table] = noise[:, layer].swapaxes(0, 1)
        return noise.reshape(len(table), LAYERS, SLICE_BYTES)

    def blocks(self, table: list[int]) -> np.ndarray:
        """The bytes of blocks, `[blocks, layers, bytes]`."""
        rows = np.stack([cache[:, table].swapaxes(0, 1) for cache in self.caches], axis=1)
        return rows.reshape(len(table), LAYERS, SLICE_BYTES)


def save(namespace: dalsegno.Namespace, hashes: list[bytes], pages: dalsegno.PagedBlocks) -> None:
    writer = namespace.layer_writer(hashes)
    copies = [writer.submit_store_layer(layer, pages) for layer in range(LAYERS)]
    for copy in copies:
        assert copy.wait(60)
        copy.result()
    commit = writer.submit_commit()
    assert commit.wait(60)
    commit.result()


def test_what_one_engine_saves_another_one_loads(namespace: dalsegno.Namespace) -> None:
    hashes, first, second = chain(4), Engine(), Engine()
    blocks = first.fill([3, 9, 1, 15])
    save(namespace, hashes, first.memory.blocks([3, 9, 1, 15]))
    assert namespace.probe(hashes) == 4
    out = np.zeros((4, LAYERS * SLICE_BYTES), np.uint8)
    assert namespace.get_batch(hashes, list(out)) == 4
    np.testing.assert_array_equal(out.reshape(blocks.shape), blocks)
    load = namespace.load(hashes, second.memory.blocks([7, 6, 5, 4]))
    for layer in range(LAYERS):
        assert load.wait_layer(layer, timeout_s=60)
        np.testing.assert_array_equal(second.blocks([7, 6, 5, 4])[:, layer], blocks[:, layer])
    assert load.wait(60)
    assert (load.result(), load.done(), load.layer_ready(2)) == (4, True, True)
    assert not second.blocks([0, 1, 2, 3, 8, 9]).any(), "other pages were written"


def test_leased_blocks_are_copied_to_pages(namespace: dalsegno.Namespace) -> None:
    hashes, engine = chain(4), Engine()
    blocks = engine.fill([0, 1, 2, 3])
    save(namespace, hashes, engine.memory.blocks([0, 1, 2, 3]))
    lease = namespace.lease(hashes)
    load = lease.load(engine.memory.blocks([10, 11, 12]))
    lease.release()
    assert load.wait(60)
    assert load.result() == 3
    np.testing.assert_array_equal(engine.blocks([10, 11, 12]), blocks[:3])
    with (
        namespace.lease(hashes) as again,
        pytest.raises(dalsegno.InvalidError, match="pages for 5"),
    ):
        again.load(engine.memory.blocks([4, 5, 6, 7, 8]))


def test_pages_belong_to_one_load_at_a_time(namespace: dalsegno.Namespace) -> None:
    engine = Engine()
    pages = engine.memory.blocks([1, 2])
    assert len(pages) == 2
    with pytest.raises(dalsegno.InvalidError, match="page 2 is listed twice, or another load"):
        engine.memory.blocks([2])
    load = namespace.load(chain(2), pages)
    assert load.wait(60)
    assert load.result() == 0
    with pytest.raises(dalsegno.InvalidError, match="took these pages"):
        namespace.load(chain(2), pages)
    del pages
    assert len(engine.memory.blocks([1, 2])) == 2


def test_pages_that_are_saved_may_be_read_twice_but_not_loaded(
    namespace: dalsegno.Namespace,
) -> None:
    engine, hashes = Engine(), chain(2)
    blocks, pages = engine.fill([1, 2]), engine.memory.blocks([1, 2])
    writer = namespace.layer_writer(hashes)
    for timeout_s in (-1.0, 0.0):
        # Nothing of a layer that was refused, or that came too late, counts as stored.
        with pytest.raises(dalsegno.DalsegnoError):
            writer.store_layer(0, pages, timeout_s=timeout_s)
    with pytest.raises(dalsegno.InvalidError, match="5 does not exist"):
        writer.store_layer(5, pages)
    for layer in range(LAYERS):
        writer.store_layer(layer, pages)
    with pytest.raises(dalsegno.InvalidError, match="stored or loaded already"):
        namespace.load(hashes, pages)
    assert writer.commit() == 2
    out = np.zeros((2, LAYERS * SLICE_BYTES), np.uint8)
    assert namespace.get_batch(hashes, list(out)) == 2
    np.testing.assert_array_equal(out.reshape(blocks.shape), blocks)


def test_a_load_of_more_than_a_quarter_of_dram_has_rounds(tmp_path: Path) -> None:
    settings = {"capacity": "64MiB", "staging": "16MiB", "dram": "8MiB"}
    blocks, layer_bytes = 12, 512 << 10
    cache: Any = np.random.default_rng(0).integers(0, 256, (blocks, layer_bytes), np.uint8)
    memory = dalsegno.PagedMemory(
        [cache], pages=blocks, stride=layer_bytes, parts=[(0, layer_bytes)]
    )
    expected, hashes, table = cache.copy(), chain(blocks), list(range(blocks))
    with dalsegno.open(tmp_path / "store", **settings) as store:
        namespace = store.namespace({}, layers=1, slice_bytes=layer_bytes)
        assert namespace.put_batch(hashes, list(expected)).stored == blocks
        cache[:] = 0
        before = store.stats()
        loads = [namespace.load(hashes[:6], memory.blocks(table[:6]))]
        loads.append(namespace.load(hashes[6:], memory.blocks(table[6:])))
        # Two loads of 3 MiB, each with a quarter of 8 MiB at a time.
        for load in loads:
            assert load.wait(60)
            assert (load.result(), load.layer_ready(0)) == (6, True)
        np.testing.assert_array_equal(cache, expected)
        after = store.stats()
        hits = after["get_dram_blocks"] + after["get_log_blocks"]
        assert hits - before["get_dram_blocks"] - before["get_log_blocks"] == blocks
        assert after["get_calls"] - before["get_calls"] == len(loads)


def test_what_is_wrong_is_refused_by_name(namespace: dalsegno.Namespace) -> None:
    engine = Engine()
    for table, message in (
        ([PAGES], f"page {PAGES} does not exist"),
        ([-1], "page -1 does not exist"),
        ([3, 3], "page 3 is listed twice"),
    ):
        with pytest.raises(dalsegno.InvalidError, match=message):
            engine.memory.blocks(table)
    with pytest.raises(dalsegno.InvalidError, match="2 blocks, but pages for 1"):
        namespace.load(chain(2), engine.memory.blocks([0]))
    caches: list[Any] = [np.zeros(100, np.uint8), np.zeros(101, np.uint8)]
    for layers, shape, message in (
        (caches, {"pages": 1, "stride": 10, "parts": [(0, 10)]}, "differ in size"),
        (caches[:1], {"pages": 11, "stride": 10, "parts": [(0, 10)]}, "not in a buffer of 100"),
        (caches[:1], {"pages": 2, "stride": 9, "parts": [(0, 10)]}, "overlap"),
        (caches[:1], {"pages": 2, "stride": 10, "parts": []}, "at least one page"),
        ([], {"pages": 2, "stride": 10, "parts": [(0, 10)]}, "at least one layer"),
        ([caches[0], caches[0]], {"pages": 2, "stride": 10, "parts": [(0, 10)]}, "overlap"),
        ([bytes(100)], {"pages": 2, "stride": 10, "parts": [(0, 10)]}, "read-only"),
    ):
        with pytest.raises(dalsegno.InvalidError, match=message):
            dalsegno.PagedMemory(layers, **shape)  # type: ignore[arg-type]


def test_a_load_without_a_dram_tier_is_refused(tmp_path: Path) -> None:
    with dalsegno.open(tmp_path / "store", capacity="64MiB", staging="16MiB", dram=0) as store:
        namespace = store.namespace({}, layers=LAYERS, slice_bytes=SLICE_BYTES)
        with pytest.raises(dalsegno.InvalidError, match="dram"):
            namespace.load(chain(1), Engine().memory.blocks([0]))


def test_a_cancelled_load_ends_and_gives_its_pages_back(namespace: dalsegno.Namespace) -> None:
    engine, ended = Engine(), list[float]()
    load = namespace.load(chain(3), engine.memory.blocks([0, 1, 2]))
    load.on_end(lambda: ended.append(time.monotonic()))
    load.cancel()
    assert load.wait(60)
    assert load.result() == 0
    assert len(engine.memory.blocks([0, 1, 2])) == 3
    while not ended:
        time.sleep(0.001)


def test_buffers_stay_exported_while_they_are_described() -> None:
    cache = bytearray(os.urandom(100))
    memory = dalsegno.PagedMemory([cache], pages=10, stride=10, parts=[(0, 10)])
    assert memory.slice_bytes == 10
    with pytest.raises(BufferError):
        cache.append(0)
    del memory
    cache.append(0)
