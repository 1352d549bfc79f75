"""What the steps of an engine compute, and how long that takes.

1. A step is measured from its start, or from the end of the one before it if that is later: engines
   start a step while another one computes.
2. The memory of a clock is bounded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# Steps that were started and have not ended. Engines have a few.
MOST_STEPS = 64


@dataclass(frozen=True)
class StepWork:
    """What a step computes.

    Attributes:
        tokens: New tokens of all requests.
        pairs: Pairs of a new token and one before it in its request.
        read: Tokens of all requests whose keys and values are read, the new ones included.
    """

    tokens: float
    pairs: float
    read: float


@dataclass(frozen=True)
class StepTime:
    """How long a step computed.

    Attributes:
        work: What.
        seconds: Without the time for which it waited.
    """

    work: StepWork
    seconds: float


def work_of(requests: Iterable[tuple[int, int]]) -> StepWork | None:
    """Returns what a step computes; None for nothing.

    Args:
        requests: Of each request, the tokens that were computed before and the new ones.
    """
    tokens = pairs = read = 0.0
    for before, new in requests:
        tokens += new
        pairs += new * (before + new / 2)
        read += before + new
    return StepWork(tokens, pairs, read) if tokens else None


class StepClock:
    """Measures steps from outside: when the engine starts them, and when it has their results."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """Starts with no step.

        Args:
            now: Seconds, monotonic.
        """
        self._now = now
        self._begun: deque[tuple[StepWork | None, float]] = deque(maxlen=MOST_STEPS)
        self._ended_at = 0.0

    def begin(self, work: StepWork | None) -> None:
        """A step begins.

        Args:
            work: What it computes; None if its time says nothing.
        """
        self._begun.append((work, self._now()))

    def end(self) -> StepTime | None:
        """The oldest step has ended; returns its time, if it says anything."""
        if not self._begun:
            return None
        work, began_at = self._begun.popleft()
        ended_at = self._now()
        seconds = ended_at - max(began_at, self._ended_at)
        self._ended_at = ended_at
        return None if work is None else StepTime(work, seconds)

    def forget(self) -> None:
        """Forgets the steps that run: their ends are not seen."""
        self._begun.clear()
