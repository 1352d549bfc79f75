"""Where both ends of a prompt meet, and what a worker loads until then: without an engine."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

pytest.importorskip("vllm")

from tests.dose import dose

from dalsegno.integrations.common.meeting import BackSpan, BackState, Meeting
from dalsegno.integrations.vllm.direct.back import PARTS_AT_A_TIME, BackLoad, WorkerBacks
from dalsegno.integrations.vllm.direct.step import LoadJob, LoadWay, StepPlan

pytestmark = pytest.mark.engine
TOKENS, LOADING, ENDED, FAILED = 16, BackState.LOADING, BackState.ENDED, BackState.FAILED


class Part:
    """A part of a back that ends when the test says so."""

    def __init__(self, first: int, end: int) -> None:
        self.first, self.end, self.count = first, end, 0
        self.is_queued = False
        self.is_done = self.is_cancelled = self.was_awaited = self.throttled = False
        self._callbacks: list[Callable[[], object]] = []

    def finish(self, count: int | None = None) -> None:
        """Ends it with so many blocks; all of them if not given."""
        self.count = self.end - self.first if count is None else count
        self.is_done = True
        for callback in self._callbacks:
            callback()

    def done(self) -> bool:
        return self.is_done

    def result(self) -> int:
        return self.count

    def withdraw(self) -> bool:
        self.is_cancelled = True
        return self.is_queued

    def wait(self) -> bool:
        assert self.is_cancelled or self.is_done
        self.was_awaited = True
        return True

    def on_end(self, callback: Callable[[], object]) -> None:
        self._callbacks.append(callback)
        if self.is_done:
            callback()


class Disk:
    """Begins parts."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.is_immediate = self.is_broken = False

    def begin(self, first: int, end: int) -> Part | None:
        if self.is_broken:
            return None
        part = Part(first, end)
        self.parts.append(part)
        if self.is_immediate:
            part.finish()
        return part

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return [(part.first, part.end) for part in self.parts]


def a_back(blocks: int = 10, part: int = 3, frontier: int = 0) -> tuple[BackLoad, Disk]:
    disk = Disk()
    return BackLoad(blocks, part, disk.begin, frontier), disk


def test_parts_come_from_the_last_one_on_and_a_few_at_a_time() -> None:
    back, disk = a_back()
    assert disk.ranges == [(7, 10), (4, 7)]
    assert len(disk.parts) == PARTS_AT_A_TIME
    # The one in front came first: there is a gap behind it.
    disk.parts[1].finish()
    assert (back.span.low, back.span.high) == (10, 10)
    disk.parts[0].finish()
    assert (back.span.low, back.span.high, back.span.state) == (4, 10, LOADING)
    assert disk.ranges[2:] == [(1, 4), (0, 1)]
    disk.parts[2].finish()
    disk.parts[3].finish()
    assert (back.span.low, back.span.state) == (0, ENDED)


def test_parts_that_come_immediately_end_the_load() -> None:
    disk = Disk()
    disk.is_immediate = True
    back = BackLoad(1000, 3, disk.begin, 0)
    assert (back.span.low, back.span.high, back.span.state) == (0, 1000, ENDED)


def test_what_a_step_computes_is_ended_before_it_and_no_more_is_begun() -> None:
    back, disk = a_back()
    back.advance(4)
    assert not any(part.is_cancelled for part in disk.parts)
    back.advance(5)
    assert (disk.parts[1].is_cancelled, disk.parts[1].was_awaited) == (True, True)
    # It ends anyhow: its blocks are computed.
    disk.parts[1].finish()
    disk.parts[0].finish()
    assert (back.span.low, back.span.high, back.span.state) == (7, 10, ENDED)
    assert len(disk.parts) == 2


def test_a_part_begins_at_the_frontier() -> None:
    _, disk = a_back(frontier=5)
    assert disk.ranges == [(7, 10), (5, 7)]


def test_a_part_that_fails_ends_the_load_and_those_behind_it_stay() -> None:
    back, disk = a_back()
    disk.parts[0].finish()
    disk.parts[1].finish(2)
    assert (back.span.low, back.span.high, back.span.state) == (7, 10, FAILED)
    assert back.span.failed_at == 6
    assert len(disk.parts) == 3


def test_if_the_last_part_fails_its_leading_blocks_are_the_last_ones() -> None:
    back, disk = a_back()
    disk.parts[0].finish(1)
    assert (back.span.low, back.span.high, back.span.state) == (7, 8, LOADING)
    disk.parts[1].finish()
    assert (back.span.low, back.span.high, back.span.failed_at) == (4, 8, 8)


def test_a_part_that_the_store_refuses_ends_the_load_and_is_no_failure() -> None:
    back, disk = a_back()
    disk.parts[0].finish()
    disk.parts[1].throttled = True
    disk.parts[1].finish(0)
    assert (back.span.low, back.span.high, back.span.state) == (7, 10, ENDED)
    assert back.span.failed_at is None


def test_a_part_that_cannot_begin_ends_the_load() -> None:
    disk = Disk()
    disk.is_broken = True
    assert BackLoad(10, 3, disk.begin, 0).span.state is FAILED


def test_after_a_stop_nothing_is_written() -> None:
    back, disk = a_back()
    back.stop()
    assert all(part.is_cancelled and part.was_awaited for part in disk.parts)
    for part in disk.parts:
        part.finish()
    assert len(disk.parts) == 2
    assert back.span.low == back.span.high


def test_a_part_that_is_queued_behind_other_loads_is_not_waited_for() -> None:
    back, disk = a_back()
    disk.parts[1].is_queued = True
    back.stop()
    assert [part.was_awaited for part in disk.parts] == [True, False]


def job(number: int) -> LoadJob:
    return LoadJob(number, "r", [b""] * 10, list(range(10)), 1.0, way=LoadWay.BACK, part=3)


def test_a_worker_stops_a_load_before_it_begins_another() -> None:
    backs, first, second = WorkerBacks(), Disk(), Disk()
    backs.begin_step(StepPlan(loads=[job(1)], frontiers={1: 2}), lambda _: first.begin)
    assert first.ranges == [(7, 10), (4, 7)]
    assert list(backs.spans) == [1]

    def begin(_: LoadJob) -> Callable[[int, int], Part | None]:
        assert all(part.was_awaited for part in first.parts)
        return second.begin

    backs.begin_step(StepPlan(loads=[job(2)], frontiers={2: 0}, stopped=[1]), begin)
    assert list(backs.spans) == [2]


def test_a_worker_ends_what_a_step_computes() -> None:
    backs, disk = WorkerBacks(), Disk()
    backs.begin_step(StepPlan(loads=[job(1)], frontiers={1: 2}), lambda _: disk.begin)
    backs.begin_step(StepPlan(frontiers={1: 5}), lambda _: disk.begin)
    assert [part.was_awaited for part in disk.parts] == [False, True]


def test_a_worker_stops_loads_of_weights_that_were_replaced() -> None:
    backs, disk = WorkerBacks(), Disk()
    backs.begin_step(StepPlan(loads=[job(1)], frontiers={1: 0}), lambda _: disk.begin)
    backs.begin_step(StepPlan(loads=[job(2)], void_loads=2, frontiers={1: 0}), lambda _: disk.begin)
    assert all(part.was_awaited for part in disk.parts)
    assert list(backs.spans) == [1]


def test_all_workers_must_have_a_block() -> None:
    one, other = BackSpan(3, 10, LOADING, 1.0), BackSpan(5, 9, ENDED, 2.0)
    assert one.joined(other) == BackSpan(5, 9, ENDED, 2.0)
    assert one.joined(BackSpan(2, 2, FAILED, 0.5)) == BackSpan(2, 2, FAILED, 1.0)


def a_meeting(blocks: int = 40, part: int = 4, part_s: float = 0.1) -> Meeting:
    meeting = Meeting(32, blocks, part, TOKENS, blocks // 2, part_s)
    meeting.begin(100.0)
    return meeting


def linear(seconds_of_a_block: float) -> Callable[[int, int], float]:
    return lambda first, end: (end - first) / TOKENS * seconds_of_a_block


def test_a_chunk_ends_where_the_back_will_be() -> None:
    meeting = a_meeting()
    # A part of four blocks takes as long as computing four: they meet in the middle.
    tokens = meeting.chunk(32, 10_000, 100.0, linear(0.025), may_wait=False)
    assert tokens == 20 * TOKENS
    # Four parts have come, and the next one is about to: waiting takes less than computing.
    meeting.span = BackSpan(24, 40, LOADING, 100.42)
    computed = 32 + 20 * TOKENS
    assert meeting.target(computed) is None
    assert meeting.chunk(computed, 10_000, 100.5, linear(0.025), may_wait=True) == 0
    meeting.span = BackSpan(20, 40, LOADING, 100.6)
    assert meeting.target(computed) == 32 + 40 * TOKENS


def test_a_step_ends_at_a_block_if_it_is_too_short_to_meet() -> None:
    meeting = a_meeting()
    assert meeting.chunk(32, 100, 100.0, linear(0.025), may_wait=False) == 6 * TOKENS
    assert meeting.chunk(32 + 10, 100, 100.0, linear(0.025), may_wait=False) == 6 * TOKENS - 10
    # Less than a block.
    assert meeting.chunk(32, 10, 100.0, linear(0.025), may_wait=False) == 10


def test_a_part_that_is_overdue_is_not_waited_for_longer_than_computing_takes() -> None:
    meeting = a_meeting()
    meeting.span = BackSpan(4, 40, LOADING, 100.0)
    wait = [
        meeting.chunk(32, 10_000, 100.0 + late, linear(0.025), may_wait=True)
        for late in (0.0, 0.05, 0.2, 5.0)
    ]
    # Nine parts have come in no time, so the next one is overdue. Computing takes 0.1 s.
    assert wait == [0, 0, 4 * TOKENS, 4 * TOKENS]
    meeting = a_meeting(part_s=0.01)
    meeting.span = BackSpan(4, 40, LOADING, 100.09)
    wait = [
        meeting.chunk(32, 10_000, 100.09 + late, linear(0.025), may_wait=True)
        for late in (0.0, 0.005, 0.05, 0.2)
    ]
    assert wait == [0, 0, 0, 4 * TOKENS]
    # A request that is admitted computes something.
    assert meeting.chunk(32, 10_000, 100.09, linear(0.025), may_wait=False) == 4 * TOKENS


def test_without_more_parts_a_step_computes_what_is_missing() -> None:
    meeting = a_meeting()
    meeting.span = BackSpan(12, 40, FAILED, 100.1)
    assert meeting.chunk(32, 10_000, 100.1, linear(0.025), may_wait=True) == 12 * TOKENS
    meeting.span = BackSpan(40, 40, FAILED, 100.1)
    assert meeting.is_lost(32)
    meeting.span = BackSpan(12, 40, ENDED, 100.1)
    assert not meeting.is_lost(32)


@pytest.mark.parametrize("seed", range(dose(30, 1000)))
def test_both_ends_meet_about_as_soon_as_they_can(seed: int) -> None:
    """With any speeds, of which the prediction may be wrong by far, and any chunks."""
    choose = random.Random(seed)
    blocks, part = choose.randrange(2, 200), choose.randrange(1, 8)
    block_s, step_s = 10 ** choose.uniform(-4, -1), 10 ** choose.uniform(-4, -2)
    part_s = part * block_s * 10 ** choose.uniform(-1.5, 1.5)
    most = choose.choice([64, 512, 8192])
    meeting = a_meeting(blocks, part, part_s * 10 ** choose.uniform(-0.5, 0.5))
    now, computed, end = 100.0, 32, 32 + blocks * TOKENS

    def compute_s(first: int, last: int) -> float:
        return (last - first) / TOKENS * block_s + step_s * -(-(last - first) // most)

    steps = 0
    while computed < end:
        come = min(-(-blocks // part), int((now - 100.0) / part_s + 1e-9))
        low = max(0, blocks - come * part, -(-(computed - 32) // TOKENS))
        low = min(blocks, low)
        came_at = 100.0 + come * part_s
        meeting.span = BackSpan(low, blocks, LOADING, came_at)
        if meeting.target(computed) is not None:
            break
        tokens = meeting.chunk(computed, most, now, compute_s, may_wait=steps > 0)
        assert 0 <= tokens <= most
        assert tokens or steps
        # The engine looks again soon.
        now += compute_s(computed, computed + tokens) if tokens else 0.001
        computed += tokens
        steps += 1
        assert steps < 100_000
    all_s = compute_s(32, end)
    best_s = min(
        max(compute_s(32, 32 + front * TOKENS), -(-(blocks - front) // part) * part_s)
        for front in range(blocks + 1)
    )
    taken_s, step_most_s = now - 100.0, compute_s(32, 32 + most)
    # A part or a step is lost where they meet, and further steps.
    assert taken_s <= 1.1 * all_s + 20 * step_s + 0.01
    assert taken_s <= 2 * best_s + 2 * part_s + 2 * min(step_most_s, all_s) + 20 * step_s + 0.01
