"""Fixtures that the tests of several integrations use. No engine is imported before its use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.manual_store import ManualStore


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps hashes of weights with the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def manual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ManualStore:
    """The store of every tier of this test; its transfers end when the test says so."""
    from tests.integration.manual_store import ManualStore

    from dalsegno.integrations.common import opening

    store = ManualStore(str(tmp_path / "manual"))
    monkeypatch.setattr(opening, "open_store", lambda path, settings: store)
    return store
