"""Memory that goes through the border: kinds of buffers, pieces, alignment, wrong ones, release."""

from __future__ import annotations

import array
import ctypes
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from tests.unit.stores import chain, open_store

import dalsegno

LAYERS, SLICE_BYTES = 4, 4096
BLOCK_BYTES = LAYERS * SLICE_BYTES

Make = Callable[[bytes], Any]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[dalsegno.Store]:
    with open_store(tmp_path / "store") as store:
        yield store


@pytest.fixture
def namespace(store: dalsegno.Store) -> dalsegno.Namespace:
    return store.namespace({"model": "m"}, layers=LAYERS, slice_bytes=SLICE_BYTES)


def in_numpy(data: bytes) -> Any:
    return np.frombuffer(data, np.uint8).copy()


def in_halves(data: bytes) -> Any:
    """An array of two dimensions and of two-byte numbers."""
    return np.frombuffer(data, np.float16).copy().reshape(LAYERS, -1)


def in_a_column(data: bytes) -> Any:
    """A contiguous part of a larger array, as a row of an engine's cache is."""
    rows = np.zeros((3, BLOCK_BYTES), np.uint8)
    rows[1] = np.frombuffer(data, np.uint8)
    return rows[1]


def in_mapped_memory(data: bytes) -> Any:
    """Memory that starts on a page, as direct I/O wants it."""
    mapped = mmap.mmap(-1, len(data))
    mapped[:] = data
    return memoryview(mapped)


def off_by_one(data: bytes) -> Any:
    """Memory that starts where no device can read it to."""
    mapping = mmap.mmap(-1, len(data) + 1)
    mapping[1:] = data
    return memoryview(mapping)[1:]


def in_pieces(data: bytes) -> Any:
    """One buffer per layer, as engines keep them."""
    return [bytearray(data[at : at + SLICE_BYTES]) for at in range(0, len(data), SLICE_BYTES)]


def in_odd_pieces(data: bytes) -> Any:
    """Pieces whose borders are no borders of layers, one of them empty, of several kinds."""
    return (bytearray(data[:1]), in_numpy(data[1:6001]), bytearray(), in_mapped_memory(data[6001:]))


KINDS: list[Make] = [
    bytearray,
    lambda data: memoryview(bytearray(data)),
    lambda data: array.array("i", data),
    in_numpy,
    in_halves,
    in_a_column,
    in_mapped_memory,
    off_by_one,
    in_pieces,
    in_odd_pieces,
]
NAMES = ["bytearray", "memoryview", "array", *(make.__name__ for make in KINDS[3:])]


def content(block: Any) -> bytes:
    parts: Sequence[Any] = block if isinstance(block, list | tuple) else [block]
    return b"".join(memoryview(part).tobytes() for part in parts)


@pytest.mark.parametrize("timeout_s", [None, 60.0], ids=["in place", "staged"])
@pytest.mark.parametrize("make", KINDS, ids=NAMES)
def test_every_kind_of_buffer_is_written_and_filled(
    make: Make, timeout_s: float | None, namespace: dalsegno.Namespace
) -> None:
    data = [os.urandom(BLOCK_BYTES) for _ in range(3)]
    given = [make(one) for one in data]
    assert namespace.put_batch(chain(3), given, timeout_s=timeout_s).stored == 3
    assert [content(one) for one in given] == data
    out = [make(bytes(BLOCK_BYTES)) for _ in data]
    assert namespace.get_batch(chain(3), out, timeout_s=timeout_s) == 3
    assert [content(one) for one in out] == data
    again = [make(bytes(BLOCK_BYTES)) for _ in data]
    order = chain(3)[::-1]
    assert namespace.get_each(order, again, timeout_s=timeout_s) == [True] * 3
    assert [content(one) for one in again] == data[::-1]


def test_regression_a_ctypes_array_is_memory(namespace: dalsegno.Namespace) -> None:
    """Its buffer has no strides, which the buffer protocol allows for contiguous memory."""
    data = os.urandom(BLOCK_BYTES)
    kind = ctypes.c_ubyte * BLOCK_BYTES
    assert namespace.put_batch(chain(1), [kind.from_buffer_copy(data)]).stored == 1
    out = kind()
    assert namespace.get_batch(chain(1), [out]) == 1
    assert bytes(out) == data


def test_read_only_memory_can_be_put(namespace: dalsegno.Namespace) -> None:
    frozen: Any = np.frombuffer(os.urandom(BLOCK_BYTES), np.uint8)
    blocks = [os.urandom(BLOCK_BYTES), memoryview(bytes(BLOCK_BYTES)), frozen]
    assert namespace.put_batch(chain(3), blocks).stored == 3


def test_the_rows_of_one_array_are_blocks(namespace: dalsegno.Namespace) -> None:
    rows: Any = np.frombuffer(os.urandom(5 * BLOCK_BYTES), np.uint8).reshape(5, LAYERS, -1)
    assert namespace.put_batch(chain(5), rows).stored == 5
    out: Any = np.zeros_like(rows)
    assert namespace.get_batch(chain(5), out) == 5
    np.testing.assert_array_equal(out, rows)


def test_aligned_memory_is_used_in_place_and_other_memory_is_not(tmp_path: Path) -> None:
    with dalsegno.open(tmp_path / "store", capacity="16MiB", staging="16MiB", dram=0) as store:
        if not store.stats()["io_direct"]:
            pytest.skip("this file system has no direct I/O, so nothing needs alignment")
        namespace = store.namespace({}, layers=1, slice_bytes=BLOCK_BYTES)
        aligned = [in_mapped_memory(os.urandom(BLOCK_BYTES))]
        counter: Literal["staged_write_bytes", "staged_read_bytes"]
        for call, counter in (
            (namespace.put_batch, "staged_write_bytes"),
            (namespace.get_batch, "staged_read_bytes"),
        ):
            call(chain(1), aligned)
            staged = store.stats()["log"][counter]
            # Headers are always staged.
            assert staged <= 2 * 4096
            call(chain(1, counter), [off_by_one(content(aligned[0]))])
            call(chain(1), [off_by_one(bytes(BLOCK_BYTES))])
            assert store.stats()["log"][counter] >= staged + BLOCK_BYTES


# Wrong memory. Nothing is read or written, and the message says what is wrong.


def not_contiguous(size: int) -> Any:
    return np.zeros((size, 2), np.uint8)[:, 0]


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (bytearray(BLOCK_BYTES - 1), f"{BLOCK_BYTES - 1} bytes"),
        (bytearray(BLOCK_BYTES + 1), f"{BLOCK_BYTES + 1} bytes"),
        ([bytearray(SLICE_BYTES)] * 3, f"{3 * SLICE_BYTES} bytes"),
        ([], "0 bytes"),
        (not_contiguous(BLOCK_BYTES), "not contiguous"),
        ([bytearray(SLICE_BYTES), not_contiguous(3 * SLICE_BYTES)], "not contiguous"),
    ],
    ids=["short", "long", "few pieces", "no pieces", "not contiguous", "a piece not contiguous"],
)
def test_a_wrong_block_is_invalid(block: Any, words: str, namespace: dalsegno.Namespace) -> None:
    good = bytearray(BLOCK_BYTES)
    with pytest.raises(dalsegno.InvalidError, match=words):
        namespace.put_batch(chain(2), [good, block])
    assert namespace.probe(chain(2)) == 0
    namespace.put_batch(chain(2), [b"\1" * BLOCK_BYTES] * 2)
    if isinstance(block, list) and len(block) > 2:
        block = [bytearray(one) for one in block]
    with pytest.raises(dalsegno.InvalidError, match=words):
        namespace.get_batch(chain(2), [good, block])
    assert good == bytes(BLOCK_BYTES)


def test_memory_that_cannot_be_filled_is_invalid(namespace: dalsegno.Namespace) -> None:
    namespace.put_batch(chain(2), [bytes(BLOCK_BYTES)] * 2)
    frozen = in_numpy(bytes(BLOCK_BYTES))
    frozen.flags.writeable = False
    for block in (bytes(BLOCK_BYTES), memoryview(bytes(BLOCK_BYTES)), frozen):
        with pytest.raises(dalsegno.InvalidError, match="read-only"):
            namespace.get_batch(chain(1), [block])


def test_memory_that_overlaps_is_invalid(namespace: dalsegno.Namespace) -> None:
    namespace.put_batch(chain(2), [bytes(BLOCK_BYTES)] * 2)
    joined: Any = np.zeros(2 * BLOCK_BYTES, np.uint8)
    halves = [joined[:BLOCK_BYTES], joined[BLOCK_BYTES:]]
    assert namespace.get_batch(chain(2), halves) == 2
    shifted = [joined[:BLOCK_BYTES], joined[BLOCK_BYTES - 1 : -1]]
    for out in (shifted, shifted[::-1], [halves[0], halves[0]], [halves[1], list(shifted)[1]]):
        with pytest.raises(dalsegno.InvalidError, match="overlap"):
            namespace.get_batch(chain(2), out)
        with pytest.raises(dalsegno.InvalidError, match="overlap"):
            namespace.get_each(chain(2), out)
        with pytest.raises(dalsegno.InvalidError, match="overlap"):
            namespace.submit_get(chain(2), out)
    # The same memory may be put twice.
    assert namespace.put_batch(chain(2, "b"), [halves[0], halves[0]]).stored == 2


def holding_objects() -> dict[str, Any]:
    """Blocks of memory that holds addresses of Python objects, in every form that exports it."""
    objects: Any = np.full(BLOCK_BYTES // 8, "text", dtype=object)
    return {
        "array": objects,
        "memoryview": memoryview(objects),
        "field": np.zeros(BLOCK_BYTES // 16, dtype=[("number", "i8"), ("one", "O")]),
        "piece": [bytearray(BLOCK_BYTES - 64), objects[:8]],
        "ctypes": (ctypes.py_object * (BLOCK_BYTES // 8))(),
    }


@pytest.mark.parametrize("name", holding_objects())
def test_regression_memory_of_python_objects_is_refused(
    name: str, namespace: dalsegno.Namespace
) -> None:
    """Its bytes are addresses: stored they mean nothing, and filled they crash the process."""
    block, good = holding_objects()[name], bytearray(BLOCK_BYTES)
    slices: list[Any] = [bytearray(SLICE_BYTES), np.zeros(SLICE_BYTES // 8, dtype=object)]
    namespace.put_batch(chain(2), [b"\1" * BLOCK_BYTES] * 2)
    writer = namespace.layer_writer(chain(2, "b"))
    for call in (
        lambda: namespace.put_batch(chain(2, "c"), [good, block]),
        lambda: namespace.submit_put(chain(2, "c"), [good, block]),
        lambda: namespace.get_batch(chain(2), [good, block]),
        lambda: namespace.get_each(chain(2), [good, block]),
        lambda: namespace.submit_get(chain(2), [good, block]),
        lambda: namespace.load(chain(2), [good, block]),
        lambda: writer.store_layer(0, slices),
        lambda: writer.submit_store_layer(0, slices),
    ):
        with pytest.raises(dalsegno.InvalidError, match="holds Python objects"):
            call()
    assert good == bytes(BLOCK_BYTES)


def test_fields_and_numbers_whose_names_look_like_objects_are_memory(
    namespace: dalsegno.Namespace,
) -> None:
    named: Any = np.zeros(BLOCK_BYTES // 16, dtype=[("O", "i8"), ("Of O", "c8")])
    named["O"] = 7
    assert namespace.put_batch(chain(1), [named]).stored == 1
    out: Any = np.zeros_like(named)
    assert namespace.get_batch(chain(1), [out]) == 1
    np.testing.assert_array_equal(out, named)


def test_counts_must_agree(namespace: dalsegno.Namespace) -> None:
    block = bytes(BLOCK_BYTES)
    for put in (
        lambda: namespace.put_batch(chain(1), [block] * 2),
        lambda: namespace.put_batch(chain(3), [block] * 2, first=2),
        lambda: namespace.put_batch([], [block]),
        lambda: namespace.get_batch(chain(2), [bytearray(BLOCK_BYTES)]),
        lambda: namespace.get_each(chain(1), []),
        lambda: namespace.load(chain(2), [bytearray(BLOCK_BYTES)]),
        lambda: namespace.load(chain(1), [bytearray(SLICE_BYTES)]),
    ):
        with pytest.raises(dalsegno.InvalidError):
            put()
    assert namespace.probe(chain(3)) == 0


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_hash_has_32_bytes(length: int, namespace: dalsegno.Namespace) -> None:
    hashes, out = [*chain(1), bytes(length)], [bytearray(BLOCK_BYTES) for _ in range(2)]
    for call in (
        lambda: namespace.put_batch(hashes, out),
        lambda: namespace.get_batch(hashes, out),
        lambda: namespace.get_each(hashes, out),
        lambda: namespace.load(hashes, out),
        lambda: namespace.probe(hashes),
        lambda: namespace.contains(hashes),
        lambda: namespace.layer_writer(hashes),
        lambda: namespace.submit_put(hashes, out),
        lambda: namespace.submit_get(hashes, out),
        lambda: namespace.remove(hashes),
    ):
        with pytest.raises(dalsegno.InvalidError, match=f"32 bytes, got {length}"):
            call()
    assert namespace.probe(chain(1)) == 0


def test_a_block_that_is_not_a_buffer_or_hash_that_is_not_bytes_is_a_type_error(
    namespace: dalsegno.Namespace,
) -> None:
    block: Any
    for block in ("text", None, 5, [1, 2], object()):
        with pytest.raises(TypeError):
            namespace.put_batch(chain(1), [block])
    one: Any
    for one in ("a" * 32, bytearray(32), None, 7):
        with pytest.raises(TypeError):
            namespace.probe([one])


def test_an_empty_request_does_nothing(namespace: dalsegno.Namespace) -> None:
    assert namespace.put_batch([], []).kept == []
    assert namespace.put_batch(chain(2), [], first=2).kept == []
    assert namespace.probe([]) == 0
    assert namespace.contains([]) == []
    assert namespace.get_batch([], []) == 0
    assert namespace.get_each([], []) == []
    assert namespace.load([], []).wait_layer(0)
    assert namespace.remove([]) == 0
    assert namespace.layer_writer([]).commit() == 0


# Release: Python says BufferError as long as somebody holds on to memory.


@contextmanager
def lent() -> Iterator[list[Any]]:
    """Two blocks' memory, which Python takes back in the end: it must be free by then."""
    growing = bytearray(BLOCK_BYTES)
    mapped = mmap.mmap(-1, BLOCK_BYTES)
    view = memoryview(growing)
    yield [view, mapped]
    view.release()
    growing.extend(b"more")
    mapped.close()


def test_buffers_are_released_when_the_call_returns(namespace: dalsegno.Namespace) -> None:
    with lent() as memory:
        namespace.put_batch(chain(2), memory)
        namespace.get_batch(chain(2), memory)
        namespace.get_each(chain(2, "none"), memory, timeout_s=0)
        with pytest.raises(dalsegno.InvalidError):
            namespace.get_batch(chain(1), memory)


def test_buffers_are_released_when_a_transfer_ends(namespace: dalsegno.Namespace) -> None:
    transfers: list[dalsegno.Transfer[Any]] = []
    with lent() as memory:
        for timeout_s in (None, 0, 60):
            transfers.append(namespace.submit_put(chain(2), memory, timeout_s=timeout_s))
            transfers.append(namespace.submit_get(chain(2), memory, timeout_s=timeout_s))
        transfers.append(namespace.submit_get(chain(1), memory))
        transfers[0].cancel()
        for transfer in transfers:
            assert transfer.wait(60)
