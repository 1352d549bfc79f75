"""Whether lookups load, from measured loads and a profile of computing."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("lmcache")

from tests.contract.reference_store import wait_until
from tests.integration.lmcache.objects import OBJECT_BYTES, Driver, filled, keys
from tests.integration.lmcache.server import TOKENS, client, serving

from dalsegno import profiles
from dalsegno.integrations import lmcache as integration
from dalsegno.integrations.lmcache import costs
from dalsegno.integrations.lmcache.costs import Asked, found, sizes_of
from dalsegno.integrations.lmcache.spaces import Spaces

if TYPE_CHECKING:
    from dalsegno.integrations.lmcache import DalsegnoL2Adapter

pytestmark = pytest.mark.engine

Make = Callable[..., "DalsegnoL2Adapter"]
HAS_POLICIES = importlib.util.find_spec("lmcache.v1.multiprocess.kv_load_policy") is not None
needs_policies = pytest.mark.skipif(not HAS_POLICIES, reason="LMCache 0.5.6 has no load policies")
CHUNK_TOKENS, MODEL = 64, "org/model"
FAST, SLOW = 1e-9, 1.0


@pytest.fixture(autouse=True)
def _only_own_adapters() -> Iterator[None]:
    """Forgets the adapters of other tests, which are closed."""
    costs.opened.clear()
    yield
    costs.opened.clear()


def profile(folder: Path, token_s: float, **engine: str) -> str:
    """Writes the profile of an engine that computes a token in so many seconds."""
    kind = {"model": MODEL, "layers": "4", **engine}
    prior = profiles.ComputePrior(1e-9, token_s, 1e-15, 1e-15)
    written = profiles.Profile(kind, prior, folder)
    written.save(written.model())
    assert written.path is not None
    return str(written.path)


def asked(tokens: int = 4 * CHUNK_TOKENS, computed: int = 0, model: str = MODEL) -> Asked:
    """A lookup of four chunks."""
    return Asked(model, tokens, computed, CHUNK_TOKENS)


def declined(adapter: DalsegnoL2Adapter) -> int:
    """How many lookups were declined."""
    return int(adapter.report_status()["counters"]["load_declined"])


def warm(adapter: DalsegnoL2Adapter) -> Driver:
    """Stores four objects and loads them, so that a tier is known and measured."""
    driver, ours = Driver(adapter), keys(4)
    adapter._costs.should_load(asked())
    driver.store(ours, filled(ours))
    assert driver.lookup(ours) == driver.holds(ours) == [True] * 4
    return driver


def test_loading_is_declined_where_computing_is_faster(make_adapter: Make, tmp_path: Path) -> None:
    fast = make_adapter(tmp_path / "fast", profile=profile(tmp_path / "1", FAST), load_guard_s=1e-6)
    slow = make_adapter(tmp_path / "slow", profile=profile(tmp_path / "2", SLOW))
    for adapter, loads in ((fast, False), (slow, True)):
        assert adapter._costs.should_load(asked()), "nothing is known of the tier"
        warm(adapter)
        assert adapter._costs.should_load(asked()) == loads
        assert declined(adapter) == (0 if loads else 1)
        # The engine has all of it: nothing would be loaded.
        assert adapter._costs.should_load(asked(computed=4 * CHUNK_TOKENS))
        assert adapter._costs.should_load(asked(model="org/other"))
    patient = make_adapter(
        tmp_path / "patient", profile=profile(tmp_path / "3", FAST), load_guard_s=600
    )
    warm(patient)
    assert patient._costs.should_load(asked()), "the guard allows it"


def test_a_tier_that_became_fast_is_found_by_reads_for_which_nobody_waits(
    make_adapter: Make, tmp_path: Path
) -> None:
    adapter = make_adapter(profile=profile(tmp_path / "1", SLOW))
    warm(adapter)
    decider = adapter._costs._decider
    assert decider is not None
    for number in range(8):
        decider.begin_bytes(-1 - number, {"log": 4 * OBJECT_BYTES})
        decider.end_load(-1 - number, 1000.0, is_whole=True)
    for asked_before in range(20):  # noqa: B007 - used below
        if adapter._costs.should_load(asked()):
            break
        rereads = adapter._costs._rereads
        assert rereads is not None
        until = time.monotonic() + 10
        while rereads._read is not None and time.monotonic() < until:
            rereads.take()
    assert 1 <= asked_before <= 10
    assert declined(adapter) == asked_before


def test_loads_are_measured_by_tier(make_adapter: Make, tmp_path: Path) -> None:
    adapter = make_adapter(profile=profile(tmp_path / "1", SLOW))
    driver = warm(adapter)
    decider = adapter._costs._decider
    assert decider is not None
    assert decider.model.explain()["log"]["measured"] == 1
    driver.load(keys(4, "b"), filled(keys(4)))
    assert decider.model.explain()["log"]["measured"] == 1, "a miss is no measurement"
    assert adapter._costs._seen[MODEL][:2] == ("log", float(OBJECT_BYTES))
    opened = adapter._backend.current
    assert opened is not None
    assert isinstance(opened.namespaces, Spaces)
    (space,) = opened.namespaces.of_model(MODEL)
    gone = driver.adapter._hasher.hashes(keys(2, "c"))
    assert sizes_of(space, gone) == {"log": 2 * OBJECT_BYTES}


def test_without_a_profile_every_hit_is_loaded_and_the_log_says_so_once(
    make_adapter: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from dalsegno.integrations.lmcache import adapter as module

    said: list[str] = []
    module.logger.warning, usual = (
        lambda text, *given: said.append(text % given),
        (module.logger.warning),
    )
    try:
        for name, given in (("none", {}), ("missing", {"profile": MODEL})):
            adapter = make_adapter(tmp_path / name, **given)
            warm(adapter)
            assert all(adapter._costs.should_load(asked()) for _ in range(200))
    finally:
        module.logger.warning = usual
    assert len(said) == 2
    assert '"profile"' in said[0]
    assert MODEL in said[1]


def test_a_profile_is_found_by_its_path_or_the_newest_one_by_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DALSEGNO_PROFILES", str(tmp_path))
    assert not found(MODEL)
    path = profile(tmp_path, FAST, engine="vllm 1")
    newest = profile(tmp_path, SLOW, engine="vllm 2")
    profile(tmp_path, SLOW, model="org/other")
    assert found(path)["engine"]["engine"] == "vllm 1"
    assert found(MODEL) == found(newest)
    assert not found("org/more")
    Path(path).write_text("{")
    assert not found(path)
    assert found(MODEL) == found(newest)


def test_the_settings_choose_whether_costs_matter(make_adapter: Make, tmp_path: Path) -> None:
    given = {"profile": profile(tmp_path / "1", FAST), "load_guard_s": 1e-6}
    always = make_adapter(tmp_path / "always", load_policy="always", **given)
    warm(always)
    assert all(always._costs.should_load(asked()) for _ in range(200))
    never = Driver(make_adapter(tmp_path / "never", load_policy="never", **given))
    ours = keys(4)
    assert never.store(ours, filled(ours)).is_successful()
    assert never.lookup(ours) == [False] * 4
    # LMCache's own memory is not ours to decline.
    assert never.adapter._costs.should_load(asked())


def test_without_policies_the_integration_is_there_and_says_what_is_missing() -> None:
    assert integration.DalsegnoL2Adapter is not None
    if HAS_POLICIES:
        assert integration.DalsegnoLoadPolicy is not None
        return
    with pytest.raises(ImportError, match=r"DalsegnoLoadPolicy needs LMCache 0\.5\.7"):
        _ = integration.DalsegnoLoadPolicy


@dataclass
class Context:
    """A lookup with a wrong value."""

    request_configs: Any
    request_id: str = "r"
    model_name: str = MODEL
    chunk_size: int = 0
    num_lookup_tokens: int = 256


@needs_policies
def test_the_policy_is_one_of_lmcache_and_never_raises(make_adapter: Make, tmp_path: Path) -> None:
    from lmcache.v1.multiprocess.kv_load_policy import KVLoadContext, create_kv_load_policy

    policy = create_kv_load_policy("dalsegno.integrations.lmcache:DalsegnoLoadPolicy", {})
    context = KVLoadContext("r", MODEL, CHUNK_TOKENS, 4 * CHUNK_TOKENS, None)
    assert policy.should_load(context), "there is no adapter"
    adapter = make_adapter(profile=profile(tmp_path / "1", FAST), load_guard_s=1e-6)
    warm(adapter)
    assert not policy.should_load(context)
    skipped = KVLoadContext("r", "org/other", CHUNK_TOKENS, 64, {"lmcache.skip_load": True})
    assert not policy.should_load(skipped)
    computed = {"lmcache.hint.engine_computed_tokens": 4 * CHUNK_TOKENS}
    hinted = KVLoadContext("r", MODEL, CHUNK_TOKENS, 4 * CHUNK_TOKENS, computed)
    assert policy.should_load(hinted)
    for wrong in (Context(None), Context("x"), Context({costs.COMPUTED: "x"}), None):
        assert policy.should_load(wrong)


@needs_policies
@pytest.mark.parametrize("token_s", [FAST, SLOW])
def test_a_server_declines_what_the_engine_computes_faster(tmp_path: Path, token_s: float) -> None:
    given = {"path": str(tmp_path / "kv"), "capacity": "256MiB", "weights_fingerprint": "w"}
    costs_given = {"profile": profile(tmp_path / "profiles", token_s), "load_guard_s": 1e-6}
    policy = ("--kv-load-policy", "dalsegno.integrations.lmcache:DalsegnoLoadPolicy")
    with serving(tmp_path, {**given, **costs_given}, *policy) as server, client(server) as worker:
        request = worker.create_request(3, "first", "cold", token_ids=range(TOKENS))
        assert worker.lookup(request).is_full_miss
        assert worker.store(request, 0, TOKENS).succeeded
        worker.release_request(request)
        chunks = TOKENS // CHUNK_TOKENS
        assert wait_until(lambda: server.adapter()["counters"]["stored_objects"] == chunks, 30)
    with serving(tmp_path, {**given, **costs_given}, *policy) as server, client(server) as worker:
        # Nothing is known of the tier: it loads, and the tier is known.
        first = worker.create_request(3, "second", "warm", token_ids=range(TOKENS))
        assert worker.lookup(first).is_full_hit
        assert worker.retrieve(first, 0, TOKENS).succeeded
        worker.release_request(first)
        again = worker.create_request(3, "third", "warm", token_ids=range(TOKENS))
        looked_up = worker.lookup(again)
        assert looked_up.is_full_miss if token_s == FAST else looked_up.is_full_hit
        assert server.adapter()["counters"]["load_declined"] == int(token_s == FAST)
