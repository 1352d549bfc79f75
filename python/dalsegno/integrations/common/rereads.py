"""Reads some blocks that were not worth loading, while their request is computed.

So a tier that became fast is found again after a request or two, and none waits for it.

1. One read at a time, of a quarter of the blocks and at most 64 MiB, each with a time limit.
2. Of the first 16 requests whose blocks were declined each is used, then one in 16, until blocks of
   the tier are loaded again.
3. What was read goes nowhere. No call waits, and none raises.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dalsegno import DalsegnoError
from dalsegno.integrations.common.deciding import LoadDecider, Runs

PART, MOST_BYTES = 4, 64 << 20
# Requests in a row that are used, and of how many one is used then.
IN_A_ROW, SELDOM = 16, 16
# Seconds after which a read is given up, at least and at most.
LEAST_S, MOST_S = 0.05, 10.0


@dataclass
class _Read:
    """A read under way.

    Attributes:
        tier: What is measured.
        size: Bytes.
        count: Blocks.
        transfer: The store's.
        started: In seconds of the monotonic clock.
        ended: The same.
    """

    tier: str
    size: int
    count: int
    transfer: Any
    started: float
    ended: float = 0.0

    def note_end(self) -> None:
        """Notes when it ended; called by a thread of the store."""
        self.ended = time.monotonic()


class Rereads:
    """Measures tiers for one engine."""

    def __init__(self, decider: LoadDecider) -> None:
        """Starts without a read.

        Args:
            decider: Learns how long reads take.
        """
        self._decider = decider
        self._read: _Read | None = None
        # Requests whose blocks of a tier were declined since some were loaded.
        self._declined: dict[str, int] = {}

    def note_loaded(self, runs: Runs) -> None:
        """Notes that blocks are loaded: their tiers are measured by that."""
        for tier, _ in runs:
            self._declined.pop(tier, None)

    def offer(self, namespace: Any, chain: Sequence[bytes], runs: Runs, computed_s: float) -> None:
        """Reads some of the blocks that a request computes.

        Args:
            namespace: Where they are.
            chain: Their names, in prefix order.
            runs: Their tiers.
            computed_s: Seconds in which they are computed.
        """
        self.take()
        tier, blocks = runs[0]
        number = self._declined[tier] = self._declined.get(tier, 0) + 1
        if self._read is not None or (number > IN_A_ROW and number % SELDOM):
            return
        if self._decider.is_loading(tier):
            # It would measure, and delay, what others wait for.
            return
        each = self._decider.engine.block_bytes
        count = max(1, min(blocks, len(chain) // PART, MOST_BYTES // each))
        limit_s = min(max(computed_s, LEAST_S), MOST_S)
        places = [bytearray(namespace.block_bytes) for _ in range(count)]
        try:
            transfer = namespace.submit_get(chain[:count], places, timeout_s=limit_s)
            self._read = _Read(tier, count * each, count, transfer, time.monotonic())
            transfer.on_end(self._read.note_end)
        except DalsegnoError:
            # There is nothing to learn from a store that is closed or full of work.
            self._read = None

    def take(self) -> None:
        """Learns from a read that has ended."""
        read = self._read
        if read is None or not read.transfer.done():
            return
        self._read = None
        try:
            is_whole = all(read.transfer.result()) and not read.transfer.throttled
        except DalsegnoError:
            return
        if is_whole:
            ended = read.ended or time.monotonic()
            self._decider.note_read(read.tier, read.size, ended - read.started)


def behind(runs: Runs, count: int) -> list[tuple[str, int]]:
    """Returns the tiers of the blocks behind so many."""
    rest = []
    for tier, blocks in runs:
        skipped = min(blocks, count)
        count -= skipped
        if skipped < blocks:
            rest.append((tier, blocks - skipped))
    return rest
