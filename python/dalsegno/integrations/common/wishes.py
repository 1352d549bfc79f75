"""What a request could load: the blocks that a store has of it, in which tiers, and who waits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dalsegno.profiles import TIERS

# Requests that wait next, of which the longest one counts.
NEXT = 64

Runs = Sequence[tuple[str, int]]


def part(runs: Runs, first: int, end: float = math.inf) -> list[tuple[str, int]]:
    """Returns the runs of blocks `first` to `end`."""
    cut, at = list[tuple[str, int]](), 0
    for tier, count in runs:
        if (kept := min(at + count, end) - max(at, first)) > 0:
            cut.append((tier, int(kept)))
        at += count
    return cut


@dataclass
class Wish:
    """Blocks that a request could load.

    Attributes:
        runs: Their tiers, in order.
        computed: Tokens that the engine has itself.
        prompt: Tokens of the request.
        most_copied: Leading blocks that may be copied inside a step, from places.
        most_read: Leading blocks that may be read inside a step.
        waiting: Requests that wait behind this one.
        saved_s: Seconds of computing that loads have saved while this one waited: without them it
            would still wait.
        is_beside: Whether the engine computes others: a request whose load has ended is computed
            after their step.
        is_admitted_beside: Whether others were admitted that the engine has not computed yet.
        longest: Tokens of the longest other request that waits. It may begin while this one loads,
            and engines compute what has begun before what has not.
        whole_bytes: Bytes of all blocks if only all of them or none can be loaded; else 0.
        promised: Bytes by tier whose loads were promised to others and have not begun.
        both_ends: Whether blocks can be loaded from the last one on while those before them are
            computed.
    """

    runs: Runs
    computed: int
    prompt: int
    most_copied: int = 0
    most_read: int = 0
    waiting: int = 0
    saved_s: float = 0.0
    is_beside: bool = False
    is_admitted_beside: bool = False
    longest: int = 0
    whole_bytes: int = 0
    promised: Mapping[str, int] = field(default_factory=dict)
    both_ends: bool = False

    @property
    def blocks(self) -> int:
        """How many there are."""
        return sum(count for _, count in self.runs)

    @property
    def delays_others(self) -> bool:
        """Whether a step that waits for blocks delays other requests."""
        return self.is_beside or self.is_admitted_beside or self.waiting > 0


class Others:
    """The requests of an engine, as each of them sees the others.

    Attributes:
        saved_s: Seconds of computing that loads have saved so far.
    """

    def __init__(self) -> None:
        """Starts without requests."""
        self.saved_s = 0.0
        # Those without blocks, in their order, with their tokens (0: not known).
        self._waiting: dict[str, int] = {}
        # Those that have blocks, until a step computes them.
        self._admitted: set[str] = set()
        self._computed: set[str] = set()

    def wait(self, name: str, tokens: int = 0) -> None:
        """Notes that a request waits from now on.

        Args:
            name: Of the request.
            tokens: How many it has; 0 if that is not known, or was said before.
        """
        self._waiting[name] = tokens or self._waiting.get(name, 0)
        self._admitted.discard(name)

    def begin(self, name: str) -> None:
        """Notes that a request does not wait any more."""
        if self._waiting.pop(name, None) is not None:
            self._admitted.add(name)

    def compute(self, names: Iterable[str]) -> None:
        """Notes which requests a step computes."""
        self._computed = set(names)
        self._admitted -= self._computed

    def wait_beside(self, name: str) -> bool:
        """Whether others wait."""
        return len(self._waiting) > (name in self._waiting)

    def are_beside(self, name: str) -> bool:
        """Whether the last step has computed others."""
        return not self._computed <= {name}

    def end(self, name: str) -> None:
        """Notes that a request has ended."""
        self._waiting.pop(name, None)
        self._admitted.discard(name)
        self._computed.discard(name)

    def describe(self, wish: Wish, name: str, saved_before_s: float) -> None:
        """Adds the others to what a request could load.

        Args:
            wish: Of the request.
            name: Of the request.
            saved_before_s: What loads had saved when it came.
        """
        waiting = (tokens for other, tokens in self._waiting.items() if other != name)
        wish.longest = max(itertools.islice(waiting, NEXT), default=0)
        wish.waiting = len(self._waiting) - (name in self._waiting)
        wish.is_beside = self.are_beside(name)
        wish.is_admitted_beside = not self._admitted <= {name}
        wish.saved_s = self.saved_s - saved_before_s


def farthest(tiers: Iterable[str]) -> str:
    """Returns the tier that is the slowest one, as far as nothing was measured."""
    return max(tiers, key=TIERS.index)
