"""A store with one transfer thread and one place in its queue, so that a second transfer waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dalsegno

MIB = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[dalsegno.Store]:
    settings = {"transfer_threads": 1, "transfer_queue": 1, "dram": 0}
    with dalsegno.open(tmp_path / "s", capacity="512MiB", staging="16MiB", **settings) as store:
        yield store


@pytest.fixture
def namespace(store: dalsegno.Store) -> dalsegno.Namespace:
    return store.namespace({"model": "m"}, layers=2, slice_bytes=MIB // 2)
