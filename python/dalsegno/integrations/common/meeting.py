"""Where the computed front of a prompt meets its loaded back.

1. A step never computes tokens of a part that is on its way, unless it computes as far as the
   blocks that are there: then that part is not needed any more.
2. A part that is late is waited for no longer than computing its blocks would take, as predicted.
   One that is overdue is expected to take as long again as it has taken.
3. Steps end at borders of blocks, so that no block is both computed and loaded.

Positions count blocks from the first one that could be loaded.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field


class BackState(enum.IntEnum):
    """What becomes of the load of a back; of two workers, the larger one counts.

    Attributes:
        LOADING: More blocks may come.
        ENDED: No more come, as steps compute those in front.
        FAILED: No more come, as one could not be loaded.
    """

    LOADING = 0
    ENDED = 1
    FAILED = 2


@dataclass(frozen=True)
class BackSpan:
    """What a worker has loaded of the back of a prompt.

    Attributes:
        low: Position of the first loaded block.
        high: Position behind the last one; as `low` if none is loaded.
        state: Whether more may come.
        changed_at: When the last part came, or the first one was begun; seconds of the monotonic
            clock of the machine.
        failed_at: Position of the last block that could not be loaded; None if all could.
    """

    low: int
    high: int
    state: BackState
    changed_at: float
    failed_at: int | None = None

    def joined(self, other: BackSpan) -> BackSpan:
        """Returns what two workers have both loaded."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        state, changed_at = max(self.state, other.state), max(self.changed_at, other.changed_at)
        failed_at = other.failed_at if self.failed_at is None else self.failed_at
        return BackSpan(min(low, high), high, state, changed_at, failed_at)


@dataclass
class Meeting:
    """A prompt whose front is computed while its back is loaded.

    Attributes:
        start: Tokens before the first block that could be loaded.
        blocks: How many could be loaded.
        part: Blocks of a part.
        tokens: Tokens of a block.
        front: How many blocks were predicted to be computed.
        predicted_s: Seconds in which one part after the other was predicted to arrive.
        began_at: When the first part was begun, in seconds of the monotonic clock.
        span: What is loaded.
    """

    start: int
    blocks: int
    part: int
    tokens: int
    front: int
    predicted_s: float
    began_at: float = 0.0
    span: BackSpan = field(init=False)

    def __post_init__(self) -> None:
        """Starts without a loaded block."""
        self.begin(self.began_at)

    def begin(self, now: float) -> None:
        """Notes that the first part is begun.

        Args:
            now: Seconds of the monotonic clock.
        """
        self.began_at = now
        self.span = BackSpan(self.blocks, self.blocks, BackState.LOADING, now)

    @property
    def loaded(self) -> int:
        """How many blocks are there."""
        return self.span.high - self.span.low

    @property
    def part_s(self) -> float:
        """Seconds in which one part after the other arrives."""
        if not self.loaded:
            return self.predicted_s
        parts = math.ceil((self.blocks - self.span.low) / self.part)
        return max(0.0, self.span.changed_at - self.began_at) / parts

    def token_of(self, position: int) -> int:
        """Returns the first token of a block."""
        return self.start + position * self.tokens

    def target(self, computed: int) -> int | None:
        """Returns the tokens that are there once the front has met the back; None if it has not.

        Args:
            computed: Tokens of the front.
        """
        has_met = self.loaded and self.token_of(self.span.low) <= computed
        return self.token_of(self.span.high) if has_met else None

    def is_lost(self, computed: int) -> bool:
        """Whether no loaded block is of use, and none will be."""
        is_empty = self.span.state is not BackState.LOADING and not self.loaded
        return is_empty or computed >= self.token_of(self.span.high)

    def frontier(self, computed: int) -> int:
        """Returns the position of the first block that is not computed.

        Args:
            computed: Tokens of the front.
        """
        return max(0, -(-(computed - self.start) // self.tokens))

    def chunk(
        self,
        computed: int,
        most: int,
        now: float,
        compute_s: Callable[[int, int], float],
        *,
        may_wait: bool,
    ) -> int:
        """Returns how many tokens a step computes; 0 to wait for a part.

        Args:
            computed: Tokens of the front.
            most: Tokens that the step could compute.
            now: Seconds of the monotonic clock.
            compute_s: Returns the seconds in which tokens are computed, from the first number of
                tokens to the second one.
            may_wait: Whether the step may compute nothing.
        """
        end = self._meets_at(computed, now, compute_s, may_wait=may_wait)
        if end <= computed:
            return 0
        if end <= computed + most:
            return end - computed
        # A step may be shorter than a block.
        whole = (computed + most - self.start) // self.tokens * self.tokens + self.start - computed
        return whole if whole > 0 else most

    def _meets_at(
        self,
        computed: int,
        now: float,
        compute_s: Callable[[int, int], float],
        *,
        may_wait: bool,
    ) -> int:
        """Returns up to which token computing and loading together take least."""
        low, best, least_s = self.token_of(self.span.low), computed, math.inf
        for parts in range(self._parts_left(low - computed) + 1):
            border = low - parts * self.part * self.tokens
            if border == computed and not may_wait:
                break
            seconds = max(compute_s(computed, border), self._arrives_s(parts, now))
            if seconds < least_s:
                best, least_s = border, seconds
        return best

    def _parts_left(self, gap: int) -> int:
        """Returns how many parts fit between the front and the back."""
        if self.span.state is not BackState.LOADING:
            return 0
        return max(0, gap) // (self.part * self.tokens)

    def _arrives_s(self, parts: int, now: float) -> float:
        """Returns the seconds until so many parts have come."""
        if not parts:
            return 0.0
        each_s, waited_s = self.part_s, max(0.0, now - self.span.changed_at)
        first_s = each_s - waited_s if waited_s < each_s else waited_s
        return first_s + (parts - 1) * each_s
