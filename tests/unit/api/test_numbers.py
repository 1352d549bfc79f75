"""Numbers that go through the border: what is out of range is refused with the argument's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.stores import chain, open_store

import dalsegno

LAYERS, SLICE_BYTES = 4, 4096
BLOCK_BYTES = LAYERS * SLICE_BYTES


@pytest.fixture
def store(tmp_path: Path) -> Iterator[dalsegno.Store]:
    with open_store(tmp_path / "store") as store:
        yield store


@pytest.fixture
def namespace(store: dalsegno.Store) -> dalsegno.Namespace:
    return store.namespace({"model": "m"}, layers=LAYERS, slice_bytes=SLICE_BYTES)


@pytest.mark.parametrize("number", [-1, 1 << 70])
def test_regression_a_number_out_of_range_is_invalid(
    number: int, namespace: dalsegno.Namespace, store: dalsegno.Store, tmp_path: Path
) -> None:
    """The message names the argument."""
    block, row = [bytearray(BLOCK_BYTES)], [bytearray(SLICE_BYTES)]
    writer = namespace.layer_writer(chain(1))
    calls: dict[str, list[Callable[[], object]]] = {
        "layer": [
            lambda: namespace.load(chain(1), block).wait_layer(number),
            lambda: namespace.load(chain(1), block).layer_ready(number),
            lambda: writer.store_layer(number, row),
            lambda: writer.submit_store_layer(number, row),
        ],
        "first": [
            lambda: namespace.put_batch(chain(1), block, first=number),
            lambda: namespace.submit_put(chain(1), block, first=number),
            lambda: namespace.layer_writer(chain(1), first=number),
        ],
        "count": [lambda: namespace.layer_writer(chain(1), count=number)],
        "layers": [lambda: store.namespace({}, layers=number, slice_bytes=1)],
        "slice_bytes": [lambda: store.namespace({}, layers=1, slice_bytes=number)],
        "element_bytes": [
            lambda: store.namespace({}, layers=1, slice_bytes=1, element_bytes=number)
        ],
        "offset": [lambda: dalsegno.inspect(tmp_path / "store", "store.meta", number)],
    }
    expected = f">= 0, got {number}$" if number < 0 else rf"at most \d+, got {number}$"
    for name, group in calls.items():
        for call in group:
            with pytest.raises(dalsegno.InvalidError, match=f"^{name} must be {expected}"):
                call()


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan")])
def test_regression_seconds_out_of_range_are_invalid(
    seconds: float, namespace: dalsegno.Namespace
) -> None:
    """The message names the argument."""
    block, row = [bytearray(BLOCK_BYTES)], [bytearray(SLICE_BYTES)]
    transfer, writer = namespace.submit_put(chain(1), block), namespace.layer_writer(chain(1, "b"))
    load = namespace.load(chain(1, "c"), [bytearray(BLOCK_BYTES)])
    for call in (
        lambda: transfer.wait(seconds),
        lambda: namespace.put_batch(chain(1), block, timeout_s=seconds),
        lambda: namespace.submit_put(chain(1), block, timeout_s=seconds),
        lambda: namespace.get_batch(chain(1), block, timeout_s=seconds),
        lambda: namespace.get_each(chain(1), block, timeout_s=seconds),
        lambda: namespace.submit_get(chain(1), block, timeout_s=seconds),
        lambda: namespace.load(chain(1), block, timeout_s=seconds),
        lambda: load.wait(seconds),
        lambda: load.wait_layer(0, timeout_s=seconds),
        lambda: writer.submit_commit(timeout_s=seconds),
        lambda: namespace.remove(chain(1), timeout_s=seconds),
        lambda: namespace.layer_writer(chain(1), timeout_s=seconds),
        lambda: writer.store_layer(0, row, timeout_s=seconds),
        lambda: writer.submit_store_layer(0, row, timeout_s=seconds),
        lambda: writer.commit(timeout_s=seconds),
    ):
        with pytest.raises(dalsegno.InvalidError, match=r"^timeout_s must be a finite number >= 0"):
            call()
