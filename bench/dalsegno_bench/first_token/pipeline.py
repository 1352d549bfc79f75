"""When the first token of one request comes, if layers of its blocks arrive while others compute.

A step of ``L`` layers begins at ``t0``. Layer ``i`` computes for ``c_i`` seconds, and its blocks
arrive at ``a_i``. It starts at ``s_0 = max(t0, a_0)`` and ``s_i = max(s_{i-1} + c_{i-1}, a_i)``.
The time between the end of a layer and the start of the next one is a bubble. The one before the
first layer is the *fill* bubble, and the sum of the others is the *steady* bubble.

Blocks that are loaded ahead arrive together, when the load ends: they have a fill bubble only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dalsegno_bench.first_token.layers import BYTES_PER_TOKEN, CHUNK, LayerTimes

__all__ = ["NOTHING", "Outcome", "Plan", "Rest", "Source", "Step", "first_token", "outcome", "step"]


@dataclass(frozen=True)
class Source:
    """Where blocks are loaded from.

    Attributes:
        name: What it is called in figures.
        bytes_per_s: Bytes per second.
        latency_s: Seconds before the first byte of a load.
        tier: Which tier of a store it stands for: ``dram``, ``log`` or ``far``.
    """

    name: str
    bytes_per_s: float
    latency_s: float
    tier: str = "log"

    def load_s(self, size: float) -> float:
        """Returns the seconds of a load of so many bytes; 0 without any."""
        return self.latency_s + size / self.bytes_per_s if size else 0.0

    def arrivals(self, size: float, layers: int, begin_s: float = 0.0) -> list[float]:
        """Returns when each layer of a load arrives.

        Args:
            size: Bytes of all layers.
            layers: How many there are.
            begin_s: When the load begins.
        """
        if not size:
            return [begin_s] * layers
        first_s, each_s = begin_s + self.latency_s, size / self.bytes_per_s / layers
        return [first_s + (layer + 1) * each_s for layer in range(layers)]


@dataclass(frozen=True)
class Plan:
    """What is loaded of a prompt.

    Attributes:
        tokens: Leading tokens.
        by_layer: Whether a step waits for each layer of them; otherwise the request waits.
    """

    tokens: int
    by_layer: bool = False


NOTHING = Plan(0)


@dataclass(frozen=True)
class Step:
    """The times of one step, in seconds.

    Attributes:
        end_s: When it ends.
        compute_s: How long its layers compute.
        fill_s: The bubble before the first layer.
        steady_s: The bubbles between layers.
    """

    end_s: float
    compute_s: float
    fill_s: float
    steady_s: float


def step(begin_s: float, layer_s: Sequence[float], arrivals_s: Sequence[float]) -> Step:
    """Computes layers, each of which needs its blocks.

    Args:
        begin_s: When the step begins.
        layer_s: How long each layer computes.
        arrivals_s: When the blocks of each layer arrive.
    """
    now, steady = max(begin_s, arrivals_s[0]), 0.0
    fill = now - begin_s
    for compute, arrival in zip(layer_s, arrivals_s, strict=True):
        if arrival > now:
            steady += arrival - now
            now = arrival
        now += compute
    return Step(now, sum(layer_s), fill, steady)


@dataclass(frozen=True)
class Rest:
    """What is left to compute behind loaded tokens.

    Attributes:
        layer_s: Seconds of a layer of the first step.
        later_s: Seconds of the steps behind that one.
    """

    layer_s: float
    later_s: float

    @classmethod
    def of(cls, times: LayerTimes, begin: int, prompt: int, chunk: int = CHUNK) -> Rest:
        """Returns what is left.

        Args:
            times: Of the GPU.
            begin: Tokens that are there.
            prompt: Tokens of the prompt. The last one is computed in any case.
            chunk: Tokens that a step computes at most.
        """
        begin = min(begin, prompt - 1)
        end = min(begin + chunk, prompt)
        return cls(times.layer_s(end - begin, begin), times.request_s(end, prompt, chunk))


@dataclass(frozen=True)
class Outcome:
    """What a plan leads to, in seconds; the request comes at 0.

    Attributes:
        first_token_s: When the first token comes.
        compute_s: How long its steps compute.
        fill_s: The fill bubble, and the wait for a load ahead.
        steady_s: The steady bubble.
        disk_s: How long the source is busy.
        stall_s: How long decode steps of other requests would wait because a step waits.
    """

    first_token_s: float
    compute_s: float
    fill_s: float
    steady_s: float
    disk_s: float
    stall_s: float

    @property
    def bubble_s(self) -> float:
        """Both bubbles."""
        return self.fill_s + self.steady_s


def outcome(source: Source, plan: Plan, rest: Rest, layers: int, size: float) -> Outcome:
    """Works out a plan.

    Args:
        source: Where its blocks are.
        plan: What is loaded.
        rest: What is left to compute then.
        layers: Layers of the model.
        size: Bytes of the loaded tokens.
    """
    load_s = source.load_s(size)
    by_layer = plan.by_layer and size > 0
    arrivals = source.arrivals(size, layers) if by_layer else [load_s] * layers
    first = step(0.0, [rest.layer_s] * layers, arrivals)
    return Outcome(
        first_token_s=first.end_s + rest.later_s,
        compute_s=first.compute_s + rest.later_s,
        fill_s=first.fill_s,
        steady_s=first.steady_s,
        disk_s=load_s,
        stall_s=first.fill_s + first.steady_s if by_layer else 0.0,
    )


def first_token(
    times: LayerTimes,
    source: Source,
    prompt: int,
    plan: Plan,
    *,
    bytes_per_token: int = BYTES_PER_TOKEN,
) -> Outcome:
    """Serves one request on an engine that has nothing else to do.

    Args:
        times: Of the GPU.
        source: Where its blocks are.
        prompt: Tokens of the prompt.
        plan: What is loaded of it.
        bytes_per_token: Bytes that all layers have of a token.
    """
    rest = Rest.of(times, plan.tokens, prompt)
    return outcome(source, plan, rest, times.layers, plan.tokens * bytes_per_token)
