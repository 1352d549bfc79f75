"""Reads some blocks that were not worth loading, while their request is computed.

So a tier that became fast is found again, mostly after two requests, and none waits for it.

1. One read at a time, of a quarter of the blocks and at most 64 MiB, but of one block at least,
   each with a time limit. All workers' blocks are read at once, as loads do. Its bytes count as
   queued. Every second one is a quarter as large: two sizes show the time before the first byte,
   and that of each byte. It is every sixteenth one while small ones are early. Behind a surprise
   comes a large one, which confirms it or not. A large one that is given up took at least so long.
2. Of the first 16 requests in a row that load nothing from a tier each is used, then one in 16. A
   read that shows that the tier has changed starts these 16 again.
3. Between them each request reads a sixteenth of that and at least a block, a sample. Its time is
   not learned, as disks may bring few bytes immediately. Behind an early one the next two are used.
   There is none of fewer than 16 blocks, as it would be much of them, nor of a far tier, as a block
   that is read from there again and again is copied to the disk: that takes up to 17 requests.
4. Of a request that was computed while its back was loaded, some blocks that it computed are read
   afterwards if the back was early: of the first two in a row, then of one in 16. There is none if
   a large read has fewer bytes than the back.
5. What was read goes nowhere: into memory that is kept for the next read. No call waits.
"""

from __future__ import annotations

import mmap
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dalsegno import DalsegnoError
from dalsegno.integrations.common.deciding import LoadDecider, Shown
from dalsegno.integrations.common.running import Back
from dalsegno.integrations.common.wishes import Runs
from dalsegno.profiles import TIERS

PART, MOST_BYTES = 4, 64 << 20
# The part of that which a small read is, and of how many reads one is small; if the last small one
# was early, as on disks that bring a few bytes immediately, it says little.
SMALL, SMALL_EVERY, SMALL_SELDOM = 4, 2, 16
# Requests in a row that are used, and of how many one is used then.
IN_A_ROW, SELDOM = 16, 16
# The part of a read that a sample is, and the requests that are used behind an early one.
SAMPLE, BEHIND_EARLY = 16, 2
# Fewer blocks are not sampled.
LEAST_SAMPLED = 16
# Seconds after which a read is given up, at least and at most.
LEAST_S, MOST_S = 0.05, 10.0

# What is read of a declined request.
Kind = Literal["large", "small", "sample"]


@dataclass
class _Read:
    """A read under way.

    Attributes:
        tier: What is measured.
        each: Bytes of a block, of one worker.
        kind: How much is read.
        started: In seconds of the monotonic clock.
        limit_s: Seconds after which it is given up.
        transfers: The store's, one for each worker.
        ends: The same, as far as they have ended.
    """

    tier: str
    each: int
    kind: Kind
    limit_s: float
    started: float = field(default_factory=time.monotonic)
    transfers: list[Any] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def note_end(self) -> None:
        """Notes that one has ended; called by a thread of the store."""
        self.ends.append(time.monotonic())


class Turns:
    """Which requests are used for a read or a sample, and how much is read."""

    def __init__(self) -> None:
        """Starts without requests."""
        # Requests whose blocks of a tier were declined since some were loaded, and large reads of
        # it since a small one.
        self._declined: Counter[str] = Counter()
        self._large: Counter[str] = Counter()
        # Of how many reads of it one is small.
        self._every: dict[str, int] = {}
        # Backs of prompts in a row that were early.
        self._early_backs: Counter[str] = Counter()

    def note_loaded(self, runs: Runs) -> None:
        """Notes that blocks are loaded: their tiers are measured by that."""
        for tier, _ in runs:
            del self._declined[tier]

    def begin(self, tier: str) -> Kind:
        """Notes that blocks of a tier are declined; returns what is read of them."""
        self._declined[tier] += 1
        number = self._declined[tier]
        if number > IN_A_ROW and number % SELDOM:
            return "sample"
        self._large[tier] = (self._large[tier] + 1) % self._every.get(tier, SMALL_EVERY)
        return "large" if self._large[tier] else "small"

    def note_back(self, tier: str, *, is_early: bool) -> bool:
        """Notes that the back of a prompt was loaded; returns whether to read blocks behind it."""
        if not is_early:
            del self._early_backs[tier]
            return False
        self._early_backs[tier] += 1
        number = self._early_backs[tier]
        return number <= BEHIND_EARLY or number % SELDOM == 0

    def note_early(self, tier: str) -> None:
        """Notes that a sample was early: two reads, first a larger one."""
        self._declined[tier] = min(self._declined[tier], IN_A_ROW - BEHIND_EARLY)
        self._large[tier] = 0

    def note_read(self, tier: str, kind: Kind, shown: Shown, *, is_early: bool) -> None:
        """Notes what a read has shown: a large one confirms a surprise, or does not."""
        if kind == "small" and (shown == "nothing" or not is_early):
            self._every[tier] = SMALL_SELDOM if is_early else SMALL_EVERY
        if shown == "surprise":
            self._declined[tier], self._large[tier] = min(self._declined[tier], IN_A_ROW - 1), 0
        elif shown == "change":
            del self._declined[tier]
            self._every.pop(tier, None)

    def end(
        self,
        decider: LoadDecider,
        kind: Kind,
        tier: str,
        size: int,
        seconds: float,
        *,
        is_whole: bool,
    ) -> None:
        """Learns how long a read took, or that it took longer: then it was given up."""
        if not is_whole and kind != "large":
            # It says as little of what a byte takes as its limit.
            return
        if kind != "sample":
            is_early = decider.is_early(tier, size, seconds)
            shown = decider.note_read(tier, size, seconds, is_whole=is_whole)
            self.note_read(tier, kind, shown, is_early=is_early)
        elif decider.note_sample(tier, size, seconds):
            self.note_early(tier)

    @staticmethod
    def count(kind: Kind, tier: str, blocks: int, block_bytes: int) -> int:
        """Returns how many of the declined blocks are read, with so many bytes on all workers."""
        if kind == "sample" and (blocks < LEAST_SAMPLED or tier == TIERS[-1]):
            return 0
        part = {"large": 1, "small": SMALL, "sample": SAMPLE}[kind]
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

    def offer_behind(
        self,
        namespaces: Sequence[Any],
        chain: Sequence[bytes],
        runs: Runs,
        computed_s: float,
        back: Back,
    ) -> None:
        """Reads some of the blocks that a request has computed, if its back was early.

        Args:
            namespaces: Where they are, one for each worker, with blocks of one size.
            chain: Their names, in prefix order.
            runs: Their tiers.
            computed_s: Seconds in which they were computed.
            back: What was loaded behind them.
        """
        each = namespaces[0].block_bytes
        own = sum(count for tier, count in runs if tier == back.tier)
        if self._turns.count("large", back.tier, own, each * len(namespaces)) * each < back.size:
            # It would say less than the back has.
            return
        is_early = self._decider.is_early(back.tier, back.size, back.seconds)
        if self._turns.note_back(back.tier, is_early=is_early):
            others = [(tier, 1) for tier, _ in runs if tier != back.tier]
            # Two that are large confirm each other.
            self.offer(namespaces, chain, runs, computed_s, others, kind="large")

    def offer(
        self,
        namespaces: Sequence[Any],
        chain: Sequence[bytes],
        runs: Runs,
        computed_s: float,
        loaded: Runs = (),
        kind: Kind | None = None,
    ) -> None:
        """Reads some of the blocks that a request computes, of the longest run.

        Args:
            namespaces: Where they are, one for each worker, with blocks of one size.
            chain: Their names, in prefix order.
            runs: Their tiers.
            computed_s: Seconds in which they are computed.
            loaded: Of the blocks that the request loads: their tiers are measured by that.
            kind: How much is read; what it is the turn of if not given.
        """
        self.take()
        skipped, longest = 0, ("", 0, 0)
        for one, count in runs:
            if count > longest[1] and all(one != other for other, _ in loaded):
                longest = one, count, skipped
            skipped += count
        tier, blocks, first = longest
        if not blocks or self._read is not None or self._decider.is_loading(tier):
            # It would measure, and delay, what others wait for.
            return
        chain = chain[first : first + blocks]
        kind, each = kind or self._turns.begin(tier), namespaces[0].block_bytes
        count = self._turns.count(kind, tier, blocks, each * len(namespaces))
        if not count:
            return
        limit_s = min(max(computed_s, LEAST_S), MOST_S)
        read = _Read(tier, each, kind, limit_s)
        places = self._places(count * len(namespaces), each)
        try:
            for number, space in enumerate(namespaces):
                own = places[number * count : (number + 1) * count]
                transfer = space.submit_get(chain[:count], own, timeout_s=limit_s)
                read.transfers.append(transfer)
                transfer.on_end(read.note_end)
        except DalsegnoError:
            # There is nothing to learn from a store that is closed or full of work.
            read.each = 0
        self._read = read
        self._decider.read = {tier: count * read.each}

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
        if read.each and not any(throttled for _, throttled in results):
            self._learn(read, min((done for done, _ in results), key=sum))

    def _learn(self, read: _Read, done: Sequence[bool]) -> None:
        """Learns how long a read took, or that it took longer than its limit."""
        has_ended = len(read.ends) == len(read.transfers)
        seconds = (max(read.ends) if has_ended else time.monotonic()) - read.started
        is_whole = all(done)
        # Else some blocks have left the store since.
        if is_whole or seconds >= read.limit_s:
            size = len(done) * read.each
            kind, tier = read.kind, read.tier
            self._turns.end(self._decider, kind, tier, size, seconds, is_whole=is_whole)
