"""The layer times of a GPU of which only whole prefills are known.

They are those of the H200 with two factors: one for what a token takes in the matrices, one for
what a pair of tokens takes in attention. Least squares fit the factors to the prefills.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dalsegno_bench.first_token.layers import BEFORE, H200, NEW, LayerTimes, Table
from dalsegno_bench.workload.prefill import PREFILLS

__all__ = ["LENGTHS", "fitted", "prefills_by_formula", "read_prefills"]

# Of the prefills to which a GPU is fitted, in tokens.
LENGTHS = (8192, 16_384, 32_768, 65_536, 131_072)


@dataclass(frozen=True)
class Terms:
    """The parts of a table, in milliseconds: fixed, for tokens, for pairs of tokens."""

    fixed: Table
    tokens: Table
    pairs: Table

    def scaled(self, token_factor: float, pair_factor: float) -> Table:
        """Returns the table with two of its parts multiplied."""
        return tuple(
            tuple(
                fixed + token_factor * token + pair_factor * pair
                for fixed, token, pair in zip(*rows, strict=True)
            )
            for rows in zip(self.fixed, self.tokens, self.pairs, strict=True)
        )


def divided(table: Table) -> Terms:
    """Divides a table into its parts.

    A pair takes as long as in the largest cell. The fixed part is a layer with one token, and what
    attention takes beyond its pairs: it reads the tokens before.

    Args:
        table: As of `LayerTimes`.
    """
    first, last = table[0], table[-1]
    pair_ms = (last[-1] - first[-1]) / (NEW[-1] * BEFORE[-1])
    own = [pair_ms * new * new / 2 for new in NEW]
    tokens = tuple(max(0.0, ms - first[0] - one) for ms, one in zip(first, own, strict=True))
    pairs = tuple(
        tuple(
            own[column] + min(max(0.0, row[column] - first[column]), pair_ms * new * before)
            for column, new in enumerate(NEW)
        )
        for row, before in zip(table, BEFORE, strict=True)
    )
    fixed = tuple(
        tuple(ms - token - pair for ms, token, pair in zip(row, tokens, of_row, strict=True))
        for row, of_row in zip(table, pairs, strict=True)
    )
    return Terms(fixed, tuple(tokens for _ in table), pairs)


def fitted(gpu: str, prefills_s: Mapping[int, float]) -> tuple[LayerTimes, dict[str, float]]:
    """Models the layer times of a GPU.

    Args:
        gpu: Its name.
        prefills_s: Seconds of whole prefills by their tokens.

    Returns:
        The layer times; and ``token_factor``, ``pair_factor`` and ``worst_error``, the largest
        relative error of these prefills.
    """
    terms = divided(H200.milliseconds)
    parts = [LayerTimes(gpu, "", one) for one in (terms.fixed, terms.tokens, terms.pairs)]
    # Of each prefill: x times the first number and y times the second one make the third.
    rows = []
    for tokens, seconds in prefills_s.items():
        fixed, token, pair = (part.request_s(0, tokens) / seconds for part in parts)
        rows.append((token, pair, 1 - fixed))

    def product(one: int, other: int) -> float:
        return sum(row[one] * row[other] for row in rows)

    scale = product(0, 0) * product(1, 1) - product(0, 1) ** 2
    factors = (
        (product(0, 2) * product(1, 1) - product(1, 2) * product(0, 1)) / scale,
        (product(1, 2) * product(0, 0) - product(0, 2) * product(0, 1)) / scale,
    )
    times = LayerTimes(gpu, "modelled", terms.scaled(*factors))
    errors = [times.request_s(0, tokens) / s - 1 for tokens, s in prefills_s.items()]
    found = (*factors, max(map(abs, errors)))
    names = ("token_factor", "pair_factor", "worst_error")
    return times, {name: round(one, 4) for name, one in zip(names, found, strict=True)}


def read_prefills(path: Path, model: str, gpu: str) -> dict[int, float]:
    """Reads the seconds of whole prefills of `LENGTHS` from a file of estimates.

    Args:
        path: A file with the columns ``model``, ``system``, ``L``, ``prefix`` and ``ttft_ms``.
        model: The end of the model's name.
        gpu: The system's name.

    Raises:
        OSError: The file cannot be read.
        ValueError: It lacks one of these prefills.
    """
    with path.open(encoding="utf-8", newline="") as lines:
        found = {
            int(row["L"]): float(row["ttft_ms"]) / 1e3
            for row in csv.DictReader(lines)
            if row["model"].endswith(model) and row["system"] == gpu and int(row["prefix"]) == 0
        }
    if not set(LENGTHS) <= found.keys():
        raise ValueError(f"{path} lacks prefills of {model} on {gpu}")
    return {tokens: found[tokens] for tokens in LENGTHS}


def prefills_by_formula(name: str) -> dict[int, float]:
    """Returns the seconds of whole prefills of `LENGTHS` from a formula.

    Args:
        name: A key of `PREFILLS`.
    """
    return {tokens: PREFILLS[name].seconds(tokens) for tokens in LENGTHS}
