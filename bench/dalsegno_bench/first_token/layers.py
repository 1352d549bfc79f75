"""How long a layer of Llama-3-8B computes, from a table of measured times.

1. The table has the time of one layer by new tokens and by tokens before them, on an H200.
2. Between the columns of few tokens the time is interpolated, and from 2,048 tokens on the time of
   a token: attention makes that a line. Between rows the time is interpolated.
3. All layers of a model take the same time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

__all__ = [
    "BEFORE",
    "BYTES_PER_TOKEN",
    "CHUNK",
    "H200",
    "LAYERS",
    "NEW",
    "LayerTimes",
    "Part",
    "Table",
]

LAYERS = 32
# Of all layers together.
BYTES_PER_TOKEN = 128 << 10
# Tokens that a step computes at most.
CHUNK = 8192

Table = tuple[tuple[float, ...], ...]

NEW = (1, 16, 128, 512, 2048, 8192)
BEFORE = (0, 4096, 16_384, 32_768, 65_536, 122_880)
# Milliseconds of one layer: a row for each number of tokens before, a column for each of new ones.
H200_MS: Table = (
    (0.28, 0.29, 0.30, 0.44, 1.44, 7.57),
    (0.32, 0.33, 0.29, 0.59, 1.93, 9.06),
    (0.32, 0.31, 0.37, 0.98, 3.15, 13.8),
    (0.30, 0.34, 0.48, 1.46, 4.64, 20.1),
    (0.32, 0.46, 0.69, 2.35, 7.56, 31.4),
    (0.51, 0.66, 1.09, 4.01, 13.0, 52.1),
)
# The first column behind which the time of a token is interpolated.
PER_TOKEN_FROM = NEW.index(2048)


@dataclass(frozen=True)
class Part:
    """What a step computes of one request.

    Attributes:
        new: Tokens to compute, at least one.
        before: Tokens before them.
    """

    new: int
    before: int


@dataclass(frozen=True)
class LayerTimes:
    """The time of one layer on one GPU.

    Attributes:
        gpu: Which one.
        origin: ``measured`` or ``modelled``.
        milliseconds: A row for each of `BEFORE`, a column for each of `NEW`.
        layers: Layers of the model.
    """

    gpu: str
    origin: str
    milliseconds: Table
    layers: int = LAYERS

    def layer_s(self, new: int, before: int) -> float:
        """Returns the seconds of one layer.

        Args:
            new: Tokens to compute, at least one.
            before: Tokens before them.
        """
        column, part = _place(NEW, new)
        row, down = _place(BEFORE, before)
        above, below = self.milliseconds[row], self.milliseconds[row + 1]
        one = above[column] + down * (below[column] - above[column])
        two = above[column + 1] + down * (below[column + 1] - above[column + 1])
        if column < PER_TOKEN_FROM:
            return (one + part * (two - one)) / 1e3
        one, two = one / NEW[column], two / NEW[column + 1]
        return new * (one + part * (two - one)) / 1e3

    def batch_s(self, parts: Sequence[Part]) -> float:
        """Returns the seconds of one layer that computes several requests at the same time.

        The matrices take as long as for one request with all new tokens. Each request adds what
        its attention to the tokens before takes.

        Args:
            parts: What the step computes, of one request or more.
        """
        if len(parts) == 1:
            return self.layer_s(parts[0].new, parts[0].before)
        seconds = self.layer_s(sum(part.new for part in parts), 0)
        for part in parts:
            more_s = self.layer_s(part.new, part.before) - self.layer_s(part.new, 0)
            seconds += max(0.0, more_s)
        return seconds

    def request_s(self, begin: int, end: int, chunk: int = CHUNK) -> float:
        """Returns the seconds of the steps that compute the tokens ``begin`` to ``end``.

        Args:
            begin: Tokens before.
            end: Tokens afterwards.
            chunk: Tokens that a step computes at most.
        """
        starts = range(begin, end, chunk)
        return self.layers * sum(self.layer_s(min(chunk, end - start), start) for start in starts)


@cache
def _place(grid: tuple[int, ...], value: int) -> tuple[int, float]:
    """Returns the cell of a value, and where in it the value is. The last cell has no end."""
    cell = min(max(bisect_right(grid, value) - 1, 0), len(grid) - 2)
    return cell, (value - grid[cell]) / (grid[cell + 1] - grid[cell])


H200 = LayerTimes("H200", "measured", H200_MS)
