"""The prompts of a measurement, and what their steps say.

A cell is a prefix that the engine has, and new tokens that it computes behind it.

1. Prompts are random, and equal in every process with the same seed.
2. A prompt that is predicted to end after the time limit is not asked. Nothing here reads a clock.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dalsegno import InvalidError

# Tokens of prefixes and of what is computed behind them.
LENGTHS = (256, 512, 1024, 2048, 4096)
SEED = 1


@dataclass(frozen=True)
class Ask:
    """A prompt.

    Attributes:
        prefix: Tokens that are loaded.
        new: Tokens that are computed.
        number: How often the same was asked before.
        document: Which of the prompts without a prefix, by its number, is the prefix.
    """

    prefix: int
    new: int
    number: int
    document: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of the prompt."""
        return self.prefix + self.new

    def prompt(self, vocabulary: int, label: str) -> list[int]:
        """Returns its tokens.

        Args:
            vocabulary: How many tokens there are.
            label: Prompts behind the same prefix with different labels differ.
        """
        if not self.prefix:
            return _tokens(f"document {self.new} {self.number}", self.new, vocabulary)
        name = f"{label} {self.prefix} {self.new} {self.number}"
        prefix = _tokens(f"document {self.prefix} {self.document}", self.prefix, vocabulary)
        return prefix + _tokens(name, self.new, vocabulary)


def _tokens(name: str, count: int, vocabulary: int) -> list[int]:
    """Returns random tokens; the first few of a vocabulary often have a meaning."""
    noise = random.Random(f"{SEED} {name}")  # noqa: S311 - nothing secret
    return [noise.randrange(min(10, vocabulary - 1), vocabulary) for _ in range(count)]


def cells(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the grid: all pairs of lengths whose prompt is not longer than the longest ones.

    Args:
        lengths: Ascending.
    """
    most = lengths[-1] + lengths[0]
    return [(prefix, new) for prefix in (0, *lengths) for new in lengths if prefix + new <= most]


def from_memory(lengths: Sequence[int], times: int) -> list[Ask]:
    """Returns the prompts of the first engine: each document is computed, then loaded.

    Args:
        lengths: Ascending.
        times: How often each is asked.
    """
    grid = cells(lengths)
    return [
        Ask(*cell, number)
        for number in range(times)
        for length in lengths
        for cell in [(0, length), *(one for one in grid if one[0] == length)]
    ]


def from_disk(lengths: Sequence[int], times: int) -> list[Ask]:
    """Returns the prompts of the second engine, whose pool is empty: each document is loaded once.

    A document that was loaded is in the pool.
    """
    return [
        Ask(prefix, lengths[0], number, document=number)
        for number in range(times)
        for prefix in lengths
    ]


def stored_tokens(lengths: Sequence[int], times: int) -> tuple[int, int]:
    """Returns the tokens that the pool must hold so that no document leaves it, and of all prompts.

    What was loaded once stays longer than what never was, so a prompt that is computed once more
    pushes out others of its kind.
    """
    asks = [*from_memory(lengths, times), *from_disk(lengths, times)]
    return 2 * sum(lengths) + 2 * lengths[-1], sum(ask.new for ask in asks)


def whole_blocks(lengths: Iterable[int], block_tokens: int) -> list[int]:
    """Returns lengths of whole blocks, ascending: only these are loaded."""
    each = block_tokens
    return sorted({max(each, round(length / each) * each) for length in lengths})


def fitting(lengths: Sequence[int], most_tokens: int, *, is_default: bool) -> list[int]:
    """Returns the lengths whose prompts, and a token of the answer, an engine takes.

    Args:
        lengths: Ascending.
        most_tokens: Of prompt and answer.
        is_default: Whether longer ones are left out.

    Raises:
        InvalidError: A length that was asked for is too long, or all are.
    """
    kept = [one for one in lengths if one + lengths[0] < most_tokens]
    if kept and (is_default or kept == list(lengths)):
        return kept
    longest = lengths[0] if is_default else lengths[-1]
    raise InvalidError(
        f"a prompt of {longest + lengths[0]:,} tokens, the longest length and the shortest one, "
        f"does not fit into an engine of {most_tokens:,} tokens; give shorter --lengths, or more "
        "with --max-model-len"
    )


@dataclass
class Budget:
    """Which prompts still end in time.

    Attributes:
        seconds: How long all prompts may take.
        spent_s: How long they took so far.
    """

    seconds: float
    spent_s: float = 0.0
    _known: dict[tuple[int, int], float] = field(default_factory=dict)

    def allows(self, ask: Ask) -> bool:
        """Whether a prompt is predicted to end in time."""
        expected = self._known.get((ask.prefix, ask.new))
        if expected is None:
            # The slowest rate so far, as long prompts are slower.
            rates = [seconds / max(1, new) for (_, new), seconds in self._known.items()]
            expected = max(rates, default=0.0) * ask.new
        return self.spent_s + expected <= self.seconds

    def note(self, ask: Ask, seconds: float) -> None:
        """Notes how long a prompt took."""
        self.spent_s += seconds
        self._known[ask.prefix, ask.new] = seconds


class CellTimes:
    """Adds the steps of prompts up that are asked one after the other.

    Attributes:
        missed: Prompts whose prefix was not loaded as a whole.
    """

    def __init__(self) -> None:
        """Starts with no step."""
        self.missed = 0
        self._asked: list[Ask] = []
        self._times: dict[tuple[int, int], list[float]] = {}
        self._steps: dict[tuple[int, int], int] = {}
        # Of the first prompt that was asked: where its steps began and end, -1 for no step.
        self._begin, self._end, self._seconds, self._count = -1, -1, 0.0, 0

    def ask(self, ask: Ask) -> None:
        """Notes that a prompt is asked; the times of its steps follow, perhaps late."""
        self._asked.append(ask)

    def add(self, before: int, tokens: int, seconds: float) -> None:
        """Adds a step.

        Args:
            before: Tokens of the prompt that were there before it.
            tokens: New tokens.
            seconds: How long it took.
        """
        end = before + tokens
        is_next = self._begin < 0 or before == self._end
        while self._asked and (self._asked[0].tokens < end or not is_next):
            # Its last steps were not measured.
            self._asked.pop(0)
            self._begin, is_next = -1, True
        if not self._asked:
            return
        if self._begin < 0:
            self._begin, self._seconds, self._count = before, 0.0, 0
        self._seconds += seconds
        self._count += 1
        self._end = end
        if end < self._asked[0].tokens:
            return
        ask = self._asked.pop(0)
        if self._begin == ask.prefix:
            cell = (ask.prefix, ask.new)
            self._times.setdefault(cell, []).append(self._seconds)
            self._steps[cell] = self._count
        else:
            self.missed += 1
        self._begin = -1

    def table(self) -> list[dict[str, Any]]:
        """Returns the cells that were measured, with the median of their seconds."""
        return [
            {
                "prefix": prefix,
                "new_tokens": new,
                "seconds": statistics.median(times),
                "steps": self._steps[prefix, new],
                "measured": len(times),
            }
            for (prefix, new), times in sorted(self._times.items())
        ]
