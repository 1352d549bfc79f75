"""Two stores that share a far directory, as two hosts do."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import dalsegno

LAYERS, SLICE_BYTES, COUNT = 4, 65_536, 12
BLOCK_BYTES = LAYERS * SLICE_BYTES
CHAIN = [hashlib.sha256(f"far {at}".encode()).digest() for at in range(COUNT)]
LIMIT_S = 60.0


def block(at: int) -> bytes:
    return bytes([at + 1]) * BLOCK_BYTES


def opened(path: Path, far: Path, **settings: object) -> tuple[dalsegno.Store, dalsegno.Namespace]:
    base = {"capacity": "64MiB", "dram": "16MiB", "far": str(far), "far_flush_s": 0.1}
    store = dalsegno.open(path, **{**base, **settings})
    return store, store.namespace({"test": "far"}, layers=LAYERS, slice_bytes=SLICE_BYTES)


def until(ready: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not ready():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture
def far(tmp_path: Path) -> Path:
    (tmp_path / "far").mkdir()
    return tmp_path / "far"


def test_what_one_host_stored_another_one_loads(tmp_path: Path, far: Path) -> None:
    first, theirs = opened(tmp_path / "a", far)
    second, ours = opened(tmp_path / "b", far)
    with first, second:
        report = theirs.put_batch(CHAIN, [block(at) for at in range(COUNT)])
        assert report.stored == COUNT
        until(lambda: ours.probe(CHAIN) == COUNT, "the other host finds them")
        out = [bytearray(BLOCK_BYTES) for _ in CHAIN]
        assert ours.get_batch(CHAIN, out, timeout_s=LIMIT_S) == COUNT
        assert [bytes(one) for one in out] == [block(at) for at in range(COUNT)]
        stats = second.stats()
        assert stats["get_far_blocks"] == COUNT
        assert stats["far"] is not None
        assert stats["far"]["used_bytes"] == COUNT * BLOCK_BYTES
        with ours.lease(CHAIN, timeout_s=LIMIT_S) as lease:
            assert [bytes(one) for one in lease] == [block(at) for at in range(COUNT)]
        assert theirs.remove(CHAIN[3:4]) == 1
        until(lambda: ours.probe(CHAIN) == 3, "what one host removed is gone on the other")


def test_layers_come_from_the_far_directory(tmp_path: Path, far: Path) -> None:
    first, theirs = opened(tmp_path / "a", far)
    second, ours = opened(tmp_path / "b", far, dram=0)
    with first, second:
        theirs.put_batch(CHAIN, [block(at) for at in range(COUNT)])
        until(lambda: ours.probe(CHAIN) == COUNT, "the other host finds them")
        out = [bytearray(BLOCK_BYTES) for _ in CHAIN]
        load = ours.load(CHAIN, out, timeout_s=LIMIT_S)
        for layer in range(LAYERS):
            assert load.wait_layer(layer, timeout_s=LIMIT_S)
            assert [one[layer * SLICE_BYTES] for one in out] == list(range(1, COUNT + 1))
        assert load.wait(LIMIT_S)
        assert load.result() == COUNT


def test_locate_returns_runs_of_blocks_with_their_tier_and_its_speed(
    tmp_path: Path, far: Path
) -> None:
    first, theirs = opened(tmp_path / "a", far)
    second, ours = opened(tmp_path / "b", far)
    with first, second:
        theirs.put_batch(CHAIN, [block(at) for at in range(COUNT)])
        until(lambda: ours.probe(CHAIN) == COUNT, "the other host finds them")
        assert ours.locate([]) == []
        unknown = {"latency_p50_ns": None, "bytes_per_s": None}
        run = {"tier": "far", "blocks": COUNT, "bytes": COUNT * BLOCK_BYTES}
        assert ours.locate(CHAIN) == [{**run, **unknown}]
        out = [bytearray(BLOCK_BYTES) for _ in CHAIN[:5]]
        assert ours.get_batch(CHAIN[:5], out, timeout_s=LIMIT_S) == 5
        # What follows is prefetched, so that all of it is in DRAM soon.
        until(lambda: [one["tier"] for one in ours.locate(CHAIN)] == ["dram"], "prefetched")
        assert [one["tier"] for one in theirs.locate(CHAIN)] == ["log"]
        with pytest.raises(dalsegno.InvalidError):
            ours.locate([b"short"])
    with pytest.raises(dalsegno.ClosedError):
        ours.locate(CHAIN)


def test_a_store_without_the_setting_has_no_far_counters(tmp_path: Path) -> None:
    with dalsegno.open(tmp_path / "kv", capacity="64MiB") as store:
        assert store.stats()["far"] is None


@pytest.mark.parametrize(
    ("setting", "value"),
    [("far_workers", 0), ("far_workers", 65), ("far_flush_s", 0), ("far_write", "never")],
)
def test_a_setting_out_of_range_is_an_error(
    tmp_path: Path, far: Path, setting: str, value: object
) -> None:
    with pytest.raises(dalsegno.InvalidError, match=setting):
        opened(tmp_path / "kv", far, **{setting: value})


def test_a_far_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(dalsegno.UnavailableError, match="nowhere"):
        opened(tmp_path / "kv", tmp_path / "nowhere")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["kv", "kv/far", "."])
def test_a_far_directory_that_overlaps_the_store_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(dalsegno.InvalidError, match="apart from the store's directory"):
        opened(tmp_path / "kv", tmp_path / place)
    assert sorted(tmp_path.rglob("*")) == before
