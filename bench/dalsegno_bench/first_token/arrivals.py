"""Requests that come while others are served, under each policy.

The prompts and their hit rates are random, and the same for all policies. Without loads the GPU
would compute for about four fifths of the time.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import Any

from dalsegno_bench.first_token.engine import Engine, Request
from dalsegno_bench.first_token.layers import LayerTimes
from dalsegno_bench.first_token.learning import Noted, learned
from dalsegno_bench.first_token.pipeline import Source
from dalsegno_bench.first_token.policies import (
    BLOCK_TOKENS,
    FIXED,
    OfflineTable,
    Ours,
    Policy,
    whole,
)

__all__ = ["poisson", "served"]

REQUESTS = 120
RATE = 0.4
PROMPTS = (16_384, 16_384, 16_384, 32_768, 32_768, 65_536)
HIT_RATES = (0.0, 0.5, 0.9, 0.98)
OUTPUTS = (16, 64)
# 110 GB of an H200 with 128 KiB per token.
BLOCKS = 840_000 // BLOCK_TOKENS
# As `max_step_load_s` of vLLM's direct path.
MOST_WAIT_S = 0.05


def poisson(source: str, seed: int, count: int = REQUESTS, rate: float = RATE) -> list[Request]:
    """Returns requests.

    Args:
        source: Name of the source of all blocks.
        seed: Another seed makes other requests.
        count: How many.
        rate: How many in a second, on average.
    """
    noise, now, requests = random.Random(seed), 0.0, []  # noqa: S311 - not a secret
    for _ in range(count):
        now += noise.expovariate(rate)
        prompt, output = noise.choice(PROMPTS), noise.randint(*OUTPUTS)
        hit = whole(prompt * noise.choice(HIT_RATES))
        requests.append(Request(now, prompt, output, hit, source))
    return requests


def served(times: LayerTimes, source: Source, seed: int) -> dict[str, dict[str, Any]]:
    """Serves the same requests under each policy.

    Args:
        times: Of the GPU.
        source: Where blocks are.
        seed: Of the requests, and of what our model has learned before.

    Returns:
        By policy: mean and p99 of the first tokens, and the totals of the engine and the source.
        ``ours`` learns from these requests, ``ours_frozen`` does not.
    """
    ours = Ours(learned(times, source, seed), times.layers, MOST_WAIT_S)
    policies: dict[str, Policy] = {
        **FIXED,
        "offline_table": OfflineTable(times, source),
        "ours_frozen": ours,
        "ours": ours,
    }
    found = {}
    for name, policy in policies.items():
        requests = poisson(source.name, seed)
        noted = Noted(ours.model) if name == "ours" else None
        engine = Engine(times, [source], policy, BLOCKS, noted)
        engine.run(requests)
        found[name] = _figures(engine, requests, source)
    return found


def _figures(engine: Engine, requests: Sequence[Request], source: Source) -> dict[str, Any]:
    waits = sorted(one.first_token_s - one.arrival_s for one in requests)
    totals = engine.totals
    return {
        "first_token_s": round(statistics.fmean(waits), 3),
        "first_token_p99_s": round(waits[int(0.99 * (len(waits) - 1))], 3),
        "bubble_s": round(totals.bubble_s, 3),
        "decode_stall_s": round(totals.stall_s, 3),
        "disk_busy_s": round(engine.tiers[source.name].busy_s, 3),
        "compute_s": round(totals.compute_s, 3),
        "idle_s": round(totals.idle_s, 3),
        "end_s": round(totals.end_s, 3),
        "peak_blocks": engine.blocks.peak,
        "loads": sum(bool(one.plan and one.plan.tokens) for one in requests),
        "loads_by_layer": sum(
            bool(one.plan and one.plan.tokens and one.plan.by_layer) for one in requests
        ),
    }
