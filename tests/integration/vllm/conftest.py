"""Tiers for the tests of vLLM's route, closed when a test ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
from tests.dose import dose

if TYPE_CHECKING:
    from tests.integration.fake_gpu import FakeGpu
    from tests.integration.manual_store import ManualStore
    from tests.integration.vllm.direct_rig import Rig
    from tests.integration.vllm.tiers import Primary

    from dalsegno.integrations.vllm.tier import DalsegnoTier


@pytest.fixture(scope="session", autouse=True)
def _equal_hashes() -> Iterator[None]:
    """Gives engines of vLLM 0.28 equal hashes, as its users must."""
    from dalsegno.integrations.vllm import compat

    with pytest.MonkeyPatch.context() as patch:
        if compat.hashes_are_random():
            patch.setenv("PYTHONHASHSEED", "0")
        yield


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model, which no test changes."""
    from tests.integration.vllm import small_model

    return small_model.prepare(tmp_path_factory.mktemp("small") / "model")


@pytest.fixture(scope="session")
def computed(tmp_path_factory: pytest.TempPathFactory, small: Path) -> list[list[int]]:
    """What an engine on one core answers to each question when it computes every token."""
    from tests.integration.vllm.engines import QUESTIONS, engines

    with engines(tmp_path_factory.mktemp("computed"), small, oracle=None) as alone:
        return [alone["oracle"].ask()["token_ids"] for _ in QUESTIONS]


@pytest.fixture(params=["one-rank", "two-ranks", "gpu", *["two-gpus"] * dose(0, 1)])
def make_rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Makes small engines around the direct path, and closes them."""
    from tests.integration.fake_gpu import FakeGpu
    from tests.integration.vllm.direct_rig import Rig

    opened: list[Rig] = []
    # Other copies are late with each test.
    gpu = FakeGpu(crc32(request.node.name.encode())) if "gpu" in request.param else None

    def make(**settings: Any) -> Rig:
        ranks = 2 if "two" in request.param else 1
        rig = Rig(tmp_path / f"store{len(opened)}", ranks=ranks, gpu=gpu, **settings)
        opened.append(rig)
        return rig

    yield make
    for rig in opened:
        rig.close()
    if gpu is not None:
        gpu.close()


@pytest.fixture
def gpu() -> Iterator[FakeGpu]:
    """A GPU that does not exist."""
    from tests.integration.fake_gpu import FakeGpu

    fake = FakeGpu()
    yield fake
    fake.close()


@pytest.fixture
def primary() -> Iterator[Primary]:
    """A primary tier; the test fails if anything still refers to it afterwards."""
    from tests.integration.vllm import tiers

    memory = tiers.Primary(tiers.ROWS)
    yield memory
    memory.free()


@pytest.fixture
def make_tier(tmp_path: Path, primary: Primary) -> Iterator[Callable[..., DalsegnoTier]]:
    """Opens tiers with the settings given, and shuts them down when the test is over."""
    from tests.integration.vllm import tiers

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
    from tests.integration.vllm import tiers

    from dalsegno.integrations.common import opening

    if request.param == "reference":
        opener = reference_store.Store
        monkeypatch.setattr(opening, "open_store", lambda path, settings: opener(path, "{}"))
    return make_tier(of=tiers.config(groups=2))


@pytest.fixture
def manual_tier(manual: ManualStore, make_tier: Callable[..., DalsegnoTier]) -> DalsegnoTier:
    """A tier over `manual`."""
    return make_tier()


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """vLLM's configuration of a small model."""
    from tests.integration.vllm import identities

    folder = tmp_path_factory.mktemp("model")
    identities.write_config(folder)
    return identities.create(folder)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's folder. Engines begin after every change of it."""
    from tests.integration.vllm import identities

    from dalsegno.integrations.common import file_times

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(file_times, "engine_start_ns", lambda: identities.AFTER_NS)
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"hidden_size": 8}))
    return path


@pytest.fixture
def config(made: Any, folder: Path) -> Any:
    """vLLM's configuration of an engine for that folder."""
    from tests.integration.vllm import identities

    return identities.in_folder(made, folder)
