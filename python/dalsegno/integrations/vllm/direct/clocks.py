"""How long the steps of a worker compute."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Protocol

import torch

from dalsegno.integrations.common.steps import StepTime, StepWork

# Steps whose times wait to be reported.
MOST_TIMES = 64


class WorkerClock(Protocol):
    """Measures how long steps compute."""

    def begin(self) -> None:
        """A step begins."""

    def end(self, work: StepWork, waited_s: float) -> None:
        """The step has ended, or is queued to its end.

        Args:
            work: What it computes.
            waited_s: Seconds for which this thread waited in it.
        """

    def take(self) -> list[StepTime]:
        """Returns the steps whose times are known since the last call."""


class HostClock:
    """Measures steps that have computed when they end."""

    def __init__(self) -> None:
        """Starts with no step."""
        self._began = 0.0
        self._times: list[StepTime] = []

    def begin(self) -> None:
        """A step begins."""
        self._began = time.monotonic()

    def end(self, work: StepWork, waited_s: float) -> None:
        """The step has ended."""
        seconds = time.monotonic() - self._began - waited_s
        self._times = [*self._times[1 - MOST_TIMES :], StepTime(work, seconds)]

    def take(self) -> list[StepTime]:
        """Returns the steps since the last call."""
        times, self._times = self._times, []
        return times


class GpuClock:
    """Measures steps in the stream of the GPU, which computes them after vLLM has queued them."""

    def __init__(self, device: Any) -> None:
        """Measures the current stream of a device.

        Args:
            device: PyTorch's.
        """
        self._device = device
        self._began: Any = None
        self._queued: deque[tuple[StepWork, Any, Any]] = deque(maxlen=MOST_TIMES)

    def _now(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def begin(self) -> None:
        """A step begins."""
        self._began = self._now()

    def end(self, work: StepWork, waited_s: float) -> None:
        """The step is queued to its end. No thread waits in the stream."""
        del waited_s
        self._queued.append((work, self._began, self._now()))

    def take(self) -> list[StepTime]:
        """Returns the steps that the GPU has computed since the last call."""
        times = []
        while self._queued and self._queued[0][2].query():
            work, began, ended = self._queued.popleft()
            times.append(StepTime(work, began.elapsed_time(ended) / 1e3))
        return times
