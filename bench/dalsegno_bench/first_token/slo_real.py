"""Requests at random with real loads and saves: timed waits in place of compute, as in `real.py`.

An engine in real time serves prompts from a store on a disk of this machine. It loads what its
policy says, saves the blocks that it computes, and under `ours` says at each step what it does.
Layers, bytes of a token and waits are those of `real.py`.

The disk is measured first. For each policy the highest rate with first tokens within the bound is
found in virtual time with that disk, and then tried with real I/O, in steps of a tenth downwards
from a fifth above it.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dalsegno
from dalsegno_bench.first_token.engine import Batch, Engine, Observer, Request, Tier
from dalsegno_bench.first_token.layers import BYTES_PER_TOKEN as H200_BYTES_PER_TOKEN
from dalsegno_bench.first_token.layers import LayerTimes
from dalsegno_bench.first_token.learning import STEPS, Noted, compute
from dalsegno_bench.first_token.pipeline import Plan, Source, Step
from dalsegno_bench.first_token.policies import Ours, Policy, load_ahead, new_model, recompute
from dalsegno_bench.first_token.real import (
    BLOCK_TOKENS,
    BYTES_PER_TOKEN,
    LAYERS,
    Rig,
    measured,
    opened,
)

__all__ = ["POLICIES", "RealEngine", "Served", "run"]

# Parts of the rate that virtual time holds, highest first.
TRIED = (1.2, 1.1, 1.0, 0.9, 0.8, 0.7, 0.6)
# Loads from which a model learns before, and those that measure the disk.
LOADS, MEASURED = 10, 5
# As `max_step_load_s` of vLLM's direct path.
MOST_WAIT_S = 0.05
CAPACITY = "8GiB"
ENGINE = 1
POLICIES = ("recompute", "load_all", "ours")

_saves = itertools.count()


@dataclass
class _Loading:
    """A load that has not ended; its bytes are those that were queued before it too."""

    request: Request
    load: dalsegno.Load
    begin_s: float
    size: float


class RealTier(Tier):
    """The disk of a rig."""

    def __init__(self, source: Source) -> None:
        """Has no loads."""
        super().__init__(source)
        self.loading: list[_Loading] = []

    def queued(self, now: float) -> float:
        """Returns the bytes that are still to come."""
        del now
        return sum(_left(one) for one in self.loading)


def _left(one: _Loading) -> float:
    assert one.request.plan is not None
    ready = sum(one.load.layer_ready(layer) for layer in range(LAYERS))
    return (1 - ready / LAYERS) * one.request.plan.tokens * BYTES_PER_TOKEN


class RealEngine(Engine):
    """An engine whose seconds are real ones."""

    def __init__(
        self, rig: Rig, source: Source, policy: Policy, blocks: int, observer: Observer | None
    ) -> None:
        """Starts now.

        Args:
            rig: Where blocks are.
            source: What the policy knows of it.
            policy: What is loaded.
            blocks: Blocks of the KV cache.
            observer: What learns from steps and loads; only then the store hears of steps.
        """
        super().__init__(rig.times, [], policy, blocks, observer)
        self._rig, self._tier = rig, RealTier(source)
        self.tiers = {source.name: self._tier}
        self._by_layer: list[dalsegno.Load] = []
        # Who stores nothing loads nothing.
        self._saves: list[dalsegno.Transfer[dalsegno.PutReport]] | None = None
        if policy is not recompute:
            self._saves = []
        self._began = time.perf_counter()

    def _clock(self) -> float:
        return time.perf_counter() - self._began

    def _until(self, moment: float) -> None:
        time.sleep(max(0.0, moment - self._clock()))

    def _say(self, phase: Any, slack_s: float = 0.0) -> None:
        if self._observer is not None:
            self._rig.store.set_phase(ENGINE, phase, slack_s=slack_s)

    def _receive(self) -> None:
        self._now = self._clock()
        ended = [one for one in self._tier.loading if one.load.done()]
        for one in ended:
            self._tier.loading.remove(one)
            assert one.request.plan is not None
            if one.load.result() < one.request.plan.tokens // BLOCK_TOKENS:
                raise ValueError("the store has lost blocks")
            one.request.loaded_s = self._now
            if self._observer is not None:
                self._observer.load(self._tier.source.tier, one.size, self._now - one.begin_s)
        super()._receive()

    def _idle(self) -> None:
        self._say("prefill" if self._tier.loading else "idle")
        began = self._clock()
        if self._tier.loading:
            # The last layer of one of them, or the next request.
            time.sleep(2e-4)
        else:
            self._until(self._coming[0].arrival_s)
        self._now = self._clock()
        self.totals.idle_s += self._now - began

    def _load(self, batch: Batch, request: Request, plan: Plan) -> None:
        size = plan.tokens * BYTES_PER_TOKEN + self._tier.queued(self._now)
        load = self._rig.load(plan.tokens // BLOCK_TOKENS)
        self._tier.loading.append(_Loading(request, load, self._clock(), size))
        request.loaded_s = float("inf")
        if not plan.by_layer:
            self._loading.append(request)
            return
        self._by_layer.append(load)
        batch.arrivals.append([])
        self._running.append(request)
        self._add_chunk(batch, request)

    def _compute(self, batch: Batch) -> None:
        layer_s = self._times.batch_s(batch.parts)
        is_reading = bool(batch.arrivals) or bool(self._tier.loading)
        is_prefill = len(batch.parts) > batch.decodes
        slack_s = 0.0 if is_reading else layer_s * LAYERS
        self._say("prefill" if is_reading or is_prefill else "decode", slack_s)
        begin, bubbles = self._clock(), [0.0] * LAYERS
        now = begin
        for layer in range(LAYERS):
            for load in self._by_layer:
                if not load.layer_ready(layer):
                    load.wait_layer(layer)
                    bubbles[layer] = max(bubbles[layer], self._clock() - now)
            now += bubbles[layer] + layer_s
            self._until(now)
        self._by_layer.clear()
        done = Step(self._clock(), layer_s * LAYERS, bubbles[0], sum(bubbles[1:]))
        if self._saves is not None:
            for request, part in zip(batch.requests, batch.parts, strict=True):
                if request.computed + part.new == request.prompt:
                    self._saves.append(self._save(request))
        self._computed(batch, done)

    def _save(self, request: Request) -> dalsegno.Transfer[dalsegno.PutReport]:
        """Saves the blocks of a prompt that were computed."""
        assert request.plan is not None
        number, blocks = next(_saves), (request.prompt - request.plan.tokens) // BLOCK_TOKENS
        # Those of the prompt that is there serve as contents.
        contents = self._rig.buffers[:blocks]
        names = [hashlib.sha256(b"%d %d" % (number, at)).digest() for at in range(len(contents))]
        return self._rig.namespace.submit_put(names, contents)

    def end(self) -> int:
        """Waits until everything is saved.

        Returns:
            How many blocks were not.
        """
        self._say("idle")
        saves = self._saves or []
        for save in saves:
            save.wait()
        return sum(save.result().failed for save in saves)


@dataclass(frozen=True)
class Served:
    """What is asked of each policy.

    Attributes:
        prompts: Tokens of each prompt, and how many of them are stored.
        output: Tokens of an answer.
        blocks: Of the KV cache.
        bound_s: Of the mean first token.
        seed: Of the pauses between requests, and of what our model has learned.
        rate_of: Finds the highest rate of what returns first tokens at a rate.
    """

    prompts: Sequence[tuple[int, int]]
    output: int
    blocks: int
    bound_s: float
    seed: int
    rate_of: Callable[[Callable[[float], list[float]]], float]

    def requests(self, rate: float) -> list[Request]:
        """Returns the requests, so many a second."""
        noise, now, made = random.Random(self.seed), 0.0, []  # noqa: S311 - not a secret
        for prompt, stored in self.prompts:
            now += noise.expovariate(1.0) / rate
            hit = stored // BLOCK_TOKENS * BLOCK_TOKENS
            made.append(Request(now, prompt, self.output, hit, "disk"))
        return made

    def policy(
        self, name: str, times: LayerTimes, source: Source, bytes_per_token: int
    ) -> tuple[Policy, Noted | None]:
        """Returns a policy, and what learns for it."""
        if name != "ours":
            return {"recompute": recompute, "load_all": load_ahead}[name], None
        noise, model = random.Random(self.seed), new_model()  # noqa: S311 - not a secret
        noted = Noted(model, noise, STEPS)
        compute(times, noted, noise)
        for _ in range(LOADS):
            size = noise.randint(1, 256) * BLOCK_TOKENS * bytes_per_token
            noted.load(source.tier, size, source.load_s(size))
        ours = Ours(model, LAYERS, MOST_WAIT_S, BLOCK_TOKENS, bytes_per_token)
        return ours, Noted(model)

    def simulated(self, name: str, times: LayerTimes, source: Source) -> float:
        """Returns the rate that a policy holds in virtual time."""
        # The engine in virtual time has the bytes of the H200's model.
        scale = H200_BYTES_PER_TOKEN / BYTES_PER_TOKEN
        source = replace(source, bytes_per_s=source.bytes_per_s * scale)

        def serve(rate: float) -> list[float]:
            policy, noted = self.policy(name, times, source, H200_BYTES_PER_TOKEN)
            requests = self.requests(rate)
            Engine(times, [source], policy, self.blocks, noted).run(requests)
            return [one.first_token_s - one.arrival_s for one in requests]

        return self.rate_of(serve)

    def real(self, name: str, rig: Rig, source: Source, rate: float) -> tuple[float, int]:
        """Serves all with real loads and saves.

        Returns:
            The mean of the seconds until first tokens, and how many blocks were not saved.

        Raises:
            ValueError: The store has lost blocks.
        """
        policy, noted = self.policy(name, rig.times, source, BYTES_PER_TOKEN)
        engine, requests = RealEngine(rig, source, policy, self.blocks, noted), self.requests(rate)
        engine.run(requests)
        return statistics.fmean(one.first_token_s - one.arrival_s for one in requests), engine.end()


def run(directory: Path, asked: Served) -> dict[str, Any]:
    """Finds the highest rate of each policy, in virtual time and with real I/O.

    Args:
        directory: Where the store is.
        asked: What is asked of each.

    Raises:
        ValueError: The store has lost blocks.
    """
    tokens = max(stored for _, stored in asked.prompts) // BLOCK_TOKENS * BLOCK_TOKENS
    result: dict[str, Any] = {}
    with opened(directory, tokens, CAPACITY) as rig:
        loads = [(rig.load_s(1), rig.load_s(len(rig.chain))) for _ in range(MEASURED)]
        source = measured(loads, tokens)
        result["gb_per_s"] = round(source.bytes_per_s / 1e9, 2)
        for name in POLICIES:
            expected, held, lost = asked.simulated(name, rig.times, source), 0.0, 0
            # None where first tokens are late even if requests never meet.
            for part in TRIED if expected else ():
                rig.keep()
                rate = part * expected
                mean_s, failed = asked.real(name, rig, source, rate)
                lost += failed
                print(f"real: {name}, {rate:.2f}/s: {mean_s:.3f} s", file=sys.stderr, flush=True)
                if mean_s <= asked.bound_s:
                    held = rate
                    break
            result[name] = {
                "per_s": round(held, 3),
                "simulated_per_s": round(expected, 3),
                "blocks_not_saved": lost,
            }
    rates = {name: result[name]["per_s"] for name in POLICIES[:-1]}
    ours = result["ours"]["per_s"]
    result["ours_over"] = {name: round(ours / rate, 2) for name, rate in rates.items() if rate}
    return result
