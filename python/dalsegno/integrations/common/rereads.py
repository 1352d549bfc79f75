"""Reads some blocks that were not worth loading, while their request is computed.

So a tier that became fast is found again after a request or two, and none waits for it.

1. One read at a time, of a quarter of the blocks and at most 64 MiB, but of one block at least,
   each with a time limit. All workers' blocks are read at once, as loads do. Its bytes count as
   queued. Every second one is a quarter as large: two sizes show the time before the first byte,
   and that of each byte.
2. Of the first 16 requests in a row that load nothing from a tier each is used, then one in 16.
3. What was read goes nowhere: into memory that is kept for the next read. No call waits.
"""

from __future__ import annotations

import mmap
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dalsegno import DalsegnoError
from dalsegno.integrations.common.deciding import LoadDecider
from dalsegno.integrations.common.wishes import Runs

PART, MOST_BYTES = 4, 64 << 20
# Sizes of reads of a tier, one after the other, as parts of that.
SIZES = (1, 4)
# Requests in a row that are used, and of how many one is used then.
IN_A_ROW, SELDOM = 16, 16
# Seconds after which a read is given up, at least and at most.
LEAST_S, MOST_S = 0.05, 10.0


@dataclass
class _Read:
    """A read under way.

    Attributes:
        tier: What is measured.
        size: Bytes, of one worker.
        transfers: The store's, one for each worker.
        started: In seconds of the monotonic clock.
        ends: The same, as far as they have ended.
    """

    tier: str
    size: int
    started: float
    transfers: list[Any] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def note_end(self) -> None:
        """Notes that one has ended; called by a thread of the store."""
        self.ends.append(time.monotonic())


class Turns:
    """Which requests are used for a read, and how much is read."""

    def __init__(self) -> None:
        """Starts without requests."""
        # Requests whose blocks of a tier were declined since some were loaded, and reads of it.
        self._declined: Counter[str] = Counter()
        self._reads: Counter[str] = Counter()

    def note_loaded(self, runs: Runs) -> None:
        """Notes that blocks are loaded: their tiers are measured by that."""
        for tier, _ in runs:
            del self._declined[tier]

    def is_due(self, tier: str) -> bool:
        """Notes that blocks of a tier are declined; whether some are read."""
        self._declined[tier] += 1
        number = self._declined[tier]
        return number <= IN_A_ROW or number % SELDOM == 0

    def count(self, tier: str, blocks: int, block_bytes: int) -> int:
        """Returns how many of the declined blocks are read, with so many bytes on all workers."""
        part = SIZES[self._reads[tier] % len(SIZES)]
        self._reads[tier] += 1
        return max(1, min(blocks // PART, MOST_BYTES // block_bytes) // part)


class Rereads:
    """Measures tiers for one engine."""

    def __init__(self, decider: LoadDecider) -> None:
        """Starts without a read.

        Args:
            decider: Learns how long reads take.
        """
        self._decider = decider
        self._read: _Read | None = None
        self._memory = memoryview(b"")
        self._turns = Turns()

    def note_loaded(self, runs: Runs) -> None:
        """Notes that blocks are loaded: their tiers are measured by that."""
        self._turns.note_loaded(runs)

    def offer(
        self,
        namespaces: Sequence[Any],
        chain: Sequence[bytes],
        runs: Runs,
        computed_s: float,
        loaded: Runs = (),
    ) -> None:
        """Reads some of the blocks that a request computes, of the longest run.

        Args:
            namespaces: Where they are, one for each worker, with blocks of one size.
            chain: Their names, in prefix order.
            runs: Their tiers.
            computed_s: Seconds in which they are computed.
            loaded: Of the blocks that the request loads: their tiers are measured by that.
        """
        self.take()
        skipped, longest = 0, ("", 0, 0)
        for one, count in runs:
            if count > longest[1] and all(one != other for other, _ in loaded):
                longest = one, count, skipped
            skipped += count
        tier, blocks, first = longest
        if not blocks or self._decider.is_loading(tier):
            # It would measure, and delay, what others wait for.
            return
        chain = chain[first : first + blocks]
        is_due = self._turns.is_due(tier)
        if self._read is not None or not is_due:
            return
        each = namespaces[0].block_bytes
        count = self._turns.count(tier, blocks, each * len(namespaces))
        limit_s = min(max(computed_s, LEAST_S), MOST_S)
        read = self._read = _Read(tier, count * each, time.monotonic())
        places = self._places(count * len(namespaces), each)
        try:
            for number, space in enumerate(namespaces):
                own = places[number * count : (number + 1) * count]
                transfer = space.submit_get(chain[:count], own, timeout_s=limit_s)
                read.transfers.append(transfer)
                transfer.on_end(read.note_end)
        except DalsegnoError:
            # There is nothing to learn from a store that is closed or full of work.
            read.size = 0
        self._decider.read = {tier: read.size}

    def _places(self, count: int, each: int) -> list[memoryview]:
        """Returns memory for so many blocks. It is mapped and not written, which takes no time."""
        if self._memory.nbytes < count * each:
            self._memory = memoryview(mmap.mmap(-1, count * each))
        return [self._memory[at * each : (at + 1) * each] for at in range(count)]

    def take(self) -> None:
        """Learns from a read that has ended."""
        read = self._read
        if read is None or not all(one.done() for one in read.transfers):
            return
        self._read = None
        self._decider.read = {}
        try:
            results = [(one.result(), one.throttled) for one in read.transfers]
        except DalsegnoError:
            return
        if read.size and all(all(done) and not throttled for done, throttled in results):
            has_ended = len(read.ends) == len(read.transfers)
            ended = max(read.ends) if has_ended else time.monotonic()
            self._decider.note_read(read.tier, read.size, ended - read.started)
