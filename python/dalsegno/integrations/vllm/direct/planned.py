"""The loads and saves that the scheduler's half has planned, until all workers have ended them.

1. The blocks of a save are put only when the scheduler's half has confirmed it: all workers have
   copied them, and no step load had failed when these steps ended. After a failed load, what ranks
   compute is wrong on all of them, also on those whose own load was right.
2. Whatever makes blocks doubtful (a failed step load, a reset, changed weights) voids all saves
   that are not confirmed. A voided save may be planned again.
3. Until a step load has ended, no other request uses its blocks, which vLLM's own cache offers as
   soon as they are allocated: vLLM would let only one of these requests compute them again.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dalsegno.integrations.vllm.direct.requests import DirectRequest
from dalsegno.integrations.vllm.direct.step import LoadEnd, LoadJob, SaveJob, StepPlan, StepReport

# Blocks whose failed loads are remembered.
MOST_FAILING = 4096


@dataclass(frozen=True)
class Awaited:
    """Blocks that are being loaded for a request that waits for them.

    Attributes:
        count: How many of those that another request wants first.
        left_s: Seconds until they are there, as predicted; until it is given up if a load is late.
    """

    count: int
    left_s: float


@dataclass
class PlannedLoad:
    """A load.

    Attributes:
        job: What is loaded.
        request: For which request.
        hashes: vLLM's own hashes of the blocks to load.
        pages: vLLM's blocks of the request from the first one to load on: what the step computes
            behind them depends on them.
        first: Position of its first block in the prompt.
        leases: The blocks in their places, by namespace, if they are loaded inside a step.
        until: When it is given up, in seconds of the monotonic clock.
        ready: When it should have ended.
        ends: What the workers say that have ended it.
        was_refused: Whether a worker did not begin it, as too many transfers were queued.
    """

    job: LoadJob
    request: DirectRequest
    hashes: list[bytes]
    pages: list[int]
    first: int
    leases: Sequence[Any]
    until: float = 0.0
    ready: float = 0.0
    ends: list[LoadEnd] = field(default_factory=list)
    was_refused: bool = False

    @property
    def loaded(self) -> int:
        """How many leading blocks are there on all workers."""
        return min(end.count for end in self.ends)

    @property
    def seconds(self) -> float:
        """How long it took on the slowest worker; 0 if it did not begin on all of them."""
        times = [end.seconds for end in self.ends]
        return max(times) if all(times) else 0.0

    @property
    def was_late(self) -> bool:
        """Whether a worker gave it up because its step would have waited too long."""
        return any(end.was_late for end in self.ends)


class PlannedLoads:
    """All loads that have not ended.

    Attributes:
        workers: How many workers load each block.
    """

    def __init__(self, workers: int, pause_s: float) -> None:
        """Starts with none.

        Args:
            workers: How many workers load each block.
            pause_s: Seconds for which a block is not tried again after its load has failed.
        """
        self.workers, self._pause_s = workers, pause_s
        self._last, self.void_up_to = 0, 0
        self._running: dict[int, PlannedLoad] = {}
        # Names of blocks for which requests wait: their loads, and where they are in these.
        self._awaited: dict[bytes, tuple[PlannedLoad, int]] = {}
        # vLLM's hashes of blocks that steps load.
        self._in_step: Counter[bytes] = Counter()
        # Names of blocks whose load has failed, and until when none is tried.
        self._failing: dict[bytes, float] = {}

    def next_number(self) -> int:
        """Returns the number of the next load."""
        self._last += 1
        return self._last

    def add(self, planned: PlannedLoad, load_s: float) -> None:
        """Adds a load that is predicted to take so many seconds."""
        job = planned.job
        self._running[job.number] = planned
        if job.is_in_step:
            self._in_step.update(planned.hashes)
        else:
            now = time.monotonic()
            planned.until, planned.ready = now + job.timeout_s, now + load_s
            self._awaited.update((name, (planned, at)) for at, name in enumerate(job.chain))

    def awaited(self, names: Sequence[bytes]) -> Awaited | None:
        """Returns which leading blocks are being loaded for a request that waits for them."""
        planned, first = self._awaited.get(names[0], (None, 0)) if names else (None, 0)
        now = time.monotonic()
        if planned is None or planned.until <= now:
            return None
        chain = planned.job.chain
        # A name stands for all blocks before it, too.
        most = range(min(len(names), len(chain) - first))
        count = bisect_left(most, True, key=lambda at: names[at] != chain[first + at])
        # What is late may take as long as it is allowed to.
        end = planned.ready if planned.ready > now else planned.until
        return Awaited(count, end - now)

    def fills(self, hashes: Iterable[bytes]) -> bool:
        """Whether a step that has not ended loads one of these blocks, by vLLM's own hashes."""
        return bool(self._in_step) and not self._in_step.keys().isdisjoint(map(bytes, hashes))

    def void(self) -> None:
        """Lets no load bring anything that has begun. May be called from any thread."""
        self.void_up_to = self._last

    def forgive(self, names: Iterable[bytes]) -> None:
        """Notes that blocks were stored again, so that they may be loaded."""
        for name in names if self._failing else ():
            self._failing.pop(name, None)

    def note_failing(self, names: Iterable[bytes]) -> None:
        """Lets blocks that could not be loaded not be tried for a while."""
        now = time.monotonic()
        self._failing = {name: until for name, until in self._failing.items() if until > now}
        if len(self._failing) < MOST_FAILING:
            self._failing.update((name, now + self._pause_s) for name in names)

    def without_failing(self, names: list[bytes]) -> list[bytes]:
        """Returns the blocks before the first one whose load has failed a short time ago."""
        bad = (at for at, name in enumerate(names) if _is_before(self._failing, name))
        return names[: next(bad, len(names))]

    def take(self, report: StepReport) -> list[PlannedLoad]:
        """Takes what workers report; returns the loads that have ended on all of them."""
        ended = []
        for number, ends in report.loads.items():
            planned = self._running.get(number)
            if planned is None:
                continue
            planned.ends += ends
            planned.was_refused |= number in report.refused
            if len(planned.ends) >= self.workers:
                ended.append(self._end(number))
        return ended

    def are_of_others(self, request_id: str) -> bool:
        """Whether something is loaded for another request."""
        return any(one.job.request_id != request_id for one in self._running.values())

    def drop(self, number: int) -> PlannedLoad:
        """Forgets a load that no worker ends."""
        planned = self._running.pop(number)
        if planned.job.is_in_step:
            self._in_step -= Counter(planned.hashes)
        else:
            for name in planned.job.chain:
                self._awaited.pop(name, None)
        return planned

    def _end(self, number: int) -> PlannedLoad:
        planned = self.drop(number)
        job = planned.job
        # A load inside a step has little time, and one that did not begin has no fault: they say
        # nothing about their blocks.
        says_nothing = job.is_in_step or planned.was_refused
        is_bad = not says_nothing and number > self.void_up_to
        if is_bad:
            self.note_failing(job.chain[planned.loaded : planned.loaded + 1])
        for lease in planned.leases:
            lease.release()
        return planned

    @property
    def is_busy(self) -> bool:
        """Whether a load has not ended."""
        return bool(self._running)


@dataclass
class PlannedSave:
    """A save: the blocks are copied, then confirmed, then put.

    Attributes:
        job: What is saved.
        request: Of which request.
        copied: Whether the workers have copied all layers that have ended.
        puts: What became of its blocks, on the workers that have put them.
    """

    job: SaveJob
    request: DirectRequest
    copied: list[bool] = field(default_factory=list)
    puts: list[tuple[int, int]] = field(default_factory=list)


class PlannedSaves:
    """All saves that have not ended."""

    def __init__(self, workers: int) -> None:
        """Starts with none.

        Args:
            workers: How many workers save each block.
        """
        self._workers = workers
        self._last, self._void_up_to = 0, 0
        self._copying: dict[int, PlannedSave] = {}
        # Copied by all workers, or given up by one.
        self._copied: dict[int, PlannedSave] = {}
        self._putting: dict[int, PlannedSave] = {}
        # vLLM's blocks that are being copied.
        self._read: Counter[int] = Counter()

    def add(
        self,
        request: DirectRequest,
        chain: list[bytes],
        first: int,
        pages: list[int],
        *,
        is_written: bool,
    ) -> SaveJob:
        """Adds a save of a request; the other arguments are those of `SaveJob`."""
        self._last += 1
        job = SaveJob(self._last, chain, first, pages, is_written)
        self._copying[job.number] = PlannedSave(job, request)
        self._read.update(pages)
        return job

    def read(self, pages: Iterable[int]) -> bool:
        """Whether some of vLLM's blocks are being copied."""
        return any(page in self._read for page in pages)

    def void(self) -> None:
        """Voids every save that is not confirmed. May be called from any thread."""
        self._void_up_to = self._last

    def take(self, report: StepReport) -> list[PlannedSave]:
        """Takes what workers report; returns the saves whose puts have ended on all of them."""
        for number, copied in report.copied.items():
            if (save := self._copying.get(number)) is None:
                continue
            save.copied += copied
            if len(save.copied) >= self._workers:
                self._copied[number] = self._copying.pop(number)
                self._read -= Counter(save.job.pages)
        ended = []
        for number, puts in report.puts.items():
            if (save := self._putting.get(number)) is None:
                continue
            save.puts += puts
            if len(save.puts) >= self._workers:
                ended.append(self._putting.pop(number))
        return ended

    def decide(self, plan: StepPlan) -> list[PlannedSave]:
        """Confirms or voids all saves that were copied; returns those that save nothing."""
        copied, self._copied, dropped = self._copied, {}, []
        for number, save in copied.items():
            if all(save.copied) and number > self._void_up_to:
                plan.confirmed.append(number)
                self._putting[number] = save
            else:
                plan.void.append(number)
                dropped.append(save)
        return dropped

    @property
    def is_busy(self) -> bool:
        """Whether a save has not ended."""
        return bool(self._copying or self._copied or self._putting)


def _is_before(times: dict[bytes, float], name: bytes) -> bool:
    """Whether it is before the time of a block."""
    until = times.get(name)
    return until is not None and time.monotonic() < until
