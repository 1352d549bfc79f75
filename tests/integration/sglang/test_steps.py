"""What the hooks around SGLang's scheduler measure, and that they are harmless."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang")

from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from tests.integration.sglang.step_rig import FakeScheduler, decode, extend

from dalsegno.integrations.common.steps import MOST_STEPS, StepTime, StepWork
from dalsegno.integrations.sglang import steps

pytestmark = pytest.mark.engine


class Learner:
    """Remembers steps."""

    def __init__(self) -> None:
        self.known: list[StepTime] = []
        self.begun: list[StepWork | None] = []

    def begin_step(self, work: StepWork | None) -> None:
        self.begun.append(work)

    def note_step(self, step: StepTime) -> None:
        self.known.append(step)


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> FakeScheduler:
    """A scheduler that nobody has watched."""
    one = FakeScheduler()
    monkeypatch.setattr(steps, "_watch", one.watch)
    return one


@pytest.fixture
def learner(scheduler: FakeScheduler) -> Learner:
    one = Learner()
    steps.listen(one)
    return one


def test_prompts_and_answers_are_measured(scheduler: FakeScheduler, learner: Learner) -> None:
    scheduler.step(extend((10, 100), (0, 50)), 0.5)
    scheduler.step(decode([11, 101]), 0.02)
    scheduler.step(extend((10, 100), (63, 1), mode=ForwardMode.MIXED), 0.25)
    assert [one.work for one in learner.known] == [
        StepWork(150.0, 100 * 60 + 50 * 25, 160.0),
        StepWork(2.0, 10.5 + 100.5, 112.0),
        StepWork(101.0, 100 * 60 + 63.5, 174.0),
    ]
    assert [one.seconds for one in learner.known] == pytest.approx([0.5, 0.02, 0.25])
    assert learner.begun == [one.work for one in learner.known]


def test_a_step_that_begins_while_another_computes_is_measured_from_its_end(
    scheduler: FakeScheduler, learner: Learner
) -> None:
    first = scheduler.begin(extend((0, 100)))
    scheduler.now += 0.01
    second = scheduler.begin(decode([101]))
    scheduler.now += 0.09
    scheduler.end(first)
    scheduler.now += 0.02
    scheduler.end(second)
    assert [one.seconds for one in learner.known] == pytest.approx([0.1, 0.02])


@pytest.mark.parametrize(
    "batch",
    [
        decode([50], spec_algorithm=SpeculativeAlgorithm.EAGLE),
        decode([]),
        extend((0, 100), mode=ForwardMode.TARGET_VERIFY),
        extend((0, 100), mode=ForwardMode.SPLIT_PREFILL),
        extend((0, 100), mode=ForwardMode.PREBUILT),
        extend(mode=ForwardMode.IDLE),
        # Its layers wait for copies from host memory.
        SimpleNamespace(**{**vars(extend((0, 100))), "hicache_consumer_index": 0}),
    ],
    ids=["draft", "nothing", "verify", "split", "prebuilt", "idle", "copied"],
)
def test_what_says_nothing_about_computing_is_left_out(
    batch: Any, scheduler: FakeScheduler, learner: Learner
) -> None:
    batch.copy = lambda: batch
    scheduler.step(batch, 1.0)
    assert learner.known == []
    scheduler.step(extend((0, 100)), 0.5)
    assert [one.seconds for one in learner.known] == pytest.approx([0.5])


def test_results_that_never_come_do_not_shift_later_ones(
    scheduler: FakeScheduler, learner: Learner
) -> None:
    for number in range(3 * MOST_STEPS):
        scheduler.begin(extend((0, 1000 + number)))
    scheduler.now += 5.0
    # Nobody knows since when it computes.
    scheduler.step(extend((0, 100)), 0.5)
    # A result without a step, as when a step was begun before the hooks were there.
    steps._after_step(None, scheduler, SimpleNamespace(forward_iter=1), None)
    scheduler.step(extend((0, 200)), 0.25)
    (one,) = learner.known
    assert one.work.tokens == 200
    assert one.seconds == pytest.approx(0.25)


def test_an_exception_in_a_hook_is_harmless_and_logged_once(
    scheduler: FakeScheduler, learner: Learner, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "sglang.dalsegno"):
        for _ in range(3):
            kept = scheduler.begin(extend((0, 100)))
            steps._before_step()
            steps._before_step(scheduler, object())
            steps._after_step(None, scheduler, SimpleNamespace(forward_iter=None))
            scheduler.now += 1.0
            scheduler.end(kept)
    assert learner.known == []
    assert len(caplog.records) == 1
    scheduler.step(extend((0, 100)), 0.5)
    assert len(learner.known) == 1


def test_a_listener_that_fails_is_harmless(scheduler: FakeScheduler) -> None:
    class Broken:
        def begin_step(self, work: StepWork | None) -> None:
            raise ZeroDivisionError

        def note_step(self, step: StepTime) -> None:
            raise ZeroDivisionError

    broken = Broken()
    steps.listen(broken)
    scheduler.step(extend((0, 100)), 0.5)


def test_the_hooks_are_around_sglang_s_scheduler(
    scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.managers.scheduler import Scheduler

    scheduler.watch.is_registered = False
    assert steps.register()
    HookRegistry.apply_hooks()
    begun = list[tuple[object, ...]]()
    monkeypatch.setattr(scheduler.watch, "begin", lambda *step: begun.append(step))
    with pytest.raises(AttributeError):
        Scheduler.run_batch(scheduler, "batch")
    assert begun == [(scheduler, "batch")]
    assert f"{steps._MODULE}.Scheduler.{steps._END}" in HookRegistry._patched


def test_without_sglang_s_scheduler_nothing_is_registered(
    scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler.watch.is_registered = False
    for module in (None, SimpleNamespace(), SimpleNamespace(Scheduler=object)):
        monkeypatch.setitem(sys.modules, steps._MODULE, module)
        assert not steps.register()
    assert not steps.are_seen()
