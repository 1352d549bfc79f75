"""What `DalsegnoHiCache` loads, from costs that it has measured."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("sglang")

from sglang.srt import runtime_context
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from tests.integration.sglang.backend_rig import GEOMETRY, Backends, indices, keys, noise
from tests.integration.sglang.step_rig import FakeScheduler

from dalsegno import profiles
from dalsegno.integrations.common import probe
from dalsegno.integrations.common.deciding import LoadDecider
from dalsegno.integrations.common.rereads import Rereads
from dalsegno.integrations.sglang import DalsegnoHiCache, loads, steps
from dalsegno_bench.sglang.rig import Rig

pytestmark = pytest.mark.engine

PAGES = 20
# Of a token, so that computing the pages takes 80 ms.
TOKEN_S = 1e-3
OFFER = Rereads.offer


class Engine:
    """Backends with pages of a prompt, in a process whose steps and loads take what is said."""

    def __init__(self, make: Backends, host: Rig, scheduler: FakeScheduler) -> None:
        self._make, self._host, self.scheduler = make, host, scheduler

    def begin(self, count: int = PAGES, **extra: Any) -> DalsegnoHiCache:
        """Makes a backend with so many pages, and measures steps."""
        backend = self._make(**{"load_policy": "auto", **extra})
        noise(self._host, count)
        assert backend.batch_set_v1(keys(count), indices(count)) == [True] * count
        self.scheduler.learn(TOKEN_S)
        return backend

    def load(self, backend: DalsegnoHiCache, count: int = PAGES, seconds: float = 0.001) -> None:
        """Loads pages of the prompt, which takes so long."""
        get = backend._mover.get

        def slow(*of: Any) -> Any:
            self.scheduler.now += seconds
            return get(*of)

        with mock.patch.object(backend._mover, "get", slow):
            assert backend.batch_get_v1(keys(count), indices(count)) == [True] * count


@pytest.fixture
def engine(make: Backends, host: Rig, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine whose machine is measured neither when backends are made nor afterwards."""
    scheduler = FakeScheduler()
    monkeypatch.setattr(steps, "_watch", scheduler.watch)
    monkeypatch.setattr(loads, "time", SimpleNamespace(monotonic=lambda: scheduler.now))
    monkeypatch.setattr(probe, "operations_per_s", lambda *_: None)
    monkeypatch.setattr(probe, "tiers", lambda _: {})
    monkeypatch.setattr(Rereads, "offer", lambda *_: None)
    return Engine(make, host, scheduler)


def info(before: int, prompt: str = "a") -> HiCacheStorageExtraInfo:
    """What SGLang says of a call behind so many pages."""
    return HiCacheStorageExtraInfo(prefix_keys=keys(before, prompt))


def test_the_policy_decides_whether_costs_matter(engine: Engine) -> None:
    for policy, after_fast, after_slow in (
        ("auto", PAGES, 0),
        ("always", PAGES, PAGES),
        ("never", 0, 0),
    ):
        backend = engine.begin(load_policy=policy)
        engine.load(backend)
        assert backend.batch_exists(keys(PAGES)) == after_fast
        engine.load(backend, seconds=0.3)
        assert backend.batch_exists(keys(PAGES)) == after_slow
        declined = 2 * PAGES - after_fast - after_slow
        assert backend.counts().get("load_declined_pages", 0) == declined
        backend.close()


def test_a_slow_load_of_the_oldest_interface_counts_too(
    engine: Engine, host: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = engine.begin(interface_v1=0)
    page = host.host.get_data_page(0, flat=True)
    assert backend.batch_set(keys(PAGES, "b"), [page] * PAGES)
    get_blocks = backend._mover.get_blocks

    def slow(*of: Any) -> Any:
        engine.scheduler.now += 0.3
        return get_blocks(*of)

    monkeypatch.setattr(backend._mover, "get_blocks", slow)
    out = [host.host.get_dummy_flat_data_page() for _ in range(PAGES)]
    assert None not in backend.batch_get(keys(PAGES, "b"), out)
    assert backend.batch_exists(keys(PAGES, "b")) == 0


def test_with_best_effort_nobody_waits_and_everything_is_loaded(
    engine: Engine,
) -> None:
    backend = engine.begin()
    engine.load(backend, seconds=0.3)
    assert backend.batch_exists(keys(PAGES)) == 0
    for policy, taken in (("best_effort", PAGES), ("wait_complete", 0), ("timeout", 0)):
        runtime_context.get_context().override("test", hicache_storage_prefetch_policy=policy)
        assert backend.batch_exists(keys(PAGES)) == taken
    assert backend.batch_exists(keys(PAGES)) == 0


def test_a_pool_behind_the_kv_counts(engine: Engine, host: Rig) -> None:
    backend = engine.begin()
    backend.register_mem_host_pool_v2(host.host, PoolName.SWA)
    window = PoolTransfer(
        PoolName.SWA,
        host_indices=indices(2),
        keys=keys(PAGES)[10:12],
        hit_policy=PoolHitPolicy.TRAILING_PAGES,
    )
    assert backend.batch_set_v2([window]) == {PoolName.SWA: [True, True]}
    engine.load(backend)
    found = backend.batch_exists_v2(keys(PAGES), [window])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (12, [12])
    engine.load(backend, seconds=0.3)
    found = backend.batch_exists_v2(keys(PAGES), [window])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (0, [])
    # SGLang still learns what is stored.
    assert found.extra_pool_hit_pages == {PoolName.KV: PAGES, PoolName.SWA: 12}


def test_batches_of_one_prompt_pay_for_the_start_of_a_load_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads, "BATCH_PAGES", PAGES)
    backend = engine.begin(2 * PAGES)
    # A load takes 60 ms, whatever its size: more than the last pages take to compute.
    last = 10
    for _ in range(8):
        engine.load(backend, 2 * PAGES, seconds=0.06)
        engine.load(backend, 2, seconds=0.06)
    chain = keys(2 * PAGES)
    assert backend.batch_exists(chain[PAGES:][:last], info(PAGES)) == 0
    assert backend.batch_exists(chain[:PAGES], info(0)) == PAGES
    assert backend.batch_exists(chain[PAGES:][:last], info(PAGES)) == last
    # It is over: the same pages behind other ones are another prompt.
    assert backend.batch_exists(chain[PAGES:][:last], info(PAGES)) == 0
    assert backend.batch_exists(chain[:PAGES], info(0)) == PAGES
    assert backend.batch_exists(chain[PAGES:][:last], info(PAGES, "other")) == 0


def test_a_tier_is_measured_again_and_no_request_waits_for_that(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rereads, "offer", OFFER)
    backend = engine.begin()
    engine.load(backend, seconds=3.0)
    assert backend._loads._rereads is not None
    for asked in range(1, 300):  # noqa: B007 - used below
        if backend.batch_exists(keys(PAGES)):
            break
        wait_for_reread(backend)
    else:
        pytest.fail("the tier was never found again")
    assert asked > 1
    counts = backend.counts()
    assert counts["loaded_pages"] == PAGES, "what is read again is not loaded"
    assert counts["load_declined_pages"] == (asked - 1) * PAGES


def wait_for_reread(backend: DalsegnoHiCache) -> None:
    """Waits until the store has read what it was asked to read again."""
    rereads = backend._loads._rereads
    assert rereads is not None
    read = rereads._read
    assert read is None or all(one.wait(10) for one in read.transfers)


def test_what_fails_in_a_prediction_fails_no_load(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend = engine.begin()
    for name in ("decide", "begin_bytes", "end_load"):
        monkeypatch.setattr(LoadDecider, name, lambda *_, **__: 1 // 0)
    with caplog.at_level(logging.WARNING, "sglang.dalsegno"):
        assert backend.batch_exists(keys(PAGES)) == PAGES
        engine.load(backend)
    assert len(caplog.records) == 1


def test_pages_that_are_never_fetched_leave_no_load_under_way(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = engine.begin()
    engine.load(backend, seconds=0.03)
    # Other ranks have fewer pages, or none: SGLang loads the fewest that any rank has.
    assert backend.batch_exists(keys(PAGES)) == PAGES
    promised = backend._loads._promised
    assert sum(count for one in promised.values() for _, count in one.runs) == PAGES
    engine.load(backend, 5)
    assert sum(count for one in promised.values() for _, count in one.runs) == PAGES - 5
    assert backend._loads._decider is not None
    assert not backend._loads._decider._running.loads
    engine.scheduler.now += 60
    assert backend.batch_exists(keys(PAGES)) == PAGES
    assert len(promised) == 1


def test_what_is_promised_to_others_counts_and_is_bounded(
    engine: Engine,
) -> None:
    backend = engine.begin()
    for _ in range(8):
        engine.load(backend, seconds=0.03)
        engine.load(backend, 5, seconds=0.0075)
    taken = [backend.batch_exists(keys(PAGES)[at:]) for at in range(10)]
    assert taken[0] == PAGES
    assert 0 in taken, "a load waits for those before it"
    for number in range(2 * loads.MOST_PROMISES):
        backend._loads._promise([bytes([number]) * 32], [("log", 1)], 1.0)
    assert len(backend._loads._promised) == loads.MOST_PROMISES


def test_a_load_that_takes_far_longer_than_predicted_is_given_up(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, limits = engine.begin(), list[float | None]()
    get = backend._mover.get

    def noted(*of: Any) -> Any:
        limits.append(of[-1])
        return get(*of)

    engine.load(backend)
    monkeypatch.setattr(backend._mover, "get", noted)
    assert backend.batch_exists(keys(PAGES)) == PAGES
    backend.batch_get_v1(keys(PAGES)[:5], indices(5))
    engine.scheduler.now += 0.25
    backend.batch_get_v1(keys(PAGES)[5:], indices(15))
    backend.batch_get_v1(keys(PAGES), indices(PAGES))
    first, second, third = limits
    assert first is not None
    assert first == pytest.approx(1.0), "at least a second"
    assert second is not None
    assert second == pytest.approx(first - 0.25), "for all batches of a prompt"
    assert third is None, "it was not promised"


def test_a_backend_without_measured_steps_loads_every_hit(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine.scheduler.watch.is_registered = False
    monkeypatch.setitem(sys.modules, steps._MODULE, None)
    with caplog.at_level(logging.WARNING, "sglang.dalsegno"):
        backend = engine.begin()
    assert "loads every hit" in caplog.text
    engine.load(backend, seconds=0.3)
    assert backend.batch_exists(keys(PAGES)) == PAGES


def test_a_shape_that_cannot_be_understood_loads_every_hit(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delattr(runtime_context, "get_schedule")
    backend = engine.begin()
    assert backend._loads._decider is not None, "its option has a default"
    backend.close()
    monkeypatch.setattr(profiles.ComputePrior, "of_shape", lambda *_, **__: 1 // 0)
    with caplog.at_level(logging.WARNING, "sglang.dalsegno"):
        backend = engine.begin()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    engine.load(backend, seconds=0.3)
    assert backend.batch_exists(keys(PAGES)) == PAGES


def test_what_was_learned_is_kept_for_the_next_backend(engine: Engine, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "dalsegno" / "profiles"
    engine.begin().close()
    assert not folder.exists()
    backend = engine.begin(keep_profile=True)
    for _ in range(8):
        engine.load(backend, seconds=0.3)
    backend.close()
    (path,) = folder.iterdir()
    known = profiles.read(path)
    assert known["engine"]["engine"].startswith("sglang ")
    assert known["engine"]["block_tokens"] == str(GEOMETRY.page_tokens)
    assert known["learned"]["compute"]["measured"] >= 30
    assert known["learned"]["log"]["measured"] == 8
    assert engine.begin(keep_profile=True).batch_exists(keys(PAGES)) == 0
