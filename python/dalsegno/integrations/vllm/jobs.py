"""vLLM's transfer jobs that are in flight.

1. A job is reported once, when every transfer of it has ended (`common/batch.py`).
2. Every wait has a bound, even for a transfer that never ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from dalsegno.integrations.common.batch import GRACE_S, Batch
from dalsegno.integrations.vllm.request_state import RequestState


@dataclass(slots=True)
class Part:
    """One transfer of a job.

    Attributes:
        keys: Keys of its blocks, in the order of its buffers.
        transfer: The store's handle.
    """

    keys: list[bytes]
    transfer: Any


@dataclass(slots=True, kw_only=True)
class Job(Batch[Part]):
    """A transfer job of vLLM.

    Attributes:
        job_id: vLLM's number.
        is_load: Whether blocks come from the store; else they go to it.
        keys: All keys that vLLM named.
        request: State of its request; None if the request is gone or unknown.
        moving_bytes: Bytes in flight.
        kept: Keys of blocks that are in the store, or of a load in their rows.
        failed: Whether something failed when it was started.
        ends: When its transfers ended, as far as that was asked for.
    """

    job_id: int
    is_load: bool
    keys: tuple[bytes, ...]
    request: RequestState | None
    moving_bytes: int = 0
    kept: list[bytes] = field(default_factory=list)
    failed: bool = False
    ends: list[float] = field(default_factory=list)

    def watch(self) -> None:
        """Notes from now on when its transfers end: threads of the store do."""
        for part in self.parts:
            part.transfer.on_end(self.note_end)

    def note_end(self) -> None:
        """Notes that a transfer has ended now."""
        self.ends.append(time.monotonic())


class JobBook:
    """The jobs in flight, in the order of their start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts empty."""
        self._clock = clock
        self._jobs: list[Job] = []
        # Kept as a sum, since every lookup asks for it.
        self._loading_bytes = 0

    def add(self, job: Job) -> None:
        """Adds a job that was started, or that failed to start."""
        self._jobs.append(job)
        if job.is_load:
            self._loading_bytes += job.moving_bytes

    def under_way(self, *, is_load: bool) -> int:
        """Returns how many jobs of a direction are in flight."""
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
        """Removes and returns the jobs that have ended; cancels those that are late."""
        now, ended, left = self._clock(), [], []
        for job in self._jobs:
            if job.ended():
                ended.append(job)
                if job.is_load:
                    self._loading_bytes -= job.moving_bytes
                continue
            job.cancel_if_late(now)
            left.append(job)
        self._jobs = left
        return ended

    def wait(self, timeout_s: float) -> bool:
        """Waits until all jobs have ended.

        Args:
            timeout_s: Seconds after which all jobs are cancelled, and then again the longest wait.

        Returns:
            Whether all have ended.
        """
        return self._wait(timeout_s, timeout_s)

    def drain(self, timeout_s: float) -> bool:
        """Waits until all jobs have ended, each for its own timeout.

        Args:
            timeout_s: Longest wait for late jobs after they are cancelled.

        Returns:
            Whether all have ended.
        """
        now = self._clock()
        left = [job.started + job.timeout_s - now for job in self._jobs if job.parts]
        return self._wait(max(left, default=0.0) + GRACE_S, timeout_s)

    def _wait(self, first_s: float, timeout_s: float) -> bool:
        """Waits, cancels the rest, and waits again."""
        transfers = [part.transfer for job in self._jobs for part in job.parts]
        if self._wait_for(transfers, first_s):
            return True
        for job in self._jobs:
            job.cancel()
        return self._wait_for(transfers, timeout_s)

    def _wait_for(self, transfers: Iterable[Any], timeout_s: float) -> bool:
        """Waits for transfers together; returns whether all have ended."""
        end = self._clock() + timeout_s
        return all(transfer.wait(max(0.0, end - self._clock())) for transfer in transfers)
