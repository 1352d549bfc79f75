"""Every policy at every cell: a GPU, a source, a length of prompts and a hit rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dalsegno
from dalsegno_bench.first_token.ends import best_meeting, predicted, serve
from dalsegno_bench.first_token.layers import BYTES_PER_TOKEN, CHUNK, LayerTimes
from dalsegno_bench.first_token.learning import learned
from dalsegno_bench.first_token.pipeline import Outcome, Plan, Source, first_token
from dalsegno_bench.first_token.policies import (
    BLOCK_TOKENS,
    FIXED,
    Hit,
    OfflineTable,
    Oracle,
    Ours,
    Policy,
    whole,
)

__all__ = ["HIT_RATES", "LENGTHS", "SOURCES", "Cell", "Served", "Table", "crossover", "table_of"]

LENGTHS = (16_384, 65_536, 131_072)
HIT_RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999)
# Memory that a GPU reads directly, memory behind an older bus, an NVMe disk, a disk of a cloud.
SOURCES = (
    Source("55 GB/s", 55e9, 5e-5, "dram"),
    Source("25 GB/s", 25e9, 5e-5, "dram"),
    Source("7 GB/s", 7e9, 2e-4, "log"),
    Source("1.9 GB/s", 1.9e9, 1e-3, "log"),
)
# Policies that are not compared with ours.
OURS = {"ours", "oracle", "both_ends", "two_sided"}
# Halvings of an interval of hit rates: far below a token.
HALVINGS = 40


@dataclass(frozen=True)
class Served:
    """A plan and what it leads to."""

    plan: Plan
    outcome: Outcome


@dataclass(frozen=True)
class Cell:
    """One hit rate of a table.

    Attributes:
        hit_rate: Part of the prompt that the store has, before it is rounded to blocks.
        served: By policy; ``ours`` and ``both_ends`` are those of the first history.
        ours: Ours, by history.
        both_ends: The same where both ends are possible.
    """

    hit_rate: float
    served: dict[str, Served]
    ours: list[Served]
    both_ends: list[Served]

    @property
    def best_s(self) -> float:
        """The earliest first token of the policies but ours and the oracles, in seconds."""
        others = (one for name, one in self.served.items() if name not in OURS)
        return min(one.outcome.first_token_s for one in others)

    def first_token_s(self, policy: str) -> float:
        """Returns the first token of a policy, in seconds."""
        return self.served[policy].outcome.first_token_s

    def worst_ratio(self, seconds: float) -> float:
        """Returns our latest first token, over the histories, divided by another one."""
        return max(one.outcome.first_token_s for one in self.ours) / seconds

    def ratios_of_both(self, seconds: float) -> list[float]:
        """Returns our first token by history, where both ends are possible, divided by another."""
        return [one.outcome.first_token_s / seconds for one in self.both_ends]


@dataclass(frozen=True)
class Table:
    """All hit rates of one GPU, source and length.

    Attributes:
        gpu: The GPU.
        source: The source.
        tokens: The length.
        cells: One for each hit rate.
        crossover: The hit rate at which computing the rest takes as long as loading.
        predicted: The same as our model predicts it, by history.
    """

    gpu: str
    source: str
    tokens: int
    cells: list[Cell] = field(default_factory=list)
    crossover: float = 0.0
    predicted: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What it is called in figures."""
        return f"{self.gpu}, {self.source}, {self.tokens} tokens"

    def figures(self) -> dict[str, Any]:
        """Returns milliseconds of each policy by hit rate, and the tokens that it loads."""
        found: dict[str, Any] = {}
        for policy in self.cells[0].served:
            served = [cell.served[policy] for cell in self.cells]
            found[policy] = {
                "first_token_ms": [_ms(one.outcome.first_token_s) for one in served],
                "bubble_ms": [_ms(one.outcome.bubble_s) for one in served],
                "fill_ms": [_ms(one.outcome.fill_s) for one in served],
                "loaded_tokens": [one.plan.tokens for one in served],
            }
        return found


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 2)


def table_of(
    times: LayerTimes,
    source: Source,
    oracle: Oracle,
    fronts_s: Sequence[float],
    tokens: int,
    seeds: Sequence[int],
) -> Table:
    """Serves a prompt of every hit rate by every policy.

    Args:
        times: Of the GPU.
        source: Where blocks are.
        oracle: Of the GPU and the length.
        fronts_s: Seconds of fronts of prompts, by their blocks.
        tokens: The length.
        seeds: One for each history from which our model has learned.
    """
    models = [learned(times, source, seed) for seed in seeds]
    ours = [Ours(model, times.layers) for model in models]
    bests = oracle.best(source)
    policies: dict[str, Policy] = {**FIXED, "offline_table": OfflineTable(times, source)}
    table = Table(
        times.gpu,
        source.name,
        tokens,
        crossover=_simulated(times, source, tokens),
        predicted=[_predicted(model, source, tokens) for model in models],
    )
    for rate in HIT_RATES:
        hit = Hit(tokens, whole(rate * tokens), source)

        def served(policy: Policy, hit: Hit = hit) -> Served:
            plan = policy(hit)
            return Served(plan, first_token(times, source, tokens, plan))

        by_policy = {name: served(policy) for name, policy in policies.items()}
        of_ours = [served(one) for one in ours]
        by_policy["ours"] = of_ours[0]
        by_policy["oracle"] = best = Served(*bests[hit.tokens // BLOCK_TOKENS])
        both_ends = [Served(*serve(times, hit, one, predicted(one.model))) for one in ours]
        by_policy["both_ends"] = both_ends[0]
        by_policy["two_sided"] = _two_sided(best, best_meeting(times, fronts_s, hit))
        table.cells.append(Cell(rate, by_policy, of_ours, both_ends))
    return table


def _two_sided(best: Served, met_s: float) -> Served:
    """Returns the better one of the best plan with one end, and of both ends without bubbles."""
    if best.outcome.first_token_s <= met_s:
        return best
    outcome = replace(best.outcome, first_token_s=met_s, fill_s=0.0, steady_s=0.0)
    return Served(best.plan, outcome)


def _simulated(times: LayerTimes, source: Source, tokens: int) -> float:
    return crossover(
        tokens,
        lambda begin: times.request_s(begin, tokens),
        lambda begin: source.load_s(begin * BYTES_PER_TOKEN),
    )


def _predicted(model: dalsegno.CostModel, source: Source, tokens: int) -> float:
    return crossover(
        tokens,
        lambda begin: model.request_s(begin, tokens, CHUNK),
        lambda begin: model.load_s(source.tier, begin * BYTES_PER_TOKEN),
    )


def crossover(tokens: int, rest_s: Callable[[int], float], load_s: Callable[[int], float]) -> float:
    """Returns the hit rate from which loading takes longer than computing the rest.

    Args:
        tokens: Of the prompt.
        rest_s: Seconds in which the tokens from one position on are computed.
        load_s: Seconds in which the tokens before it are loaded.
    """
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        begin = int(middle * tokens)
        if load_s(begin) > rest_s(begin):
            high = middle
        else:
            low = middle
    return low
