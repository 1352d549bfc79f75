"""What the tests of the integrations share. Nothing here imports an engine before it is used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.tiers import ManualStore, Primary

    from dalsegno.integrations.vllm.tier import DalsegnoTier


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps hashes of weights with the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def primary() -> Iterator[Primary]:
    """A primary tier; the test fails if anything still refers to it afterwards."""
    from tests.integration import tiers

    memory = tiers.Primary(tiers.ROWS)
    yield memory
    memory.free()


@pytest.fixture
def manual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ManualStore:
    """A store whose transfers end when the test says so."""
    from tests.integration import tiers

    from dalsegno.integrations.vllm import backend

    store = tiers.ManualStore(str(tmp_path / "manual"))
    monkeypatch.setattr(backend, "open_store", lambda path, settings: store)
    return store


@pytest.fixture(params=["native", "reference"])
def tier(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    primary: Primary,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[DalsegnoTier]:
    """A tier over the real store, and over the oracle."""
    from tests.contract import reference_store
    from tests.integration import tiers

    from dalsegno.integrations.vllm import backend

    if request.param == "reference":
        opener = reference_store.Store
        monkeypatch.setattr(backend, "open_store", lambda path, settings: opener(path, "{}"))
    made = tiers.make_tier(tmp_path / "store", primary, tiers.config(groups=2))
    yield made
    made.shutdown()
