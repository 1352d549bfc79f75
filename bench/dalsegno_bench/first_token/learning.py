"""What `dalsegno.CostModel` has seen before it decides: steps and loads, and no table.

The steps are the first ones of an engine in virtual time, which computes prompts and decodes. The
loads have random sizes. Every measurement has noise.
"""

from __future__ import annotations

import random

import dalsegno
from dalsegno_bench.first_token.engine import Engine, Request
from dalsegno_bench.first_token.layers import LayerTimes, Part
from dalsegno_bench.first_token.pipeline import Source
from dalsegno_bench.first_token.policies import BLOCK_TOKENS, new_model, recompute

__all__ = ["LOADS", "STEPS", "Noted", "compute", "learned"]

STEPS, LOADS = 60, 10
# The relative noise of a measurement.
NOISE = 0.02
# More than enough for `STEPS`.
REQUESTS = 40
# Seconds between two requests, on average, and tokens of the longest answer.
PAUSE_S, ANSWER = 1.0, 4
BLOCKS = 1_000_000 // BLOCK_TOKENS


class Noted:
    """Lets a model learn from an engine, as vLLM's direct path does.

    Attributes:
        model: The model.
        steps: How many steps it has seen.
    """

    def __init__(
        self, model: dalsegno.CostModel, noise: random.Random | None = None, most: int | None = None
    ) -> None:
        """Notes nothing yet.

        Args:
            model: The model.
            noise: Makes measurements vary.
            most: Steps to note.
        """
        self.model, self._noise, self._most, self.steps = model, noise, most, 0

    def step(self, parts: list[Part], seconds: float) -> None:
        """Notes a step."""
        if self.steps == self._most:
            return
        self.steps += 1
        self.model.note_step(
            sum(part.new for part in parts),
            sum(part.new * (part.before + part.new / 2) for part in parts),
            sum(part.before + part.new for part in parts),
            self._measured(seconds),
        )

    def load(self, tier: str, size: float, seconds: float) -> None:
        """Notes a load."""
        self.model.note_load(tier, size, self._measured(seconds))

    def _measured(self, seconds: float) -> float:
        return seconds if self._noise is None else seconds * max(0.5, self._noise.gauss(1, NOISE))


def learned(times: LayerTimes, source: Source, seed: int) -> dalsegno.CostModel:
    """Returns a model of an engine that has run for a while.

    Its loads have 64 MiB to 16 GiB, each size as likely as its double.

    Args:
        times: Of the GPU.
        source: Where blocks are loaded from.
        seed: Another seed makes other measurements.
    """
    noise, model = random.Random(seed), new_model()  # noqa: S311 - not a secret
    noted = Noted(model, noise, STEPS)
    compute(times, noted, noise)
    for _ in range(LOADS):
        size = 2 ** noise.uniform(26, 34)
        noted.load(source.tier, size, source.load_s(size))
    return model


def compute(times: LayerTimes, noted: Noted, noise: random.Random) -> None:
    """Runs an engine that computes prompts and decodes.

    Its prompts have 1,024 to 131,072 tokens, each length as likely as its double.

    Args:
        times: Of the GPU.
        noted: What learns from the steps.
        noise: Makes the prompts.
    """
    requests, now = [], 0.0
    for _ in range(REQUESTS):
        now += noise.expovariate(1 / PAUSE_S)
        requests.append(Request(now, int(2 ** noise.uniform(10, 17)), noise.randint(1, ANSWER)))
    Engine(times, (), recompute, BLOCKS, noted).run(requests)
