"""Transfer jobs under way: what vLLM asked for, and what became of it.

1. A job is reported once, when every transfer of it has ended; until then nobody but the store
   touches its rows.
2. A transfer that outlives its time is cancelled, and the job still waits for it to end: with a
   timeout the store ends it by itself.
3. Every wait has a bound, also for a transfer that does not end against all promises.
4. A part that failed is its blocks missing, never an exception.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from dalsegno.integrations.vllm.request_state import RequestState

# How long after its own timeout a transfer is cancelled from here.
GRACE_S = 2.0


@dataclass(slots=True)
class Part:
    """One transfer of a job.

    Attributes:
        keys: Keys of its blocks, in the order of its buffers.
        transfer: The store's handle.
    """

    keys: list[bytes]
    transfer: Any


@dataclass(slots=True)
class Job:
    """One transfer job of vLLM's.

    Attributes:
        job_id: vLLM's number.
        is_load: Whether blocks come from the store; else they go to it.
        keys: All keys that vLLM named.
        request: Of whom; None if the request is gone or unknown.
        started: When vLLM asked.
        timeout_s: How long its transfers may take.
        parts: What is under way.
        moving_bytes: Bytes under way.
        kept: Blocks that are where vLLM wanted them: in the store, or in their rows.
        failed: Whether something failed already when it was started.
        cancelled: Whether its transfers were called off.
    """

    job_id: int
    is_load: bool
    keys: tuple[bytes, ...]
    request: RequestState | None
    started: float
    timeout_s: float
    parts: list[Part] = field(default_factory=list)
    moving_bytes: int = 0
    kept: list[bytes] = field(default_factory=list)
    failed: bool = False
    cancelled: bool = False

    def ended(self) -> bool:
        """Whether no transfer of it is under way."""
        return all(part.transfer.done() for part in self.parts)

    def cancel(self) -> None:
        """Calls off what is under way."""
        if not self.cancelled:
            self.cancelled = True
            for part in self.parts:
                part.transfer.cancel()


class JobBook:
    """The jobs under way, in the order in which they came."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts empty."""
        self._clock = clock
        self._jobs: list[Job] = []
        # Kept as a sum, since every lookup asks for it.
        self._loading_bytes = 0

    def add(self, job: Job) -> None:
        """Takes a job that was started, or that failed to start."""
        self._jobs.append(job)
        if job.is_load:
            self._loading_bytes += job.moving_bytes

    def under_way(self, *, is_load: bool) -> int:
        """Returns how many jobs of a direction are under way."""
        return sum(job.is_load == is_load and bool(job.parts) for job in self._jobs)

    def storing_bytes(self) -> int:
        """Returns how many bytes are being written."""
        return sum(job.moving_bytes for job in self._jobs if not job.is_load)

    def loading_bytes(self) -> int:
        """Returns how many bytes are being read."""
        return self._loading_bytes

    def storing(self) -> set[bytes]:
        """Returns the keys that are being written."""
        return {
            key for job in self._jobs if not job.is_load for part in job.parts for key in part.keys
        }

    def take_ended(self) -> list[Job]:
        """Hands out the jobs that have ended; cancels those that take too long."""
        now, ended, left = self._clock(), [], []
        for job in self._jobs:
            if job.ended():
                ended.append(job)
                if job.is_load:
                    self._loading_bytes -= job.moving_bytes
                continue
            if now - job.started > job.timeout_s + GRACE_S:
                job.cancel()
            left.append(job)
        self._jobs = left
        return ended

    def wait(self, timeout_s: float) -> bool:
        """Waits until all jobs have ended.

        Args:
            timeout_s: Seconds after which everything is called off and waited for once more as
                long.

        Returns:
            Whether all have ended.
        """
        return self._wait(timeout_s, timeout_s)

    def drain(self, timeout_s: float) -> bool:
        """Lets each job have its own time, and waits until all have ended.

        Args:
            timeout_s: How long those that outlive their time are waited for, once they are called
                off.

        Returns:
            Whether all have ended.
        """
        now = self._clock()
        left = [job.started + job.timeout_s - now for job in self._jobs if job.parts]
        return self._wait(max(left, default=0.0) + GRACE_S, timeout_s)

    def _wait(self, patience_s: float, timeout_s: float) -> bool:
        """Waits, calls off what is left, and waits once more."""
        transfers = [part.transfer for job in self._jobs for part in job.parts]
        if self._wait_for(transfers, patience_s):
            return True
        self._cancel()
        return self._wait_for(transfers, timeout_s)

    def _wait_for(self, transfers: Iterable[Any], timeout_s: float) -> bool:
        """Waits for transfers together; returns whether all have ended."""
        end = self._clock() + timeout_s
        return all(transfer.wait(max(0.0, end - self._clock())) for transfer in transfers)

    def _cancel(self) -> None:
        """Calls everything off."""
        for job in self._jobs:
            job.cancel()
