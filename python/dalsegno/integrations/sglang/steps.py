"""How long SGLang's steps compute, measured around its scheduler by SGLang's own hooks.

1. No exception leaves a hook. After one, the steps that run are forgotten.
2. A result belongs to the step with its number. Earlier steps without a result are forgotten, so
   the clock stays in step with the scheduler.
3. A step of unknown work (a draft is verified, a prompt is split) is left out, and so is one behind
   steps without a result: nobody knows when it began to compute.
4. Memory is bounded, and a hook costs a few microseconds.
"""

from __future__ import annotations

import itertools
import logging
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from dalsegno.integrations.common.steps import (
    MOST_STEPS,
    StepClock,
    StepTime,
    StepWork,
    work_of,
)
from dalsegno.integrations.common.wishes import NEXT

logger = logging.getLogger("sglang.dalsegno")

_MODULE = "sglang.srt.managers.scheduler"
_BEGIN, _END = "run_batch", "process_batch_result"


class Listener(Protocol):
    """What learns from steps."""

    def begin_step(self, work: StepWork | None) -> None:
        """Notes that a step begins; None if its work is not known."""

    def note_step(self, step: StepTime) -> None:
        """Learns how long a step took."""


def work_of_batch(batch: Any) -> StepWork | None:
    """Returns what a batch computes; None if its time says nothing about computing.

    Args:
        batch: SGLang's `ScheduleBatch`, ready to run.
    """
    mode = batch.forward_mode.name
    if mode == "DECODE" and batch.spec_algorithm.is_none() and batch.seq_lens_cpu is not None:
        # The new token counts in the length of a request. A loop would take too long.
        requests, read = float(len(batch.reqs)), float(batch.seq_lens_cpu.sum())
        return StepWork(requests, read - requests / 2, read) if requests else None
    # With a consumer, the layers of the step wait for copies from host memory.
    if mode in ("EXTEND", "MIXED") and batch.hicache_consumer_index < 0:
        return work_of(zip(batch.prefix_lens, batch.extend_lens, strict=True))
    return None


class StepWatch:
    """Measures the steps of the scheduler of this process. All calls come from its thread.

    Attributes:
        is_registered: Whether SGLang knows the hooks.
        waiting: Requests that waited when the last step began or ended.
        longest: Tokens of the longest of those that wait next.
        listeners: What learns from the steps, as long as it lives.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """Starts with no step.

        Args:
            now: Seconds, monotonic.
        """
        self.is_registered, self.waiting, self.longest = False, 0, 0
        self.listeners: weakref.WeakSet[Any] = weakref.WeakSet()
        self._clock = StepClock(now)
        # Numbers of the steps that the clock measures.
        self._numbers: deque[int] = deque(maxlen=MOST_STEPS)
        self._has_failed = False

    def begin(self, scheduler: Any, batch: Any) -> None:
        """A step begins.

        Args:
            scheduler: SGLang's.
            batch: What it computes.
        """
        number, work = scheduler.forward_ct + 1, work_of_batch(batch)
        self._look(scheduler)
        self._numbers.append(number)
        self._clock.begin(work)
        for one in list(self.listeners):
            one.begin_step(work)

    def end(self, scheduler: Any, batch: Any) -> None:
        """The result of a step was processed.

        Args:
            scheduler: SGLang's.
            batch: What it computed, or a copy of it.
        """
        number, step = batch.forward_iter, None
        self._look(scheduler)
        is_next = bool(self._numbers) and self._numbers[0] == number
        while self._numbers and self._numbers[0] <= number:
            self._numbers.popleft()
            step = self._clock.end()
        if step is not None and is_next:
            for one in list(self.listeners):
                one.note_step(step)

    def _look(self, scheduler: Any) -> None:
        """Notes who waits."""
        self.waiting = len(scheduler.waiting_queue)
        first = itertools.islice(scheduler.waiting_queue, NEXT)
        self.longest = max((len(one.origin_input_ids) for one in first), default=0)

    @property
    def is_computing(self) -> bool:
        """Whether a step has begun and not ended."""
        return bool(self._numbers)

    def fail(self, error: Exception) -> None:
        """Forgets the steps that run, after an exception; logs the first one."""
        self._numbers.clear()
        self._clock.forget()
        if not self._has_failed:
            self._has_failed = True
            logger.warning("Dalsegno cannot measure a step of SGLang: %r", error)


_watch = StepWatch()


def register() -> bool:
    """Registers the hooks, if SGLang's scheduler is in this process; returns whether they are.

    SGLang must apply them afterwards.
    """
    if _watch.is_registered:
        return True
    scheduler = getattr(sys.modules.get(_MODULE), "Scheduler", None)
    if not all(callable(getattr(scheduler, name, None)) for name in (_BEGIN, _END)):
        return False
    HookRegistry.register(f"{_MODULE}.Scheduler.{_BEGIN}", _before_step, HookType.BEFORE)
    HookRegistry.register(f"{_MODULE}.Scheduler.{_END}", _after_step, HookType.AFTER)
    _watch.is_registered = True
    return True


def listen(listener: Listener) -> None:
    """Reports every measured step to a listener from now on, as long as it lives."""
    _watch.listeners.add(listener)


def ignore(listener: Listener) -> None:
    """Reports no more steps to a listener."""
    _watch.listeners.discard(listener)


def are_seen() -> bool:
    """Returns whether steps of this process are measured."""
    return _watch.is_registered


def waiting() -> int:
    """Returns how many requests wait for a step."""
    return _watch.waiting


def longest() -> int:
    """Returns the tokens of the longest request of those that wait next."""
    return _watch.longest


def is_computing() -> bool:
    """Returns whether a step has begun and not ended."""
    return _watch.is_computing


def _before_step(*args: Any, **kwargs: Any) -> None:
    """SGLang runs a batch."""
    try:
        _watch.begin(args[0], kwargs["batch"] if "batch" in kwargs else args[1])
    except Exception as error:  # noqa: BLE001 - SGLang's scheduler ends by it
        _watch.fail(error)


def _after_step(_: Any, *args: Any, **kwargs: Any) -> None:
    """SGLang has processed the result of a batch."""
    try:
        _watch.end(args[0], kwargs["batch"] if "batch" in kwargs else args[1])
    except Exception as error:  # noqa: BLE001 - SGLang's scheduler ends by it
        _watch.fail(error)
