"""Adapters for the tests of LMCache's route, closed when a test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dalsegno.integrations.lmcache.adapter import DalsegnoL2Adapter


@pytest.fixture
def make_adapter(tmp_path: Path) -> Iterator[Callable[..., DalsegnoL2Adapter]]:
    """Opens LMCache's adapter with the settings given, and closes it when the test is over."""
    from dalsegno.integrations.lmcache import DalsegnoL2Adapter

    with ExitStack() as opened:

        def make(path: Path = tmp_path / "store", **settings: Any) -> DalsegnoL2Adapter:
            given = {"path": str(path), "capacity": "64MiB", **settings}
            if "model" not in settings:
                given.setdefault("weights_fingerprint", "w")
            adapter = DalsegnoL2Adapter(given)
            opened.callback(adapter.close)
            return adapter

        yield make
