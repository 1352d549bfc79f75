"""What the tests of the integrations share. Nothing here imports an engine before it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.manual_store import ManualStore
    from tests.integration.tiers import Primary

    from dalsegno.integrations.lmcache.adapter import DalsegnoL2Adapter
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
def make_tier(tmp_path: Path, primary: Primary) -> Iterator[Callable[..., DalsegnoTier]]:
    """Opens tiers with the settings given, and shuts them down when the test is over."""
    from tests.integration import tiers

    with ExitStack() as opened:

        def make(path: Path = tmp_path / "store", **settings: Any) -> DalsegnoTier:
            tier = tiers.open_tier(path, primary.view, **settings)
            opened.callback(tier.shutdown)
            return tier

        yield make


@pytest.fixture(params=["native", "reference"])
def tier(
    request: pytest.FixtureRequest,
    make_tier: Callable[..., DalsegnoTier],
    monkeypatch: pytest.MonkeyPatch,
) -> DalsegnoTier:
    """A tier over the real store, and over the oracle."""
    from tests.contract import reference_store
    from tests.integration import tiers

    from dalsegno.integrations.common import opening

    if request.param == "reference":
        opener = reference_store.Store
        monkeypatch.setattr(opening, "open_store", lambda path, settings: opener(path, "{}"))
    return make_tier(of=tiers.config(groups=2))


@pytest.fixture
def manual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ManualStore:
    """The store of every tier of this test; its transfers end when the test says so."""
    from tests.integration.manual_store import ManualStore

    from dalsegno.integrations.common import opening

    store = ManualStore(str(tmp_path / "manual"))
    monkeypatch.setattr(opening, "open_store", lambda path, settings: store)
    return store


@pytest.fixture
def manual_tier(manual: ManualStore, make_tier: Callable[..., DalsegnoTier]) -> DalsegnoTier:
    """A tier over `manual`."""
    return make_tier()


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
