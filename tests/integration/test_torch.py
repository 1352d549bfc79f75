"""Torch tensors as blocks: read and filled where they lie, or refused with the way out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.stores import chain, open_store

import dalsegno

torch: Any = pytest.importorskip("torch", reason="torch is not in this environment")

pytestmark = pytest.mark.engine
LAYERS, SLICE_BYTES = 4, 4096
BLOCK_BYTES = LAYERS * SLICE_BYTES


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[dalsegno.Namespace]:
    with open_store(tmp_path / "store") as store:
        yield store.namespace({"model": "m"}, layers=LAYERS, slice_bytes=SLICE_BYTES)


def tensor(data: bytes, dtype: Any = None) -> Any:
    """A tensor of two dimensions with these bytes; of another type, whatever values they make."""
    plain = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return plain.view(dtype or torch.uint8).view(LAYERS, -1)


def content(block: Any) -> bytes:
    parts = block if isinstance(block, list) else [block]
    flat = (part.detach().reshape(-1).view(torch.uint8) for part in parts)
    return b"".join(part.numpy().tobytes() for part in flat)


@pytest.mark.parametrize("timeout_s", [None, 60.0], ids=["in place", "staged"])
@pytest.mark.parametrize("name", ["uint8", "float32", "bfloat16", "float8_e4m3fn", "bool"])
def test_tensors_of_every_type_are_written_and_filled(
    name: str, timeout_s: float | None, namespace: dalsegno.Namespace
) -> None:
    dtype = getattr(torch, name)
    data = [os.urandom(BLOCK_BYTES) for _ in range(3)]
    given = [tensor(one, dtype) for one in data]
    assert namespace.put_batch(chain(3), given, timeout_s=timeout_s).stored == 3
    assert [content(one) for one in given] == data
    out = [tensor(bytes(BLOCK_BYTES), dtype) for _ in data]
    places = [one.data_ptr() for one in out]
    assert namespace.get_batch(chain(3), out, timeout_s=timeout_s) == 3
    assert [content(one) for one in out] == data
    assert [one.data_ptr() for one in out] == places
    assert out[0].dtype == dtype


def test_the_rows_of_one_tensor_and_pieces_of_several_are_blocks(
    namespace: dalsegno.Namespace,
) -> None:
    data = os.urandom(3 * BLOCK_BYTES)
    rows = torch.frombuffer(bytearray(data), dtype=torch.bfloat16).view(3, LAYERS, -1)
    assert namespace.put_batch(chain(3), rows).stored == 3
    out = torch.zeros_like(rows)
    assert namespace.get_batch(chain(3), out) == 3
    assert content(out) == data
    pieces: list[list[Any]] = [
        [torch.zeros(SLICE_BYTES // 4), bytearray(SLICE_BYTES), torch.zeros(2, SLICE_BYTES // 4)]
        for _ in range(3)
    ]
    assert namespace.get_batch(chain(3), pieces) == 3
    assert content(pieces[1][0]) == data[BLOCK_BYTES:][:SLICE_BYTES]
    assert content(pieces[1][2]) == data[BLOCK_BYTES:][2 * SLICE_BYTES : BLOCK_BYTES]


def test_layers_and_transfers_take_tensors(namespace: dalsegno.Namespace) -> None:
    data = [os.urandom(SLICE_BYTES) for _ in range(LAYERS)]
    writer = namespace.layer_writer(chain(1))
    for layer, one in enumerate(data):
        writer.store_layer(layer, [torch.frombuffer(bytearray(one), dtype=torch.bfloat16)])
    assert writer.commit() == 1
    out = tensor(bytes(BLOCK_BYTES), torch.float32)
    transfer = namespace.submit_get(chain(1), [out])
    assert transfer.wait(60)
    assert transfer.result() == [True]
    assert content(out) == b"".join(data)


def test_a_parameter_can_be_put_but_not_filled(namespace: dalsegno.Namespace) -> None:
    parameter = torch.nn.Parameter(torch.ones(BLOCK_BYTES // 4))
    assert namespace.put_batch(chain(1), [parameter]).stored == 1
    with pytest.raises(dalsegno.InvalidError, match=r"requires grad.*give tensor\.detach\(\)"):
        namespace.get_batch(chain(1), [parameter])
    out = torch.nn.Parameter(torch.zeros(BLOCK_BYTES // 4))
    assert namespace.get_batch(chain(1), [out.detach()]) == 1
    assert out.eq(1).all()


def conjugated() -> Any:
    return torch.ones(BLOCK_BYTES // 8, dtype=torch.complex64).conj()


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "transposed": (lambda: torch.zeros(64, 64).T, "not contiguous"),
    "every second": (lambda: torch.zeros(2 * BLOCK_BYTES, dtype=torch.uint8)[::2], "not contig"),
    "a piece": (lambda: [torch.zeros(64, 32), torch.zeros(32, 64).T], "not contiguous"),
    "sparse": (lambda: torch.zeros(64, 64).to_sparse(), "not contiguous"),
    "elsewhere": (lambda: torch.zeros(64, 64, device="meta"), "on the device meta"),
    "conjugated": (conjugated, "cannot be used in place: .*conjugate"),
    "too short": (lambda: torch.zeros(64, 63), f"{4 * 64 * 63} bytes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_tensor_without_bytes_in_memory_is_invalid(
    name: str, namespace: dalsegno.Namespace
) -> None:
    make, words = WRONG[name]
    good = torch.zeros(BLOCK_BYTES, dtype=torch.uint8)
    with pytest.raises(dalsegno.InvalidError, match=words):
        namespace.put_batch(chain(2), [good, make()])
    assert namespace.probe(chain(2)) == 0
    namespace.put_batch(chain(2), [b"\1" * BLOCK_BYTES] * 2)
    with pytest.raises(dalsegno.InvalidError, match=words):
        namespace.get_batch(chain(2), [good, make()])
    assert not good.any()


def without_memory(numbers: int, kept_bytes: int) -> Any:
    """A tensor whose storage was freed or shrunk behind it, as sharded training does."""
    tensor = torch.ones(numbers, dtype=torch.float32)
    tensor.untyped_storage().resize_(kept_bytes)
    return tensor


def short_views(numbers: int) -> dict[str, Any]:
    """Contiguous tensors of which some bytes are not there."""
    size = 4 * numbers
    view = torch.ones(2 * numbers, dtype=torch.float32)[numbers:]
    view.untyped_storage().resize_(2 * size - 1)
    parameter = torch.nn.Parameter(torch.ones(numbers), requires_grad=False)
    parameter.untyped_storage().resize_(0)
    return {
        "freed": without_memory(numbers, 0),
        "shrunk": without_memory(numbers, size - 1),
        "a view past the end": view,
        "a freed parameter": parameter,
        "a piece": [bytearray(size - 64), without_memory(16, 0)],
    }


@pytest.mark.parametrize("name", short_views(16))
def test_regression_a_tensor_whose_storage_is_too_small_is_invalid(
    name: str, namespace: dalsegno.Namespace
) -> None:
    """regression: zeros were stored for it, a hit filled nothing, or the process crashed."""
    block, part = short_views(BLOCK_BYTES // 4)[name], short_views(SLICE_BYTES // 4)[name]
    good, slices = bytearray(BLOCK_BYTES), [bytearray(SLICE_BYTES), part]
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
        with pytest.raises(dalsegno.InvalidError, match=r"storage has \d+ bytes.* needs \d+"):
            call()
    assert good == bytes(BLOCK_BYTES)
    assert namespace.probe(chain(2, "c")) == 0


def test_a_view_into_a_larger_storage_is_accepted(namespace: dalsegno.Namespace) -> None:
    memory = torch.arange(3 * BLOCK_BYTES // 4, dtype=torch.float32)
    middle = memory[BLOCK_BYTES // 4 : 2 * BLOCK_BYTES // 4]
    memory.untyped_storage().resize_(2 * BLOCK_BYTES)
    assert namespace.put_batch(chain(1), [middle]).stored == 1
    out = torch.zeros(BLOCK_BYTES // 4)
    assert namespace.get_batch(chain(1), [out]) == 1
    assert out.eq(middle).all()


def test_tensors_that_overlap_are_invalid(namespace: dalsegno.Namespace) -> None:
    memory = torch.zeros(2 * BLOCK_BYTES, dtype=torch.uint8)
    with pytest.raises(dalsegno.InvalidError, match="overlap"):
        namespace.get_batch(chain(2), [memory[:BLOCK_BYTES], memory[1 : BLOCK_BYTES + 1]])
