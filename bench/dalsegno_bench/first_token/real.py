"""Plans with real loads: a store on a disk of this machine, and timed waits in place of compute.

The layers take as long as on the H200, and at least 2 ms. There are fewer of them, with fewer
bytes per token, so that a prompt takes half a second. A wait ends on a clock: the layer before it
ended when it should have, even if the wait took longer. The store has no memory tier, and its disk
is read without a page cache.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import dalsegno
from dalsegno_bench.disk.log import aligned
from dalsegno_bench.first_token.layers import CHUNK, H200, LayerTimes
from dalsegno_bench.first_token.learning import LOADS, STEPS, Noted, compute
from dalsegno_bench.first_token.pipeline import Plan, Source, first_token
from dalsegno_bench.first_token.policies import FIXED, Hit, Ours, Policy, new_model

__all__ = [
    "BLOCK_BYTES",
    "BLOCK_TOKENS",
    "BYTES_PER_TOKEN",
    "LAYERS",
    "Rig",
    "measured",
    "opened",
    "ranked",
    "run",
    "timed_layers",
]

PROMPT = 32_768
BLOCK_TOKENS = 128
LAYERS = 8
BYTES_PER_TOKEN = 16 << 10
BLOCK_BYTES = BLOCK_TOKENS * BYTES_PER_TOKEN
HIT_RATES = (0.25, 0.5, 0.75, 0.9, 0.98)
LEAST_MS = 2.0
CAPACITY = "2GiB"
# Blocks of one put.
PUT_BLOCKS = 32
COLUMNS = (
    "hit rate",
    "policy",
    "loaded tokens",
    "by layer",
    "measured",
    "simulated",
    "bubble",
    "simulated bubble",
)
# Predictions that differ by less do not rank policies.
CLOSE = 0.05


def timed_layers() -> LayerTimes:
    """Returns the layer times of the waits."""
    rows = H200.milliseconds
    waits = tuple(tuple(max(LEAST_MS, ms) for ms in row) for row in rows)
    return LayerTimes("timed waits", "timed", waits, LAYERS)


@dataclass(frozen=True)
class Rig:
    """A store with the blocks of one prompt.

    Attributes:
        store: The store.
        namespace: Of the blocks.
        chain: Their names.
        buffers: One for each block.
        times: How long layers take.
    """

    store: dalsegno.Store
    namespace: dalsegno.Namespace
    chain: Sequence[bytes]
    buffers: Sequence[memoryview]
    times: LayerTimes

    def keep(self) -> None:
        """Saves the blocks that the store does not have."""
        for at in range(0, len(self.chain), PUT_BLOCKS):
            end = at + PUT_BLOCKS
            self.namespace.put_batch(self.chain[:end], self.buffers[at:end], first=at)

    def load(self, blocks: int) -> dalsegno.Load:
        """Begins to load leading blocks."""
        return self.namespace.load(self.chain[:blocks], self.buffers[:blocks])

    def load_s(self, blocks: int) -> float:
        """Loads leading blocks; returns how long it took.

        Raises:
            ValueError: The store has lost blocks.
        """
        begin_s = time.perf_counter()
        load = self.load(blocks)
        load.wait()
        seconds = time.perf_counter() - begin_s
        if load.result() != blocks:
            raise ValueError("the store has lost blocks")
        return seconds

    def serve(self, plan: Plan) -> tuple[float, float]:
        """Serves the prompt.

        Returns:
            When its first token comes, and the bubbles until then, in seconds.

        Raises:
            ValueError: The store has lost blocks.
        """
        begin_s = time.perf_counter()
        now, bubble, blocks = begin_s, 0.0, plan.tokens // BLOCK_TOKENS
        load = None
        if blocks and plan.by_layer:
            load = self.load(blocks)
        elif blocks:
            bubble = self.load_s(blocks)
            now += bubble
        for start in range(plan.tokens, PROMPT, CHUNK):
            layer_s = self.times.layer_s(min(CHUNK, PROMPT - start), start)
            for layer in range(LAYERS):
                arrival_s = now if load is None else _arrival_s(load, layer, now)
                bubble += arrival_s - now
                now = arrival_s + layer_s
                time.sleep(max(0.0, now - time.perf_counter()))
            if load is not None and load.result() != blocks:
                raise ValueError("the store has lost blocks")
            load = None
        return now - begin_s, bubble


def _arrival_s(load: dalsegno.Load, layer: int, now: float) -> float:
    """Returns when a layer can be computed: now, or when it has arrived."""
    if load.layer_ready(layer):
        return now
    load.wait_layer(layer)
    return max(now, time.perf_counter())


@contextmanager
def opened(directory: Path, tokens: int = PROMPT, capacity: str = CAPACITY) -> Iterator[Rig]:
    """Makes a store of its own, and removes it.

    Args:
        directory: Where.
        tokens: Of the prompt that it has.
        capacity: What it may take of the disk.
    """
    folder = Path(tempfile.mkdtemp(prefix="dalsegno-bench-", dir=directory))
    count = tokens // BLOCK_TOKENS
    memory = aligned(count * BLOCK_BYTES)
    buffers = [memory[at * BLOCK_BYTES :][:BLOCK_BYTES] for at in range(count)]
    chain = [hashlib.sha256(b"%d" % at).digest() for at in range(count)]
    try:
        with dalsegno.open(folder, capacity=capacity, dram=0, merge_rate=0, scrub_rate=0) as store:
            namespace = store.namespace(
                {"bench": "bubble"}, layers=LAYERS, slice_bytes=BLOCK_BYTES // LAYERS
            )
            rig = Rig(store, namespace, chain, buffers, timed_layers())
            rig.keep()
            yield rig
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(directory: Path, rounds: int, seed: int) -> dict[str, Any]:
    """Serves a prompt with several hit rates under each policy, and compares with the simulator.

    Args:
        directory: Where the store is.
        rounds: How often each policy serves each hit rate.
        seed: Of the order, and of the steps from which our model has learned.

    Returns:
        The measured source; by hit rate and policy the medians in milliseconds, and what the
        simulator predicts with that source; and of the pairs of policies that it ranks clearly,
        the share that was measured in the same order.

    Raises:
        ValueError: The store has lost blocks.
    """
    noise = random.Random(seed)  # noqa: S311 - not a secret
    with opened(directory) as rig:
        model = new_model()
        noted = Noted(model, most=STEPS)
        compute(rig.times, noted, noise)
        for _ in range(LOADS):
            blocks = noise.randint(1, len(rig.chain))
            noted.load("log", blocks * BLOCK_BYTES, rig.load_s(blocks))
        ours = Ours(model, LAYERS, block_tokens=BLOCK_TOKENS, bytes_per_token=BYTES_PER_TOKEN)
        policies: dict[str, Policy] = {**FIXED, "ours": ours}
        # Policies need only the tier of a source.
        unknown = Source("", 1.0, 0.0)
        plans = {
            (rate, name): policy(Hit(PROMPT, _whole(rate * PROMPT), unknown))
            for rate in HIT_RATES
            for name, policy in policies.items()
        }
        served, loads = _rounds(rig, plans, rounds, noise)
    return _compared(rig.times, plans, served, measured(loads, PROMPT))


Key = tuple[float, str]


def _rounds(
    rig: Rig, plans: dict[Key, Plan], rounds: int, noise: random.Random
) -> tuple[dict[Key, list[tuple[float, float]]], list[tuple[float, float]]]:
    """Serves all plans in each round, in an order that changes.

    Returns:
        For each plan the first tokens and bubbles; and the seconds of loads of one block and of
        all.
    """
    served: dict[Key, list[tuple[float, float]]] = {key: [] for key in plans}
    loads = []
    for number in range(rounds):
        for key in noise.sample(list(plans), len(plans)):
            served[key].append(rig.serve(plans[key]))
        loads.append((rig.load_s(1), rig.load_s(len(rig.chain))))
        print(f"real: round {number + 1} of {rounds}", file=sys.stderr)
    return served, loads


def _whole(tokens: float) -> int:
    return int(tokens) // BLOCK_TOKENS * BLOCK_TOKENS


def measured(loads: Sequence[tuple[float, float]], tokens: int) -> Source:
    """Returns the source that was measured.

    Args:
        loads: Seconds of loads of one block and of all.
        tokens: Of all blocks.
    """
    one_s, all_s = (statistics.median(column) for column in zip(*loads, strict=True))
    bytes_per_s = (tokens * BYTES_PER_TOKEN - BLOCK_BYTES) / max(1e-9, all_s - one_s)
    return Source("disk", bytes_per_s, max(0.0, one_s - BLOCK_BYTES / bytes_per_s))


def _compared(
    times: LayerTimes,
    plans: dict[Key, Plan],
    served: dict[Key, list[tuple[float, float]]],
    source: Source,
) -> dict[str, Any]:
    figures: dict[str, dict[str, Any]] = {}
    print(f"\nloads at {source.bytes_per_s / 1e9:.2f} GB/s, timed waits as compute; medians, ms")
    print("".join(f"{name:>18}" for name in COLUMNS))
    for (rate, name), plan in plans.items():
        first_s, bubble_s = (
            statistics.median(column) for column in zip(*served[rate, name], strict=True)
        )
        expected = first_token(times, source, PROMPT, plan, bytes_per_token=BYTES_PER_TOKEN)
        cell = {
            "loaded_tokens": plan.tokens,
            "by_layer": plan.by_layer,
            "ms": round(1e3 * first_s, 1),
            "simulated_ms": round(1e3 * expected.first_token_s, 1),
            "bubble_ms": round(1e3 * bubble_s, 1),
            "simulated_bubble_ms": round(1e3 * expected.bubble_s, 1),
        }
        figures.setdefault(f"{rate:g}", {})[name] = cell
        print("".join(f"{one!s:>18}" for one in (f"{rate:g}", name, *cell.values())))
    return {
        "gb_per_s": round(source.bytes_per_s / 1e9, 3),
        "latency_ms": round(1e3 * source.latency_s, 3),
        **ranked([cells.values() for cells in figures.values()]),
        "hit_rates": figures,
    }


def ranked(hit_rates: Sequence[Iterable[Mapping[str, Any]]]) -> dict[str, Any]:
    """Counts the pairs of policies that the simulator ranks clearly, and their order.

    Args:
        hit_rates: For each hit rate the figures of its policies.

    Returns:
        ``ranked_pairs``, and ``same_order``: the share that was measured in the same order.
    """
    agreed = []
    for cells in hit_rates:
        for one, two in combinations(cells, 2):
            ratio = one["simulated_ms"] / two["simulated_ms"]
            if not 1 / (1 + CLOSE) < ratio < 1 + CLOSE:
                agreed.append((one["ms"] < two["ms"]) == (ratio < 1))
    share = round(sum(agreed) / len(agreed), 3) if agreed else None
    return {"same_order": share, "ranked_pairs": len(agreed)}
