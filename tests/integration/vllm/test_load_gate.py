"""`LoadGate` alone: which lookups may start a load, with a clock that the test sets."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.integration.vllm.tiers import HIT, MISS, ROW_BYTES, counted, keys
from vllm.v1.kv_offload.base import LookupResult

from dalsegno.integrations.vllm.jobs import Job, JobBook
from dalsegno.integrations.vllm.load_gate import MOST_PAUSED, LoadGate
from dalsegno.integrations.vllm.metrics import Meter
from dalsegno.integrations.vllm.request_state import RequestState
from dalsegno.integrations.vllm.settings import TierSettings

pytestmark = pytest.mark.engine
RETRY = LookupResult.RETRY


class Stage:
    """A gate, its clock, and what is in flight."""

    def __init__(self, **settings: Any) -> None:
        given = {"path": "/nowhere", "max_load_bytes": 2 * ROW_BYTES, "load_timeout_s": 10}
        self.now = 100.0
        self.jobs = JobBook(lambda: self.now)
        self.meter = Meter(lambda: self.now)
        self.gate = LoadGate(
            TierSettings.parse({**given, **settings}),
            ROW_BYTES,
            16 * ROW_BYTES,
            self.jobs,
            self.meter,
            lambda: self.now,
        )

    def load(self, blocks: int) -> Job:
        """Starts a load of so many blocks, as vLLM does at the end of a step."""

        class Transfer:
            ended = False

            def done(self) -> bool:
                return self.ended

        job = Job(job_id=1, is_load=True, keys=(), request=None, started=self.now, timeout_s=10.0)
        job.parts = [type("Part", (), {"transfer": Transfer()})()]
        job.moving_bytes = blocks * ROW_BYTES
        self.jobs.add(job)
        self.gate.end_step()
        return job

    def end(self, job: Job) -> None:
        """Ends a load."""
        job.parts[0].transfer.ended = True
        assert self.jobs.take_ended() == [job]

    def counts(self) -> dict[str, float]:
        """What was counted since the last call."""
        return counted(self.meter.take(lambda: None))


def state() -> RequestState:
    """A request of which nothing is known."""
    return RequestState({})


def test_hits_of_a_step_and_loads_in_flight_count_together() -> None:
    stage, one, other = Stage(), state(), state()
    ours = keys(4)
    assert [stage.gate.answer(key, one) for key in ours[:3]] == [HIT, HIT, RETRY]
    assert stage.gate.answer(ours[3], other) is RETRY
    job = stage.load(1)
    assert [stage.gate.answer(key, other) for key in ours[2:]] == [HIT, RETRY]
    stage.gate.end_step()
    stage.end(job)
    assert [stage.gate.answer(key, one) for key in ours[2:]] == [HIT, HIT]
    assert stage.counts()["deferred_lookups"] == 3


def test_a_row_larger_than_the_bound_is_loaded_alone() -> None:
    stage, one = Stage(max_load_bytes=1), state()
    assert [stage.gate.answer(key, one) for key in keys(2)] == [HIT, RETRY]


def test_the_number_of_loading_requests_is_bounded_by_the_number_of_jobs() -> None:
    stage = Stage(max_load_jobs=2, max_load_bytes=8 * ROW_BYTES)
    requests = [state() for _ in range(3)]
    ours = keys(3)
    assert [stage.gate.answer(ours[0], one) for one in requests] == [HIT, HIT, RETRY]
    assert stage.gate.answer(ours[1], requests[0]) is HIT, "one job for each request"


def test_the_time_that_a_request_is_deferred_adds_up() -> None:
    stage, one = Stage(), state()
    first, second = keys(2)
    job = stage.load(2)
    assert stage.gate.answer(first, one) is RETRY
    stage.now += 6
    assert stage.gate.answer(first, one) is RETRY
    stage.end(job)
    assert stage.gate.answer(first, one) is HIT
    stage.now += 60
    assert stage.gate.answer(second, one) is HIT, "it was not deferred meanwhile"
    stage.load(2)
    assert stage.gate.answer(second, one) is RETRY
    stage.now += 5
    assert stage.gate.answer(second, one) is MISS
    assert stage.gate.answer(first, one) is MISS
    assert stage.counts()["deferral_timeouts"] == 1
    one.forget_misses()
    assert stage.gate.answer(first, one) is RETRY, "a preempted request begins again"


def test_hits_between_short_waits_do_not_extend_the_bound() -> None:
    stage, one = Stage(), state()
    ours, answers = keys(20), []
    for key in ours:
        answers.append(stage.gate.answer(key, one, row_is_free=False))
        stage.now += 3
        answers.append(stage.gate.answer(key, one))
        stage.gate.end_step()
    assert answers[:8] == [RETRY, HIT] * 4, "12 s of waiting"
    assert set(answers[8:]) == {MISS}
    counts = stage.counts()
    assert counts["deferred_lookups"] == 5
    assert counts["deferral_timeouts"] == 1


def test_a_block_is_loaded_twice_at_most_for_a_request() -> None:
    stage, one = Stage(), state()
    ours = keys(2)
    for _ in range(2):
        assert stage.gate.answer(ours[0], one) is HIT
        one.count_loads(ours[:1])
        stage.gate.end_step()
    assert [stage.gate.answer(key, one) for key in ours] == [MISS, HIT]
    assert stage.gate.answer(ours[0], state()) is HIT


def test_a_failed_block_is_a_miss_for_all_until_the_pause_ends_or_it_is_written() -> None:
    stage = Stage(failed_load_pause_s=30, max_load_bytes=8 * ROW_BYTES)
    ours = keys(2)
    stage.gate.note_failed(ours)
    assert [stage.gate.answer(key, state()) for key in ours] == [MISS, MISS]
    stage.gate.note_written(ours[:1])
    assert [stage.gate.answer(key, state()) for key in ours] == [HIT, MISS]
    stage.now += 31
    assert stage.gate.answer(ours[1], state()) is HIT


def test_a_bounded_number_of_failed_blocks_is_remembered() -> None:
    stage = Stage(max_load_bytes=8 * ROW_BYTES)
    many = [number.to_bytes(36, "big") for number in range(MOST_PAUSED + 1)]
    stage.gate.note_failed(many)
    assert [stage.gate.answer(key, state()) for key in (many[0], many[-1])] == [HIT, MISS]


def test_a_full_primary_tier_defers_a_request_within_the_same_bound() -> None:
    stage, one = Stage(), RequestState({})
    (key,) = keys(1)
    for _ in range(4):
        assert stage.gate.answer(key, one, row_is_free=False) is RETRY
        stage.now += 2
    assert stage.gate.answer(key, one) is HIT, "a row became free"
    stage.gate.end_step()
    assert stage.gate.answer(key, one, row_is_free=False) is RETRY
    stage.now += 3
    assert stage.gate.answer(key, one, row_is_free=False) is MISS, "it waited 8 s before"
    assert stage.gate.answer(key, one) is MISS
    counts = stage.counts()
    assert counts["full_tier_lookups"] == counts["deferred_lookups"] == 6
    assert counts["deferral_timeouts"] == 1
