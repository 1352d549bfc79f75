"""The contract: damaged, lost or misplaced bytes are misses with a cause."""

from __future__ import annotations

import os
import shutil

import pytest
from tests.contract.expect import buffers, expect, expect_right_or_absent
from tests.contract.subjects import Box, chain, content, contents

import dalsegno

SLICE_BYTES = 5000
BLOCK_BYTES = 2 * SLICE_BYTES


@pytest.fixture
def alone(box: Box) -> list[bytes]:
    """Hashes of four blocks that are stored, each put alone."""
    hashes = chain(4)
    with box.namespace(slice_bytes=SLICE_BYTES) as namespace:
        for index in range(4):
            blocks = [content(hashes[index], BLOCK_BYTES)]
            assert namespace.put_batch(hashes, blocks, first=index).stored == 1
    return hashes


@pytest.fixture(autouse=True)
def _damaged(box: Box) -> None:
    """The files that these tests leave need not be clean."""
    box.damaged = True


def misses(store: dalsegno.Store) -> int:
    return sum(store.stats()["log"]["misses"].values())


def test_a_damaged_block_is_a_miss_with_a_cause_and_can_be_put_again(
    alone: list[bytes], box: Box
) -> None:
    box.damage(alone[1])
    assert box.subject.verify(box.path) != []
    with box.open() as store:
        namespace = store.namespace({"model": "m"}, layers=2, slice_bytes=SLICE_BYTES)
        assert namespace.get_batch(alone, buffers(namespace, 4)) == 1
        assert misses(store) == 1
        out = buffers(namespace, 4)
        assert namespace.get_each(alone, out) == [True, False, True, True]
        expect(namespace, alone, {alone[0], alone[2], alone[3]})
        assert namespace.put_batch(alone, contents(alone, BLOCK_BYTES)).stored == 1
        expect(namespace, alone, alone)
    with box.namespace(slice_bytes=SLICE_BYTES) as namespace:
        assert expect_right_or_absent(namespace, alone)[0]


def test_a_damaged_layer_is_never_ready_and_its_block_is_a_miss(
    alone: list[bytes], box: Box
) -> None:
    box.damage(alone[0])
    with box.namespace(slice_bytes=SLICE_BYTES) as namespace:
        out = buffers(namespace, 1)
        load = namespace.load(alone[:1], out)
        # The bit is in layer 0. Whether layer 1 is delivered is the store's choice.
        if load.wait_layer(1, timeout_s=60):
            assert out[0][SLICE_BYTES:] == content(alone[0], BLOCK_BYTES)[SLICE_BYTES:]
        assert load.wait_layer(0, timeout_s=60) is False
        assert load.wait(60)
        assert load.result() == 0


def test_lost_data_is_a_miss_and_the_store_keeps_working(alone: list[bytes], box: Box) -> None:
    box.lose()
    with box.namespace(slice_bytes=SLICE_BYTES) as namespace:
        expect(namespace, alone, ())
        assert namespace.put_batch(alone, contents(alone, BLOCK_BYTES)).stored == 4
        expect(namespace, alone, alone)


def test_blocks_past_the_end_of_a_truncated_file_are_misses(alone: list[bytes], filed: Box) -> None:
    file, start, _ = filed.subject.place(filed.path, alone[2])
    os.truncate(file, start + 4096 + 100)
    with filed.namespace(slice_bytes=SLICE_BYTES) as namespace:
        assert expect_right_or_absent(namespace, alone) == [True, True, False, False]
        assert namespace.put_batch(alone, contents(alone, BLOCK_BYTES)).kept == [True] * 4
        expect(namespace, alone, alone)


def test_damage_under_an_open_store_is_a_miss(alone: list[bytes], filed: Box) -> None:
    file, _, end = filed.subject.place(filed.path, alone[1])
    with filed.open() as store:
        namespace = store.namespace({"model": "m"}, layers=2, slice_bytes=SLICE_BYTES)
        with file.open("r+b") as stream:
            # The last layer of the block, without its padding.
            stream.seek(end - 8192)
            stream.write(b"rot")
            stream.flush()
            os.fsync(stream.fileno())
        assert namespace.get_each(alone, buffers(namespace, 4)) == [True, False, True, True]
        assert store.stats()["log"]["misses"]["slice_checksum"] == 1
        assert store.stats()["quarantined_blocks"] == 1


def test_a_file_truncated_under_an_open_store_is_a_miss(alone: list[bytes], filed: Box) -> None:
    file, start, _ = filed.subject.place(filed.path, alone[1])
    with filed.namespace(slice_bytes=SLICE_BYTES) as namespace:
        os.truncate(file, start + 4096)
        assert expect_right_or_absent(namespace, alone) == [True, False, False, False]


def overwrite(filed: Box, victim: bytes, other: bytes, *, skip_bytes: int = 0) -> None:
    """Puts the bytes of one block's extent into that of another, all behind the first few."""
    file, start, end = filed.subject.place(filed.path, victim)
    _, source, _ = filed.subject.place(filed.path, other)
    raw = bytearray(file.read_bytes())
    raw[start + skip_bytes : end] = raw[source + skip_bytes : source + end - start]
    file.write_bytes(raw)


def test_bytes_from_another_offset_are_never_returned(alone: list[bytes], filed: Box) -> None:
    overwrite(filed, alone[1], alone[3])
    with filed.namespace(slice_bytes=SLICE_BYTES) as namespace:
        found = expect_right_or_absent(namespace, alone)
        assert not found[1]
        assert found[3]


def test_payload_of_another_block_is_never_returned(alone: list[bytes], filed: Box) -> None:
    overwrite(filed, alone[1], alone[3], skip_bytes=4096)
    with filed.namespace(slice_bytes=SLICE_BYTES) as namespace:
        assert expect_right_or_absent(namespace, alone) == [True, False, True, True]


def test_a_file_of_another_store_is_never_used(
    alone: list[bytes], filed: Box, tmp_path: os.PathLike[str]
) -> None:
    file, _, _ = filed.subject.place(filed.path, alone[0])
    other = Box(filed.subject, filed.path.with_name("other"))
    with other.namespace(slice_bytes=SLICE_BYTES) as namespace:
        namespace.put_batch(alone, [bytes(BLOCK_BYTES)] * 4)
    shutil.copy(other.path / file.name, file)
    with filed.namespace(slice_bytes=SLICE_BYTES) as namespace:
        assert expect_right_or_absent(namespace, alone) == [False] * 4


def test_files_with_swapped_names_are_never_used(filed: Box) -> None:
    hashes = chain(160)
    with filed.namespace(slice_bytes=SLICE_BYTES) as namespace:
        for first in range(0, 160, 20):
            part = contents(hashes[first : first + 20], BLOCK_BYTES)
            assert namespace.put_batch(hashes, part, first=first).stored == 20
    one, other = sorted(filed.path.glob("segment-*.log"))[:2]
    aside = filed.path.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    with filed.namespace(slice_bytes=SLICE_BYTES) as namespace:
        found = expect_right_or_absent(namespace, hashes)
        assert not all(found)
        report = namespace.put_batch(hashes, contents(hashes, BLOCK_BYTES))
        assert report.kept == [True] * 160
        expect(namespace, hashes, hashes)


@pytest.mark.parametrize("name", ["store.meta", "namespace-*.meta", "LOCK"])
@pytest.mark.parametrize("how", ["lost", "zeroed", "cut"])
def test_damaged_metadata_files_are_recreated(
    name: str, how: str, alone: list[bytes], filed: Box
) -> None:
    for file in filed.path.glob(name):
        if how == "lost":
            file.unlink()
        elif how == "cut":
            os.truncate(file, file.stat().st_size // 2)
        else:
            file.write_bytes(bytes(file.stat().st_size))
    with filed.namespace(slice_bytes=SLICE_BYTES) as namespace:
        expect(namespace, alone, alone)
    assert filed.subject.verify(filed.path) == []


def test_unknown_files_are_not_changed(alone: list[bytes], filed: Box) -> None:
    foreign = {
        "notes.txt": b"mine",
        "segment-1.log": b"old",
        "namespace-x.meta": b"",
        "a.tmp": b"b",
    }
    for name, text in foreign.items():
        (filed.path / name).write_bytes(text)
    for _ in range(2):
        with filed.namespace(slice_bytes=SLICE_BYTES) as namespace:
            expect(namespace, alone, alone)
    assert {name: (filed.path / name).read_bytes() for name in foreign} == foreign
    assert filed.subject.verify(filed.path) == []
