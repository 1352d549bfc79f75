"""Tenants are kept apart: no call reads across, no field becomes a path, files are private."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.stores import chain

import dalsegno

LAYERS, SLICE_BYTES, BLOCKS = 2, 4096, 6
BLOCK_BYTES = LAYERS * SLICE_BYTES
HASHES = chain(BLOCKS)
NAMES = re.compile(
    r"LOCK|(store|segments|namespace-[0-9a-f]{32})\.meta"
    r"|segment-[0-9a-f]{16}\.log|index-[0-9a-z.-]+"
)
HOSTILE = ["../../outside", "/etc/passwd", "a/b\0c", "..", "x" * 1024, "\x1b[2J", "line\nbreak"]


def bytes_of(tenant: int) -> list[bytes]:
    return [bytes([tenant, place]) * (BLOCK_BYTES // 2) for place in range(BLOCKS)]


def open_namespace(store: dalsegno.Store, salt: str, **changes: str) -> dalsegno.Namespace:
    fields = {"model": "m", "salt": salt, **changes}
    return store.namespace(fields, layers=LAYERS, slice_bytes=SLICE_BYTES)


def buffers(count: int = BLOCKS, size: int = BLOCK_BYTES) -> list[bytearray]:
    return [bytearray(size) for _ in range(count)]


@pytest.fixture(params=["memory", "lsm"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dalsegno.Store]:
    """A store in which tenant a has blocks, in DRAM too."""
    settings = {"capacity": "64MiB", "segment": "1MiB", "staging": "16MiB", "dram": "8MiB"}
    settings |= {"dram_admission": "put", "index": request.param}
    with dalsegno.open(tmp_path / "kv", **settings) as opened:
        report = open_namespace(opened, "a").put_batch(HASHES, bytes_of(1))
        assert report.stored == BLOCKS
        yield opened


def transferred(transfer: dalsegno.Transfer[list[bool]]) -> list[bool]:
    assert transfer.wait(30)
    return transfer.result()


def loaded(load: dalsegno.Load) -> int:
    assert load.wait(30)
    return load.result()


# Every call that reads or reports stored blocks; the calls that write are tried below.
READS: dict[str, Callable[[dalsegno.Namespace, list[bytearray]], object]] = {
    "layer_writer": lambda space, _: BLOCKS - space.layer_writer(HASHES).count,
    "probe": lambda space, _: space.probe(HASHES),
    "contains": lambda space, _: any(space.contains(HASHES)),
    "peek": lambda space, _: any(space.peek(HASHES)),
    "locate": lambda space, _: space.locate(HASHES),
    "touch": lambda space, _: space.touch(HASHES),
    "get_batch": lambda space, out: space.get_batch(HASHES, out),
    "lease": lambda space, _: len(space.lease(HASHES)),
    "get_each": lambda space, out: any(space.get_each(HASHES, out)),
    "submit_get": lambda space, out: any(transferred(space.submit_get(HASHES, out, each=True))),
    "load": lambda space, out: loaded(space.load(HASHES, out)),
}


@pytest.mark.parametrize("call", READS)
@pytest.mark.parametrize("changes", [{}, {"model": "n"}, {"extra": ""}], ids=str)
def test_no_call_reads_blocks_of_another_tenant(
    store: dalsegno.Store, call: str, changes: dict[str, str]
) -> None:
    other = open_namespace(store, "b", **changes)
    out = buffers()
    assert not READS[call](other, out)
    assert out == buffers(), "not a byte of them was lent"
    assert READS[call](open_namespace(store, "a"), out), "their owner has them"


def test_the_calls_tried_here_are_all_calls_of_a_namespace() -> None:
    methods = {name for name in vars(dalsegno.Namespace) if not name.startswith("_")}
    calls = {name for name in methods if callable(getattr(dalsegno.Namespace, name))}
    assert calls == {*READS, "allocate", "put_batch", "submit_put", "remove", "register_pool"}


def test_tenants_neither_overwrite_nor_remove_each_others_blocks(store: dalsegno.Store) -> None:
    one, other = open_namespace(store, "a"), open_namespace(store, "b")
    assert other.remove(HASHES) == 0
    put = other.submit_put(HASHES, bytes_of(2))
    assert put.wait(30)
    assert put.result().stored == BLOCKS
    assert other.put_batch(HASHES, bytes_of(2)).present == BLOCKS
    for space, tenant in ((one, 1), (other, 2)):
        out = buffers()
        assert space.get_batch(HASHES, out) == BLOCKS
        assert out == bytes_of(tenant)
    assert other.remove() == BLOCKS
    assert (one.probe(HASHES), other.probe(HASHES)) == (BLOCKS, 0)


def test_fields_that_join_to_the_same_text_are_different_tenants(store: dalsegno.Store) -> None:
    def identity(**fields: str) -> str:
        return store.namespace(fields, layers=1, slice_bytes=64).id

    made = [identity(ab="c"), identity(a="bc"), identity(a="b", c=""), identity(a="b", b="")]
    assert len(set(made)) == len(made)


def test_no_field_of_a_namespace_becomes_a_path(tmp_path: Path) -> None:
    folder = tmp_path / "inside" / "kv"
    with dalsegno.open(folder, capacity="64MiB", segment="1MiB", index="lsm") as store:
        for text in HOSTILE:
            space = store.namespace({text: text}, layers=1, slice_bytes=64)
            space.put_batch(chain(2), [bytes(64)] * 2)
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]
    assert [path.name for path in (tmp_path / "inside").iterdir()] == ["kv"]
    for path in folder.iterdir():
        assert NAMES.fullmatch(path.name), path
        assert path.is_file()


def test_only_the_owner_may_read_the_files_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with dalsegno.open(tmp_path / "kv", capacity="64MiB", segment="1MiB", index="lsm") as store:
            open_namespace(store, "a").put_batch(HASHES, bytes_of(1))
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "kv").iterdir()}
    assert any(name.startswith("index-") for name in modes)
    assert set(modes.values()) == {0o600}, modes
    assert stat.S_IMODE((tmp_path / "kv").stat().st_mode) == 0o700
