"""How long steps take, seen from outside."""

from __future__ import annotations

import pytest

from dalsegno.integrations.common.steps import MOST_STEPS, StepClock, StepWork, work_of

WORK = StepWork(1.0, 1.0, 1.0)


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def seconds(steps: StepClock) -> float | None:
    """Ends a step."""
    step = steps.end()
    assert step is None or step.work == WORK
    return None if step is None else step.seconds


def test_work_adds_the_requests_of_a_step() -> None:
    assert work_of([(0, 10), (100, 1)]) == StepWork(11, 50 + 100.5, 10 + 101)
    assert work_of([]) is None
    assert work_of([(5, 0)]) is None


def test_a_step_counts_from_its_start_or_from_the_end_of_the_one_before() -> None:
    clock = Clock()
    steps = StepClock(clock)
    steps.begin(WORK)
    clock.now += 1.0
    assert seconds(steps) == pytest.approx(1.0)
    clock.now += 5.0
    # The second step is started while the first one computes.
    steps.begin(WORK)
    clock.now += 0.5
    steps.begin(WORK)
    clock.now += 1.5
    assert seconds(steps) == pytest.approx(2.0)
    clock.now += 0.25
    assert seconds(steps) == pytest.approx(0.25)


def test_steps_of_unknown_work_separate_the_others() -> None:
    clock = Clock()
    steps = StepClock(clock)
    assert steps.end() is None
    steps.begin(None)
    steps.begin(WORK)
    clock.now += 3.0
    assert steps.end() is None
    clock.now += 1.0
    assert seconds(steps) == pytest.approx(1.0)


def test_steps_whose_ends_are_not_seen_take_no_memory_and_no_time_of_others() -> None:
    clock = Clock()
    steps = StepClock(clock)
    for _ in range(10 * MOST_STEPS):
        steps.begin(WORK)
    steps.forget()
    assert steps.end() is None
    steps.begin(WORK)
    clock.now += 1.0
    assert seconds(steps) == pytest.approx(1.0)
