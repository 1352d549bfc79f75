"""Loads the back of a prompt, from its last block on, while vLLM computes its front.

1. Nothing is written to a block that vLLM may compute: a part of which a step computes tokens has
   ended before that step begins, and no part is begun in front of the computed tokens.
2. After `stop` nothing is written to any block.
3. Parts come from the last one on. One that fails ends the load, and those behind it stay of use;
   if none has come yet, the leading blocks of the failed part are the last ones.
4. A load whose blocks may be of weights that were replaced is stopped, and never jumped over.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from dalsegno.integrations.common.meeting import BackSpan, BackState
from dalsegno.integrations.vllm.direct.step import LoadJob, LoadWay, StepPlan

# Parts that are read at a time, so that the disk does not wait for the next one.
PARTS_AT_A_TIME = 2


class _Part(NamedTuple):
    """A part that is being loaded."""

    first: int
    end: int
    load: Any


class BackLoad:
    """The load of the back of one prompt. Threads of the store begin its next parts."""

    def __init__(
        self, blocks: int, part: int, begin: Callable[[int, int], Any], frontier: int
    ) -> None:
        """Begins.

        Args:
            blocks: How many blocks can be loaded.
            part: Blocks of a part.
            begin: Begins to load blocks from a position to another one; returns the store's load,
                None if it cannot. Never raises.
            frontier: Position of the first block that no step computes.
        """
        self._part, self._begin, self._frontier = part, begin, frontier
        self._lock = threading.RLock()
        self._parts: deque[_Part] = deque()
        # Position behind the next part to begin.
        self._next = self._low = self._high = blocks
        self._state = BackState.LOADING
        self._failed_at: int | None = None
        self._changed_at = time.monotonic()
        self._go_on()

    def _go_on(self) -> None:
        """Takes the parts that have ended, and begins others; called by threads of the store."""
        with self._lock:
            while self._parts and self._parts[0].load.done():
                self._take(self._parts.popleft())
            while (
                self._state is BackState.LOADING
                and len(self._parts) < PARTS_AT_A_TIME
                and self._next > self._frontier
            ):
                first = max(self._frontier, self._next - self._part)
                end, self._next = self._next, first
                load = self._begin(first, end)
                if load is None:
                    self._state = BackState.FAILED
                    break
                self._parts.append(_Part(first, end, load))
                # Calls this now if the load has ended.
                load.on_end(self._go_on)
            if not self._parts and self._state is BackState.LOADING:
                # The frontier never goes back.
                self._state = BackState.ENDED

    def _take(self, part: _Part) -> None:
        """Notes what a part has brought."""
        if self._state is not BackState.LOADING:
            return
        if part.load.throttled:
            # Nothing is wrong with its blocks.
            self._state = BackState.ENDED
            return
        try:
            count = part.load.result()
        except Exception:  # noqa: BLE001 - its blocks are computed
            count = 0
        if count == part.end - part.first:
            self._low, self._changed_at = part.first, time.monotonic()
            return
        self._failed_at = part.first + count
        if self._low == self._high:
            # What comes before a failed block is the last that may still be of use.
            self._low, self._high = part.first, part.first + count
            self._changed_at = time.monotonic()
        else:
            self._state = BackState.FAILED

    def advance(self, frontier: int) -> None:
        """Notes that steps may compute the blocks before a position from now on."""
        with self._lock:
            self._frontier = max(self._frontier, frontier)
            reached = [one for one in self._parts if one.first < self._frontier]
            if reached:
                # What is left behind them has no part on its way.
                self._parts = deque(one for one in self._parts if one.first >= self._frontier)
                self._next = min(self._next, self._frontier)
        _end(reached)
        self._go_on()

    def stop(self) -> None:
        """Ends the load; waits for parts that are being written."""
        with self._lock:
            self._state = max(self._state, BackState.ENDED)
            parts, self._parts = list(self._parts), deque()
        _end(parts)

    @property
    def span(self) -> BackSpan:
        """What is loaded."""
        with self._lock:
            return BackSpan(self._low, self._high, self._state, self._changed_at, self._failed_at)


def _end(parts: list[_Part]) -> None:
    """Cancels parts, and waits until nothing of them is written any more."""
    # One that is queued behind other loads must not be waited for.
    begun = [part for part in parts if not part.load.withdraw()]
    for part in begun:
        part.load.wait()


class WorkerBacks:
    """The loads of backs of one worker."""

    def __init__(self) -> None:
        """Starts with none."""
        self._loads: dict[int, BackLoad] = {}

    def begin_step(
        self, plan: StepPlan, begin: Callable[[LoadJob], Callable[[int, int], Any]]
    ) -> None:
        """Ends what a step may write over, and begins what it asks for.

        Args:
            plan: Of the step.
            begin: Returns what begins to load some blocks of a job, as `BackLoad` takes it.
        """
        for number in plan.stopped:
            if load := self._loads.pop(number, None):
                load.stop()
        for number, load in self._loads.items():
            if number <= plan.void_loads:
                load.stop()
            elif number in plan.frontiers:
                load.advance(plan.frontiers[number])
        for job in plan.loads:
            if job.way is LoadWay.BACK and job.number > plan.void_loads:
                frontier = plan.frontiers.get(job.number, 0)
                load = BackLoad(len(job.chain), job.part, begin(job), frontier)
                self._loads[job.number] = load

    @property
    def spans(self) -> dict[int, list[BackSpan]]:
        """What is loaded of each."""
        return {number: [load.span] for number, load in self._loads.items()}

    def close(self) -> None:
        """Ends all loads."""
        for load in self._loads.values():
            load.stop()
