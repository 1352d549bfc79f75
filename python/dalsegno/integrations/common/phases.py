"""Says to a store what its engine does, so that saves wait for reads and for steps.

1. It never waits, and no exception leaves it.
2. While blocks are loaded from the disk for requests, no save may delay them. A step of prompts
   that waits for nothing leaves the disk to saves for as long as it computes: the next reads come
   after it.
3. Steps that decode say how long they took, each over the same step as the model predicts it: the
   store lets saves start as fast as that stays as it is without them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

from dalsegno.integrations.common.steps import StepTime, StepWork

# A step whose tokens attend to so many others, on average over all tokens that are read, decodes.
DECODE_PAIRS = 2
# Between two messages of the same phase; a store believes one for five seconds.
REPEAT_S = 0.01
# Ratios that wait to be said.
MOST_RATIOS = 64

_numbers = itertools.count(1)


def decodes(work: StepWork) -> bool:
    """Whether a step computes no prompt, or hardly any."""
    return work.pairs < DECODE_PAIRS * work.read


class Phases:
    """What one engine says.

    Attributes:
        number: Of the engine in this process.
    """

    def __init__(
        self,
        model: Any,
        is_loading: Callable[[], bool],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Has said nothing yet.

        Args:
            model: The cost model of the engine.
            is_loading: Whether blocks are being loaded from the disk for requests.
            now: Seconds, monotonic.
        """
        self.number = next(_numbers)
        self._model, self._is_loading, self._now = model, is_loading, now
        self._ratios: list[float] = []
        self._said, self._slack_s, self._said_at = "", 0.0, 0.0

    def note_step(self, step: StepTime) -> None:
        """A step has computed. Call it before the model learns from it."""
        if decodes(step.work):
            work = step.work
            predicted_s = self._model.step_s(work.tokens, work.pairs, work.read)
            self._ratios = [*self._ratios[1 - MOST_RATIOS :], step.seconds / predicted_s]

    def begin_step(self, store: Any, work: StepWork | None, *, computes: bool = True) -> None:
        """A step begins.

        Args:
            store: Of the engine; None while it is not open.
            work: What the step computes; None if that is not known.
            computes: Whether it computes anything.
        """
        phase, slack_s, is_loading = "prefill", 0.0, self._is_loading()
        if not is_loading and not computes:
            phase = "idle"
        elif not is_loading and work is not None:
            if decodes(work):
                phase = "decode"
            else:
                slack_s = self._model.step_s(work.tokens, work.pairs, work.read)
        now = self._now()
        is_same = phase == self._said and slack_s >= self._slack_s
        if store is None or (is_same and now - self._said_at < REPEAT_S):
            return
        ratios, self._ratios = self._ratios, []
        self._said, self._slack_s, self._said_at = phase, slack_s, now
        store.set_phase(self.number, phase, slack_s=slack_s, steps=ratios)
