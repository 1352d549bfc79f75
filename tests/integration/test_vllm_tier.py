"""`DalsegnoTier` without an engine; runs where vLLM is installed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.contract import reference_store
from tests.integration import tiers
from tests.integration.tiers import ManualStore, Primary, counted, finished, job, keys, request
from vllm.v1.kv_offload.base import LookupResult, ScheduleEndContext

from dalsegno.integrations.vllm import metrics
from dalsegno.integrations.vllm.tier import DalsegnoTier

pytestmark = pytest.mark.engine
HIT, MISS = LookupResult.HIT, LookupResult.MISS
ROWS = 32


def make(path: Path, primary: Primary, **settings: Any) -> DalsegnoTier:
    return tiers.make_tier(path, primary, **settings)


def test_what_is_stored_is_found_and_comes_back_byte_for_byte(
    tier: DalsegnoTier, primary: Primary
) -> None:
    ours = keys(5)
    first, second = request("r1", ours), request("r2", ours)
    assert [tier.lookup(key, first) for key in ours] == [MISS] * 5
    tiers.store_all(tier, primary, ours, first)
    assert [tier.lookup(key, second) for key in ours] == [HIT] * 5
    rows = [20, 11, 30, 9, 10]
    tier.submit_load(job(2, ours, rows, second, load=True))
    result = finished(tier)[0]
    assert (result.job_id, result.success, result.successful_keys) == (2, True, None)
    assert result.transfer_bytes == 5 * tiers.ROW_BYTES
    assert all(primary.holds(row, key) for row, key in zip(rows, ours, strict=True))


def test_groups_do_not_share_blocks(tier: DalsegnoTier, primary: Primary) -> None:
    ours, others = keys(2), keys(2, group=1)
    tiers.store_all(tier, primary, ours, request("r1", ours))
    assert tier.lookup(others[0], request("r2", others)) is MISS
    mixed = [ours[0], others[0], ours[1], others[1]]
    tiers.store_all(tier, primary, mixed, request("r3", ours, others))
    assert [tier.lookup(key, request("r4", ours, others)) for key in mixed] == [HIT] * 4


def test_a_block_that_is_gone_is_a_miss_and_the_others_load(
    tier: DalsegnoTier, primary: Primary
) -> None:
    ours = keys(4)
    tiers.store_all(tier, primary, ours, request("r1", ours))
    second = request("r2", ours)
    assert all(tier.lookup(key, second) is HIT for key in ours)
    opened = tier._backend.current
    assert opened is not None
    opened.namespaces[0].remove([ours[1][:32]])
    tier.submit_load(job(7, ours, [8, 9, 10, 11], second, load=True))
    result = finished(tier)[0]
    assert not result.success
    assert set(result.successful_keys) == {ours[0], ours[2], ours[3]}
    assert all(primary.holds(row, key) for row, key in ((8, ours[0]), (10, ours[2])))
    assert [tier.lookup(key, second) for key in ours] == [HIT, MISS, HIT, HIT]


def test_lookups_reach_the_store_once_per_batch(
    manual: ManualStore, primary: Primary, tmp_path: Path
) -> None:
    tier = make(tmp_path, primary)
    ours = keys(300)
    context = request("r", ours)
    for _ in range(3):
        for key in ours:
            tier.lookup(key, context)
    assert manual.contains_calls == 2
    manual.contains_calls = 0
    backwards = request("b", ours)
    for key in reversed(ours):
        tier.lookup(key, backwards)
    assert manual.contains_calls <= 3
    tier.shutdown()


def test_without_positions_each_key_reaches_the_store_once(
    manual: ManualStore, primary: Primary, tmp_path: Path
) -> None:
    tier = make(tmp_path, primary)
    context = request("old")
    for _ in range(2):
        for key in keys(5):
            assert tier.lookup(key, context) is MISS
    assert manual.contains_calls == 5
    tier.shutdown()


def test_a_block_is_written_once_while_it_is_being_written(
    manual: ManualStore, primary: Primary, tmp_path: Path
) -> None:
    tier = make(tmp_path, primary)
    ours = keys(4)
    context = request("r", ours)
    tier.on_new_request(context)
    tier.submit_store(job(1, ours[:3], [0, 1, 2], context))
    tier.submit_store(job(2, ours, [0, 1, 2, 3], context))
    assert [len(chain) - first for chain, first in manual.puts] == [3, 1]
    # The second put names its predecessor, so that it lies next to it.
    assert manual.puts[1] == ([ours[2][:32], ours[3][:32]], 1)
    manual.end_all()
    tier.submit_store(job(3, ours, [0, 1, 2, 3], context))
    assert len(manual.puts) == 2
    assert {result.job_id for result in finished(tier, 3)} == {1, 2, 3}
    tier.shutdown()


def test_a_gap_in_the_prompt_starts_another_put(
    manual: ManualStore, primary: Primary, tmp_path: Path
) -> None:
    tier = make(tmp_path, primary)
    ours = keys(6)
    tier.submit_store(job(1, [ours[5], ours[0], ours[1]], [5, 0, 1], request("r", ours)))
    chains = [[one[:1] for one in chain[first:]] for chain, first in manual.puts]
    assert chains == [[ours[0][:1], ours[1][:1]], [ours[5][:1]]]
    manual.end_all()
    tier.shutdown()


def test_what_is_over_a_bound_is_refused_at_once(
    manual: ManualStore, primary: Primary, tmp_path: Path
) -> None:
    tier = make(
        tmp_path, primary, max_load_jobs=1, max_store_jobs=2, max_store_bytes=3 * tiers.ROW_BYTES
    )
    ours = keys(8)
    context = request("r", ours)
    tier.on_new_request(context)
    tier.submit_store(job(1, ours[:5], range(5), context))
    assert [transfer.count for transfer in manual.transfers] == [3]
    tier.submit_store(job(2, ours[5:], [5, 6, 7], context))
    assert [(r.job_id, r.success) for r in finished(tier)] == [(2, False)]
    tier.submit_load(job(3, ours[:1], [9], context, load=True))
    tier.submit_load(job(4, ours[1:3], [10, 11], context, load=True))
    refused = finished(tier)[0]
    assert (refused.job_id, refused.success, refused.successful_keys) == (4, False, None)
    assert tier.lookup(ours[1], context) is MISS
    numbers = counted(tier.get_stats())
    assert numbers["throttled_blocks store"] == 2 + 3
    assert numbers["throttled_blocks load"] == 2
    assert numbers["throttled_bytes load"] == 2 * tiers.ROW_BYTES
    manual.end_all()
    assert {(r.job_id, r.success) for r in finished(tier, 2)} == {(1, False), (3, True)}
    tier.shutdown()


def test_a_transfer_that_the_store_refuses_counts_as_throttled(
    manual: ManualStore, primary: Primary, tmp_path: Path
) -> None:
    tier = make(tmp_path, primary)
    ours = keys(2)
    context = request("r", ours)
    tier.submit_store(job(1, ours, [0, 1], context))
    manual.transfers[0].end(throttled=True)
    assert not finished(tier)[0].success
    tier.submit_load(job(2, ours, [0, 1], context, load=True))
    manual.transfers[1].end(throttled=True)
    assert not finished(tier)[0].success
    numbers = counted(tier.get_stats())
    assert numbers["throttled_blocks store"] == numbers["throttled_blocks load"] == 2
    tier.shutdown()


def test_a_slow_load_is_called_off_and_reported_only_when_it_has_ended(
    manual: ManualStore, primary: Primary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = make(tmp_path, primary, load_timeout_s=1)
    ours = keys(2)
    context = request("r", ours)
    tier.on_new_request(context)
    tier.submit_load(job(1, ours, [0, 1], context, load=True))
    assert list(tier.get_finished_jobs()) == []
    now = time.monotonic()
    monkeypatch.setattr(tier._mover.jobs, "_clock", lambda: now + 5)
    assert list(tier.get_finished_jobs()) == []
    assert manual.transfers[0].cancelled
    manual.transfers[0].end([False, False])
    result = finished(tier)[0]
    assert (result.success, result.successful_keys) == (False, None)
    assert [tier.lookup(key, context) for key in ours] == [MISS, MISS]
    tier.shutdown()


def test_a_failed_load_stays_a_miss_even_when_the_store_has_the_block(
    manual: ManualStore, primary: Primary, tmp_path: Path
) -> None:
    tier = make(tmp_path, primary)
    ours = keys(2)
    context = request("r", ours)
    tier.submit_store(job(1, ours, [0, 1], context))
    manual.end_all()
    finished(tier)
    assert tier.lookup(ours[0], context) is HIT
    tier.submit_load(job(2, ours, [2, 3], context, load=True))
    manual.transfers[1].end([False, True])
    assert finished(tier)[0].successful_keys == (ours[1],)
    assert tier.lookup(ours[0], context) is MISS
    tier.on_schedule_end(ScheduleEndContext((), ("r",)))
    assert tier.lookup(ours[0], context) is MISS
    assert tier.lookup(ours[0], request("another", ours)) is HIT
    tier.shutdown()


def test_a_preempted_request_looks_up_its_misses_again(
    tier: DalsegnoTier, primary: Primary
) -> None:
    ours = keys(2)
    context = request("r", ours)
    assert tier.lookup(ours[0], context) is MISS
    tiers.store_all(tier, primary, ours, request("other", ours))
    assert tier.lookup(ours[0], context) is MISS
    tier.on_schedule_end(ScheduleEndContext((), ("r",)))
    assert tier.lookup(ours[0], context) is HIT


def test_a_reset_waits_and_shares_nothing_with_what_was_stored_before(
    tier: DalsegnoTier, primary: Primary
) -> None:
    ours = keys(3)
    context = request("r", ours)
    tier.submit_store(job(1, ours, [0, 1, 2], context))
    tier.drain_jobs()
    assert [result.job_id for result in tier.get_finished_jobs()] == [1]
    assert tier.lookup(ours[0], context) is MISS
    tiers.store_all(tier, primary, ours, request("s", ours))
    assert tier.lookup(ours[0], request("t", ours)) is HIT
    before = tier._backend.current
    tier.drain_jobs()
    after = tier._backend.current
    assert before is not None
    assert after is not None
    assert {space.id for space in before.namespaces.values()} == {
        space.id for space in after.namespaces.values()
    }
    assert tier.lookup(ours[0], request("u", ours)) is MISS


def test_a_bypassed_request_is_neither_served_nor_kept(
    tier: DalsegnoTier, primary: Primary
) -> None:
    ours = keys(2)
    tiers.store_all(tier, primary, ours, request("r", ours))
    tier.bypass("lora")
    context = request("lora", ours)
    tier.on_new_request(context)
    assert tier.lookup(ours[0], context) is MISS
    more = keys(1, prompt="b")
    tier.submit_store(job(5, more, [4], context))
    finished(tier)
    assert tier.lookup(more[0], request("other", more)) is MISS
    assert counted(tier.get_stats())["bypassed_requests"] == 1


def test_every_metric_is_declared_and_every_declared_one_is_emitted(
    manual: ManualStore, primary: Primary, tmp_path: Path
) -> None:
    tier = make(tmp_path, primary, max_store_bytes=4 * tiers.ROW_BYTES)
    ours = keys(6)
    context = request("r", ours)
    for key in ours:
        tier.lookup(key, context)
    tier.submit_store(job(1, ours, range(6), context))
    manual.transfers[0].end(reference_store.PutReport(("stored", "present", "declined", "failed")))
    finished(tier)
    tier.submit_load(job(2, ours[:2], [8, 9], context, load=True))
    manual.transfers[1].end([True, False])
    tier.bypass("x")
    tier._trouble("lookup", OSError("x"))
    manual.misses["corrupt"] = 3
    finished(tier)
    stats = tier.get_stats()
    declared = DalsegnoTier.build_metric_definitions({"type": "DalsegnoTier"})
    assert set(stats.data["data"]) == set(declared)
    for name, values in stats.data["data"].items():
        assert name.startswith(metrics.PREFIX)
        assert {len(labels) for labels in values} == {len(declared[name].labelnames)}
    assert counted(stats)["missed_blocks corrupt"] == 3
    assert tier.get_stats() is None
    tier.shutdown()
