"""The first token of a prompt whose front is computed while its back is loaded.

1. Parts of the back arrive one after the other, from the last one on. One whose first token a step
   computes is lost.
2. Steps are as long as `Meeting` says, the class that vLLM's scheduler asks. It predicts with what
   our model has learned.
3. The best that can be had is `max(compute of n tokens, load of the others)`, for the best ``n``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import dalsegno
from dalsegno.integrations.common.meeting import BackSpan, BackState, Meeting
from dalsegno_bench.first_token.layers import BYTES_PER_TOKEN, CHUNK, LayerTimes
from dalsegno_bench.first_token.pipeline import Outcome, Plan, Rest, Source, first_token
from dalsegno_bench.first_token.policies import BLOCK_TOKENS, Hit, Ours

__all__ = ["best_meeting", "fronts_of", "predicted", "serve"]

# How often a scheduler looks again that has nothing to compute.
LOOKS_EVERY_S = 1e-3


@dataclass(frozen=True)
class _Parts:
    """The parts of a back, as they arrive.

    Attributes:
        source: Where they are.
        blocks: Blocks of all of them.
        part: Blocks of one.
    """

    source: Source
    blocks: int
    part: int

    def arrived_at(self, parts: int) -> float:
        """Returns when a number of parts have arrived."""
        count = min(parts * self.part, self.blocks)
        return self.source.load_s(count * BLOCK_TOKENS * BYTES_PER_TOKEN)

    def span(self, now: float, frontier: int) -> BackSpan:
        """Returns what has arrived, if steps have computed the blocks before a position."""
        most = (self.blocks - frontier) // self.part
        parts = 0
        while parts < most and self.arrived_at(parts + 1) <= now:
            parts += 1
        low = self.blocks - parts * self.part
        state = BackState.LOADING if parts < most else BackState.ENDED
        return BackSpan(low, self.blocks, state, self.arrived_at(parts) if parts else 0.0)


def serve(
    times: LayerTimes, hit: Hit, ours: Ours, compute_s: Callable[[int, int], float]
) -> tuple[Plan, Outcome]:
    """Serves a request with both ends, if our model says so.

    Args:
        times: Of the GPU.
        hit: The request.
        ours: Decides.
        compute_s: Returns the predicted seconds from one token to another one.
    """
    choice = ours.choose(hit, both_ends=True)
    plan = ours.plan(choice)
    if not choice.front:
        return plan, first_token(times, hit.source, hit.prompt, plan)
    blocks = hit.tokens // BLOCK_TOKENS
    part_s = choice.load_s * choice.part / (blocks - choice.front)
    meeting = Meeting(0, blocks, choice.part, BLOCK_TOKENS, choice.front, part_s)
    parts = _Parts(hit.source, blocks, choice.part)
    now = waited = compute = 0.0
    computed = 0
    while (reached := meeting.target(computed)) is None and computed < hit.tokens:
        tokens = meeting.chunk(computed, CHUNK, now, compute_s, may_wait=computed > 0)
        step_s = times.request_s(computed, computed + tokens) if tokens else LOOKS_EVERY_S
        now, computed = now + step_s, computed + tokens
        compute, waited = (compute + step_s, waited) if tokens else (compute, waited + step_s)
        meeting.span = parts.span(now, meeting.frontier(computed))
    rest = Rest.of(times, reached or computed, hit.prompt)
    rest_s = rest.layer_s * times.layers + rest.later_s
    loaded = plan.tokens - computed if reached else 0
    return plan, Outcome(
        first_token_s=now + rest_s,
        compute_s=compute + rest_s,
        fill_s=0.0,
        steady_s=waited,
        disk_s=hit.source.load_s(loaded * BYTES_PER_TOKEN),
        stall_s=0.0,
    )


def fronts_of(times: LayerTimes, tokens: int) -> list[float]:
    """Returns how long fronts of prompts compute on one GPU, in seconds, by their blocks.

    Args:
        times: Of the GPU.
        tokens: Tokens of the longest front.
    """
    return [times.request_s(0, end) for end in range(0, tokens + 1, BLOCK_TOKENS)]


def best_meeting(times: LayerTimes, fronts_s: Sequence[float], hit: Hit) -> float:
    """Returns when the first token comes if both ends meet where that is best.

    Args:
        times: Of the GPU.
        fronts_s: Seconds of fronts by their blocks, as long as the prompt.
        hit: The request.
    """
    blocks = hit.tokens // BLOCK_TOKENS

    def back_s(front: int) -> float:
        return hit.source.load_s((blocks - front) * BLOCK_TOKENS * BYTES_PER_TOKEN)

    # One grows and the other one falls.
    at = bisect_left(range(blocks), True, key=lambda front: fronts_s[front] >= back_s(front))
    near = range(max(0, at - 1), min(at + 1, blocks) + 1)
    met_s = min(max(fronts_s[front], back_s(front)) for front in near)
    rest = Rest.of(times, hit.tokens, hit.prompt)
    return met_s + rest.layer_s * times.layers + rest.later_s


def predicted(model: dalsegno.CostModel) -> Callable[[int, int], float]:
    """Returns what predicts how long a request computes."""
    return lambda first, end: model.request_s(first, end, CHUNK)
