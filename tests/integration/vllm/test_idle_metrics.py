"""The metrics of an idle engine: vLLM takes them only at its steps, and steps while work waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("vllm")

from tests.integration.vllm.tiers import Primary, Request, counted, keys

from dalsegno.integrations.vllm.metrics import Meter
from dalsegno.integrations.vllm.tier import DalsegnoTier

pytestmark = pytest.mark.engine


def test_a_burst_before_an_idle_time_leaves_no_metric_behind(
    make_tier: Callable[..., DalsegnoTier], primary: Primary
) -> None:
    tier, ours = make_tier(), keys(6)
    tier.get_stats()
    stored = 0.0
    for at in range(0, 6, 2):
        Request(tier, f"r{at}", ours[at : at + 2]).keep(primary)
        stored += counted(tier.get_stats()).get("stored_blocks", 0)
    assert tier.has_pending_work()
    gauges: dict[str, float] = {}
    while tier.has_pending_work():
        gauges = counted(tier.get_stats()) or gauges
        stored += gauges.get("stored_blocks", 0)
    opened = tier._backend.current
    assert opened is not None
    assert stored == len(ours)
    assert gauges["disk_bytes"] == opened.store.stats()["disk_bytes"] > 0


def test_metrics_keep_an_engine_stepping_for_a_bounded_time() -> None:
    now = 100.0
    meter = Meter(lambda: now)
    assert not meter.is_stale()
    meter.count("errors", 1, "get_stats")
    assert not meter.is_stale(), "a store that cannot be read would count at each step"
    meter.take(lambda: None)
    meter.count("stored_blocks")
    meter.take(lambda: None)
    assert meter.is_stale(), "the store was read before"
    now += 1.0
    meter.take(lambda: None)
    assert not meter.is_stale()
    meter.count("stored_blocks")
    now += 2.0
    assert not meter.is_stale()
