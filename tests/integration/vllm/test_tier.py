"""`DalsegnoTier` without an engine: what it stores, finds, brings back, refuses and counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from tests.contract import reference_store
from tests.integration.manual_store import ManualStore
from tests.integration.vllm.tiers import (
    HIT,
    MISS,
    ROW_BYTES,
    Primary,
    Request,
    config,
    counted,
    finished,
    keys,
    needs_positions,
)
from vllm.v1.kv_offload.base import LookupResult, ScheduleEndContext

from dalsegno.integrations.vllm import events, metrics
from dalsegno.integrations.vllm.tier import DalsegnoTier

pytestmark = pytest.mark.engine
# What only the direct path counts, and blocks that are not worth loading (test_tier_deciding.py).
NOT_HERE = {
    f"{metrics.PREFIX}{name}"
    for name in (
        "step_loads",
        "saves_declined",
        "load_declined_blocks",
        "jumped_tokens",
        "meeting_point",
    )
}


def test_stored_blocks_are_found_and_come_back_byte_for_byte(
    tier: DalsegnoTier, primary: Primary
) -> None:
    ours = keys(5)
    first, second = Request(tier, "r1", ours), Request(tier, "r2", ours)
    assert first.lookup_all() == [MISS] * 5
    first.keep(primary)
    assert second.lookup_all() == [HIT] * 5
    rows = [20, 11, 30, 9, 10]
    second.load(2, rows=rows)
    result = finished(tier)[0]
    assert (result.job_id, result.success, result.successful_keys) == (2, True, None)
    # vLLM before 0.31 does not ask for it.
    assert getattr(result, "transfer_bytes", 5 * ROW_BYTES) == 5 * ROW_BYTES
    assert primary.holds(rows, ours)


def test_groups_do_not_share_blocks(tier: DalsegnoTier, primary: Primary) -> None:
    ours, others = keys(2), keys(2, group=1)
    Request(tier, "r1", ours).keep(primary)
    assert Request(tier, "r2", others).lookup(others[0]) is MISS
    mixed = [ours[0], others[0], ours[1], others[1]]
    Request(tier, "r3", ours, others).keep(primary, mixed)
    again = Request(tier, "r4", ours, others)
    assert [again.lookup(key) for key in mixed] == [HIT] * 4


def test_a_missing_block_is_a_miss_and_the_others_load(
    tier: DalsegnoTier, primary: Primary
) -> None:
    ours = keys(4)
    Request(tier, "r1", ours).keep(primary)
    second = Request(tier, "r2", ours)
    assert second.lookup_all() == [HIT] * 4
    opened = tier._backend.current
    assert opened is not None
    opened.namespaces[0].remove([ours[1][:32]])
    second.load(7, rows=[8, 9, 10, 11])
    result = finished(tier)[0]
    assert not result.success
    assert set(result.successful_keys) == {ours[0], ours[2], ours[3]}
    assert primary.holds([8, 10], [ours[0], ours[2]])
    assert second.lookup_all() == [HIT, MISS, HIT, HIT]


@needs_positions
def test_lookups_reach_the_store_once_per_batch(
    manual: ManualStore, manual_tier: DalsegnoTier
) -> None:
    ours = keys(300)
    forwards, backwards = Request(manual_tier, "f", ours), Request(manual_tier, "b", ours)
    for _ in range(3):
        forwards.lookup_all()
    assert manual.contains_calls == 2
    manual.contains_calls = 0
    for key in reversed(ours):
        backwards.lookup(key)
    assert manual.contains_calls <= 3


def test_without_positions_each_key_reaches_the_store_once(
    manual: ManualStore, manual_tier: DalsegnoTier
) -> None:
    asked = Request(manual_tier, "old")
    for _ in range(2):
        assert [asked.lookup(key) for key in keys(5)] == [MISS] * 5
    assert manual.contains_calls == 5


@needs_positions
def test_a_block_is_written_once_while_it_is_being_written(
    manual: ManualStore, manual_tier: DalsegnoTier
) -> None:
    ours = keys(4)
    asked = Request(manual_tier, "r", ours)
    asked.begin()
    asked.store(1, ours[:3])
    asked.store(2)
    assert [len(chain) - first for chain, first in manual.puts] == [3, 1]
    # The second put names its predecessor, so that it lies next to it.
    assert manual.puts[1] == ([ours[2][:32], ours[3][:32]], 1)
    manual.end_all()
    asked.store(3)
    assert len(manual.puts) == 2
    assert {result.job_id for result in finished(manual_tier, 3)} == {1, 2, 3}


@needs_positions
def test_a_gap_in_the_prompt_starts_another_put(
    manual: ManualStore, manual_tier: DalsegnoTier
) -> None:
    ours = keys(6)
    Request(manual_tier, "r", ours).store(1, [ours[5], ours[0], ours[1]], rows=[5, 0, 1])
    chains = [[one[:1] for one in chain[first:]] for chain, first in manual.puts]
    assert chains == [[ours[0][:1], ours[1][:1]], [ours[5][:1]]]
    manual.end_all()


def test_a_job_over_a_bound_is_refused_immediately(
    manual: ManualStore, make_tier: Callable[..., DalsegnoTier]
) -> None:
    tier = make_tier(max_load_jobs=1, max_store_jobs=2, max_store_bytes=3 * ROW_BYTES)
    ours = keys(8)
    asked = Request(tier, "r", ours)
    asked.begin()
    asked.store(1, ours[:5])
    assert [transfer.count for transfer in manual.transfers] == [3]
    asked.store(2, ours[5:], rows=[5, 6, 7])
    assert [(r.job_id, r.success) for r in finished(tier)] == [(2, False)]
    asked.load(3, ours[:1], rows=[9])
    asked.load(4, ours[1:3], rows=[10, 11])
    refused = finished(tier)[0]
    assert (refused.job_id, refused.success, refused.successful_keys) == (4, False, None)
    assert asked.lookup(ours[1]) is MISS
    numbers = counted(tier.get_stats())
    assert numbers["throttled_blocks store"] == 2 + 3
    assert numbers["throttled_blocks load"] == 2
    assert numbers["throttled_bytes load"] == 2 * ROW_BYTES
    manual.end_all()
    assert {(r.job_id, r.success) for r in finished(tier, 2)} == {(1, False), (3, True)}


def test_a_transfer_that_the_store_refuses_counts_as_throttled(
    manual: ManualStore, manual_tier: DalsegnoTier
) -> None:
    asked = Request(manual_tier, "r", keys(2))
    asked.store(1)
    manual.transfers[0].end(throttled=True)
    assert not finished(manual_tier)[0].success
    asked.load(2)
    manual.transfers[1].end(throttled=True)
    assert not finished(manual_tier)[0].success
    numbers = counted(manual_tier.get_stats())
    assert numbers["throttled_blocks store"] == numbers["throttled_blocks load"] == 2


def test_a_slow_load_is_cancelled_and_reported_only_when_it_has_ended(
    manual: ManualStore,
    make_tier: Callable[..., DalsegnoTier],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tier = make_tier(load_timeout_s=1)
    asked = Request(tier, "r", keys(2))
    asked.begin()
    asked.load(1)
    assert list(tier.get_finished_jobs()) == []
    now = time.monotonic()
    monkeypatch.setattr(tier._mover.jobs, "_clock", lambda: now + 5)
    assert list(tier.get_finished_jobs()) == []
    assert manual.transfers[0].cancelled
    manual.transfers[0].end([False, False])
    result = finished(tier)[0]
    assert (result.success, result.successful_keys) == (False, None)
    assert asked.lookup_all() == [MISS, MISS]


def test_a_failed_load_stays_a_miss_even_when_the_store_has_the_block(
    manual: ManualStore, manual_tier: DalsegnoTier
) -> None:
    ours = keys(2)
    asked = Request(manual_tier, "r", ours)
    asked.store(1)
    manual.end_all()
    finished(manual_tier)
    assert asked.lookup(ours[0]) is HIT
    asked.load(2, rows=[2, 3])
    manual.transfers[1].end([False, True])
    assert finished(manual_tier)[0].successful_keys == (ours[1],)
    assert asked.lookup(ours[0]) is MISS
    manual_tier.on_schedule_end(ScheduleEndContext((), ("r",)))
    assert asked.lookup(ours[0]) is MISS
    assert Request(manual_tier, "another", ours).lookup_all() == [MISS, HIT], "for a while"


def test_a_preempted_request_looks_up_its_misses_again(
    tier: DalsegnoTier, primary: Primary
) -> None:
    ours = keys(2)
    asked = Request(tier, "r", ours)
    assert asked.lookup(ours[0]) is MISS
    Request(tier, "other", ours).keep(primary)
    assert asked.lookup(ours[0]) is MISS
    tier.on_schedule_end(ScheduleEndContext((), ("r",)))
    assert asked.lookup(ours[0]) is HIT


def test_a_reset_waits_and_later_requests_find_no_older_block(
    tier: DalsegnoTier, primary: Primary
) -> None:
    ours = keys(3)
    asked = Request(tier, "r", ours)
    asked.store(1)
    tier.drain_jobs()
    assert [result.job_id for result in tier.get_finished_jobs()] == [1]
    assert asked.lookup(ours[0]) is MISS
    Request(tier, "s", ours).keep(primary)
    assert Request(tier, "t", ours).lookup(ours[0]) is HIT
    before = tier._backend.current
    tier.drain_jobs()
    after = tier._backend.current
    assert before is not None
    assert after is not None
    assert {space.id for space in before.namespaces.values()} == {
        space.id for space in after.namespaces.values()
    }
    assert Request(tier, "u", ours).lookup(ours[0]) is MISS


def test_a_bypassed_request_is_neither_served_nor_stored(
    tier: DalsegnoTier, primary: Primary
) -> None:
    ours, more = keys(2), keys(1, prompt="b")
    Request(tier, "r", ours).keep(primary)
    tier.bypass("lora")
    bypassed = Request(tier, "lora", ours)
    bypassed.begin()
    assert bypassed.lookup(ours[0]) is MISS
    bypassed.store(5, more, rows=[4])
    finished(tier)
    assert Request(tier, "other", more).lookup(more[0]) is MISS
    assert counted(tier.get_stats())["bypassed_requests"] == 1


def test_every_metric_is_declared_and_every_declared_one_is_emitted(
    manual: ManualStore,
    make_tier: Callable[..., DalsegnoTier],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "QUEUE_BLOCKS", 1)
    extra = {"cpu_bytes_to_use": 1 << 20, "self_describing_kv_events": True}
    tier = make_tier(
        of=config(enable_kv_cache_events=True, extra_config=extra),
        enable_kv_events=True,
        kv_events_keys=2,
        max_store_bytes=4 * ROW_BYTES,
        max_load_bytes=2 * ROW_BYTES,
        load_timeout_s=0.001,
    )
    asked = Request(tier, "r", keys(6))
    asked.lookup_all()
    asked.store(1)
    manual.transfers[0].end(reference_store.PutReport(("stored", "present", "declined", "failed")))
    finished(tier)
    asked.store(3, asked.keys[:3])
    manual.transfers[1].end()
    finished(tier)
    asked.load(2, asked.keys[:2], rows=[8, 9])
    waits = Request(tier, "w", asked.keys[:1])
    full = {"_num_chunks": 1, "_get_num_free_chunks": lambda: 0, "_num_evictable_cache_chunks": 0}
    manager = SimpleNamespace(primary_tier=SimpleNamespace(**full))
    monkeypatch.setattr(tier._spec, "_manager", manager, raising=False)
    assert waits.lookup_all() == [LookupResult.RETRY]
    time.sleep(0.002)
    assert waits.lookup_all() == [MISS]
    manual.transfers[2].end([True, False])
    assert len(list(tier.take_events())) == 1
    space = tier._backend.current
    assert space is not None
    space.namespaces[0].remove([key[:32] for key in asked.keys[:3]])
    assert len(list(tier.take_events())) == 1
    tier.bypass("x")
    tier._calls.note("lookup", OSError("x"))
    manual.misses["corrupt"] = 3
    finished(tier)
    stats = tier.get_stats()
    declared = DalsegnoTier.build_metric_definitions({"type": "DalsegnoTier"})
    assert set(stats.data["data"]) | NOT_HERE == set(declared)
    for name, values in stats.data["data"].items():
        assert name.startswith(metrics.PREFIX)
        assert {len(labels) for labels in values} == {len(declared[name].labelnames)}
    assert counted(stats)["missed_blocks corrupt"] == 3
    assert tier.get_stats() is None


@needs_positions
def test_a_finished_request_touches_its_whole_prompt_group_by_group(
    manual: ManualStore, manual_tier: DalsegnoTier
) -> None:
    ours, others = keys(300), keys(2, group=1)
    request = Request(manual_tier, "r1", ours)
    request.begin()
    request.end()
    assert manual.touched == [[key[:32] for key in ours]]
    manual_tier.bypass("r2")
    kept_away = Request(manual_tier, "r2", ours)
    kept_away.begin()
    kept_away.end()
    manual.broken = "touch"
    broken = Request(manual_tier, "r3", others)
    broken.begin()
    broken.end()
    assert len(manual.touched) == 1
    assert counted(manual_tier.get_stats())["errors on_request_finished"] == 1


@needs_positions
def test_a_request_touches_its_whole_prompt_when_a_store_starts_and_when_vllm_says_so(
    manual: ManualStore, manual_tier: DalsegnoTier
) -> None:
    ours = keys(5)
    chain = [key[:32] for key in ours]
    request = Request(manual_tier, "r1", ours)
    request.begin()
    # vLLM has the beginning in its own memory, and stores only what is new.
    request.store(1, ours[3:])
    assert manual.touched == [chain]
    manual_tier.touch(ours[:2], request.context)
    assert manual.touched == [chain, chain]
    request.end()
    manual_tier.touch(ours[:2], request.context)
    assert len(manual.touched) == 3, "the request is over"
    manual.end_all()
