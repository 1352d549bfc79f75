"""`dalsegno bench slo --real`: an engine in real time over a small store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dalsegno_bench.first_token import slo_real
from dalsegno_bench.first_token.engine import Request
from dalsegno_bench.first_token.pipeline import Source
from dalsegno_bench.first_token.policies import Policy, load_ahead, load_by_layer, recompute
from dalsegno_bench.first_token.real import opened

TOKENS = 1024
BLOCKS = 100_000
DISK = Source("disk", 1e9, 1e-3)


@pytest.mark.parametrize("policy", [load_ahead, load_by_layer, recompute])
def test_requests_are_served_in_real_time(policy: Policy, tmp_path: Path) -> None:
    requests = [Request(0.01 * at, TOKENS + 300, 2, TOKENS, "disk") for at in range(3)]
    with opened(tmp_path, TOKENS) as rig:
        engine = slo_real.RealEngine(rig, DISK, policy, BLOCKS, None)
        totals = engine.run(requests)
        assert engine.end() == 0
        assert rig.store.stats()["put_stored_blocks"] == 8 + (0 if policy is recompute else 3 * 2)
    assert totals.steps >= 3
    assert all(one.end_s > one.first_token_s > one.arrival_s for one in requests)
    # A step waits for nothing that is not loaded.
    assert (totals.bubble_s > 0) is (policy is load_by_layer)


def test_lost_blocks_end_the_run(tmp_path: Path) -> None:
    with opened(tmp_path, TOKENS) as rig:
        rig.namespace.remove(rig.chain[4:])
        engine = slo_real.RealEngine(rig, DISK, load_ahead, BLOCKS, None)
        with pytest.raises(ValueError, match="lost blocks"):
            engine.run([Request(0.0, TOKENS + 10, 1, TOKENS, "disk")])


def test_each_policy_has_a_rate_in_both_times(tmp_path: Path) -> None:
    asked: list[list[float]] = []

    def rate_of(serve: Callable[[float], list[float]]) -> float:
        asked.append(serve(20.0))
        return 20.0

    served = slo_real.Served([(TOKENS + 100, TOKENS)] * 6, 2, BLOCKS, 5.0, 1, rate_of)
    result = slo_real.run(tmp_path, served)
    assert set(slo_real.POLICIES) < set(result)
    # The first rate that is tried is within this bound.
    assert all(result[name]["per_s"] == pytest.approx(24.0) for name in slo_real.POLICIES)
    assert [len(waits) for waits in asked] == [6] * 3
    assert result["ours_over"] == {"recompute": 1.0, "load_all": 1.0}
    assert not list(tmp_path.iterdir())
