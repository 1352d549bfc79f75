"""What each policy loads of a prompt.

1. ``recompute`` loads nothing, ``load_ahead`` all before it computes, ``load_by_layer`` all while
   the first step computes.
2. ``offline_table`` has measured a grid beforehand and takes what was faster at the nearest point.
3. ``ours`` is `dalsegno.CostModel`. It has seen the times of steps and of loads, and no table.
4. ``oracle`` tries every number of blocks in both ways, in the simulator itself.
5. ``both_ends`` is ours where requests may compute their front while their back is loaded
   (`ends.py`), and ``two_sided`` the best that such an engine can do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dalsegno
from dalsegno.profiles import TIER_PRIORS, TIERS
from dalsegno_bench.first_token.layers import BYTES_PER_TOKEN, CHUNK, LayerTimes
from dalsegno_bench.first_token.pipeline import (
    NOTHING,
    Outcome,
    Plan,
    Rest,
    Source,
    first_token,
    outcome,
)

__all__ = [
    "BLOCK_TOKENS",
    "FIXED",
    "Hit",
    "OfflineTable",
    "Oracle",
    "Ours",
    "Policy",
    "load_ahead",
    "load_by_layer",
    "new_model",
    "recompute",
    "whole",
]

# vLLM's.
BLOCK_TOKENS = 16
# vLLM's direct path: `load_guard_s` of its settings.
GUARD_S = 0.005
# With so many waiting requests, the first token of one may come later for the sake of all.
BUSY = 4
# What it assumes of a model of this size before it has computed a step: seconds of a step, of a
# token, of a pair of tokens and of a token that is read.
COMPUTE_PRIOR = (9.6e-3, 4.3e-5, 1.75e-9, 6.6e-8)


@dataclass(frozen=True)
class Hit:
    """A request, what a store has of it, and the state of the engine.

    Attributes:
        prompt: Tokens of the prompt.
        tokens: Leading tokens that the store has, in whole blocks.
        source: Where they are.
        waiting: Requests that wait behind this one.
        queued: Bytes that the source has to bring for earlier loads.
    """

    prompt: int
    tokens: int
    source: Source
    waiting: int = 0
    queued: float = 0.0


Policy = Callable[[Hit], Plan]


def recompute(hit: Hit) -> Plan:  # noqa: ARG001 - a policy
    """Loads nothing."""
    return NOTHING


def load_ahead(hit: Hit) -> Plan:
    """Loads all, then computes."""
    return Plan(hit.tokens)


def load_by_layer(hit: Hit) -> Plan:
    """Loads all while the first step computes."""
    return Plan(hit.tokens, by_layer=True)


FIXED: dict[str, Policy] = {
    "recompute": recompute,
    "load_ahead": load_ahead,
    "load_by_layer": load_by_layer,
}


def whole(tokens: float) -> int:
    """Returns the tokens of the whole blocks of so many tokens."""
    return int(tokens) // BLOCK_TOKENS * BLOCK_TOKENS


class OfflineTable:
    """Whether to compute or to load by layer, measured at the points of a grid.

    The nearest point counts: lengths are compared by their logarithms, hit rates as they are.
    """

    LENGTHS = (8192, 16_384, 32_768, 65_536, 131_072)
    HIT_RATES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99)

    def __init__(self, times: LayerTimes, source: Source) -> None:
        """Measures the grid.

        Args:
            times: Of the GPU.
            source: Where blocks are loaded from.
        """
        self._loads = {
            (length, rate): self._is_faster(times, Hit(length, whole(length * rate), source))
            for length in self.LENGTHS
            for rate in self.HIT_RATES
        }

    @staticmethod
    def _is_faster(times: LayerTimes, hit: Hit) -> bool:
        loaded, computed = (
            first_token(times, hit.source, hit.prompt, policy(hit))
            for policy in (load_by_layer, recompute)
        )
        return loaded.first_token_s < computed.first_token_s

    @classmethod
    def nearest(cls, prompt: int, hit_rate: float) -> tuple[int, float]:
        """Returns the nearest point: a length and a hit rate."""
        return (
            min(cls.LENGTHS, key=lambda one: abs(math.log(one / prompt))),
            min(cls.HIT_RATES, key=lambda one: abs(one - hit_rate)),
        )

    def __call__(self, hit: Hit) -> Plan:
        """Returns the plan of the nearest point."""
        point = self.nearest(hit.prompt, hit.tokens / hit.prompt)
        return load_by_layer(hit) if self._loads[point] else NOTHING


class Oracle:
    """The best plan of every prompt of one length, on one GPU."""

    def __init__(self, times: LayerTimes, prompt: int) -> None:
        """Works out what is left behind every number of blocks.

        Args:
            times: Of the GPU.
            prompt: Tokens of the prompts.
        """
        self._layers = times.layers
        self._rests = [
            (tokens, Rest.of(times, tokens, prompt)) for tokens in range(0, prompt, BLOCK_TOKENS)
        ]

    def best(self, source: Source) -> list[tuple[Plan, Outcome]]:
        """Returns the best plan for every number of blocks that a store has, from 0 on.

        Args:
            source: Where the blocks are.
        """
        bests: list[tuple[Plan, Outcome]] = []
        for tokens, rest in self._rests:
            plans = [Plan(tokens), Plan(tokens, by_layer=True)]
            size = tokens * BYTES_PER_TOKEN
            tried = [(plan, outcome(source, plan, rest, self._layers, size)) for plan in plans]
            bests.append(min([*bests[-1:], *tried], key=lambda one: one[1].first_token_s))
        return bests


@dataclass(frozen=True)
class Ours:
    """The decisions of `dalsegno.CostModel`, as vLLM's direct path asks for them.

    Attributes:
        model: What was learned.
        layers: Layers of the model.
        most_wait_s: Seconds for which a step may wait for layers in all.
        block_tokens: Tokens of a block.
        bytes_per_token: Bytes of all layers of a token.
    """

    model: dalsegno.CostModel
    layers: int
    most_wait_s: float = math.inf
    block_tokens: int = BLOCK_TOKENS
    bytes_per_token: int = BYTES_PER_TOKEN

    def __call__(self, hit: Hit) -> Plan:
        """Decides."""
        return self.plan(self.choose(hit))

    def plan(self, choice: Any) -> Plan:
        """Returns what a choice loads."""
        return Plan(choice.blocks * self.block_tokens, by_layer=choice.overlapped)

    def choose(self, hit: Hit, *, both_ends: bool = False) -> Any:
        """Asks the model.

        Args:
            hit: The request.
            both_ends: Whether its front may be computed while its back is loaded.
        """
        blocks, source = hit.tokens // self.block_tokens, hit.source
        queued = (hit.queued if tier == source.tier else 0.0 for tier in TIERS)
        dram, log, far = queued
        terms = dalsegno.LoadTerms(
            block_bytes=self.block_tokens * self.bytes_per_token,
            block_tokens=self.block_tokens,
            chunk=CHUNK,
            layers=self.layers,
            guard_s=GUARD_S,
            most_wait_s=self.most_wait_s,
        )
        return self.model.choose(
            terms,
            [(source.tier, blocks)] if blocks else [],
            0,
            hit.prompt,
            most_overlapped=blocks,
            # No source is late here.
            most_copied=blocks if both_ends else 0,
            backlog_s=math.inf if hit.waiting >= BUSY else 0.0,
            waiting=hit.waiting,
            queued=(dram, log, far),
            both_ends=both_ends,
        )


def new_model() -> dalsegno.CostModel:
    """Returns a model that has seen nothing."""
    return dalsegno.CostModel(compute=COMPUTE_PRIOR, tiers=TIER_PRIORS)
