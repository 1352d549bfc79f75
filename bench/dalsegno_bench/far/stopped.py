"""Local hits and puts while the servers of the far directory are stopped.

The other phases are those of servers that work, and of stores without a far directory. A thread
puts all the time, so the log is full and space is reclaimed. The phases of a round come in an order
that changes. In each phase the same blocks are loaded: from the log of a store without DRAM, and
from the DRAM of another one.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dalsegno
from dalsegno_bench.far.fresh import quantile
from dalsegno_bench.far.node import BLOCK_BYTES, chains, namespace_of
from dalsegno_bench.far.places import BucketPlace, Place, Where
from dalsegno_bench.shared_fs.processes import Server, paused, until

__all__ = ["PHASES", "Phase", "measure", "summary"]

PHASES = ("working", "stopped", "none")
TIERS = ("log", "dram")
HOT_BLOCKS, GET_BLOCKS, PUT_BLOCKS = 32, 4, 4
CAPACITY, DRAM = "512MiB", "128MiB"
# Puts of 2 MiB a second: more than the far directory takes on a small machine.
PUTS_A_SECOND = 60
PAUSE_S = 0.001
RECOVERY_S = 30.0


class Phase:
    """Seconds of the calls of one phase.

    Attributes:
        gets: By tier, of gets.
        puts: Of puts.
        misses: Blocks that were not loaded.
    """

    def __init__(self) -> None:
        self.gets: dict[str, list[float]] = {tier: [] for tier in TIERS}
        self.puts: list[float] = []
        self.misses = 0


class Side:
    """Two stores, without and with DRAM, and the load of puts on the first.

    Args:
        folder: Where they are.
        far: Their far directory, if any.
    """

    def __init__(self, folder: Path, far: Where | None) -> None:
        settings = {} if far is None else {"far": str(far), "far_flush_s": 0.5}
        self.stores = {
            tier: dalsegno.open(
                folder / tier, capacity=CAPACITY, dram=DRAM if tier == "dram" else 0, **settings
            )
            for tier in TIERS
        }
        self._spaces = {tier: namespace_of(store) for tier, store in self.stores.items()}
        self._hot = list(chains("hot", HOT_BLOCKS, GET_BLOCKS))
        self._out = [bytearray(BLOCK_BYTES) for _ in range(GET_BLOCKS)]
        self._next = 0
        for chain in self._hot:
            for space in self._spaces.values():
                space.put_batch(chain, [bytes(BLOCK_BYTES)] * len(chain))

    def close(self) -> None:
        """Closes both stores."""
        for store in self.stores.values():
            store.close()

    def run(self, phase: Phase, seconds: float) -> None:
        """Loads hot blocks from both tiers in turn while a thread puts others."""
        stop = threading.Event()
        thread = threading.Thread(target=self._put, args=(phase, stop))
        thread.start()
        try:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                chain = random.choice(self._hot)  # noqa: S311 - no secret
                for tier, space in self._spaces.items():
                    start = time.perf_counter()
                    hits = space.get_batch(chain, self._out)
                    phase.gets[tier].append(time.perf_counter() - start)
                    phase.misses += len(chain) - hits
                time.sleep(PAUSE_S)
        finally:
            stop.set()
            thread.join()

    def _put(self, phase: Phase, stop: threading.Event) -> None:
        blocks = [os.urandom(BLOCK_BYTES) for _ in range(PUT_BLOCKS)]
        while not stop.is_set():
            chain = next(chains(f"load {self._next}", PUT_BLOCKS, PUT_BLOCKS))
            self._next += 1
            start = time.perf_counter()
            self._spaces["log"].put_batch(chain, blocks)
            seconds = time.perf_counter() - start
            phase.puts.append(seconds)
            time.sleep(max(0.0, 1 / PUTS_A_SECOND - seconds))

    def fill(self) -> None:
        """Puts until space is reclaimed."""
        phase = Phase()
        store = self.stores["log"]
        while store.stats()["evicted_blocks"] == 0:
            self.run(phase, 0.5)

    def published(self) -> int:
        """Returns the packs that were published."""
        counters = self.stores["log"].stats()["far"]
        return counters["published"]["packs"] if counters is not None else 0


@contextlib.contextmanager
def _state(name: str, servers: tuple[Server, ...]) -> Iterator[None]:
    """Stops the servers for the phase that needs it."""
    with paused(*servers) if name == "stopped" else contextlib.nullcontext():
        yield


def measure(place: Place | BucketPlace, local: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Runs the phases in turn; returns latencies and their ratios.

    Raises:
        NoPlaceError: The servers are not ours to stop.
    """
    storage = place.storage()
    at_a, _ = place.folder("stopped")
    phases: dict[str, list[Phase]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        sides = {}
        for name, shared in (("far", at_a), ("none", None)):
            sides[name] = Side(local / f"stopped-{name}", shared)
            stack.callback(sides[name].close)
            sides[name].fill()
        for _ in range(rounds):
            for name in random.sample(PHASES, len(PHASES)):
                side, phase = sides["none" if name == "none" else "far"], Phase()
                with _state(name, storage):
                    side.run(phase, seconds)
                phases[name].append(phase)
                if name == "stopped":
                    _recover(sides["far"])
        after = {name: side.stores["log"].stats() for name, side in sides.items()}
    place.remove("stopped")
    far = after["far"]["far"]
    assert far is not None
    evicted = {
        f"stopped_evicted_blocks_{name}": one["evicted_blocks"] for name, one in after.items()
    }
    return {
        **summary(phases),
        **evicted,
        "stopped_far_dropped_blocks": far["dropped_blocks"],
    }


def _recover(side: Side) -> None:
    """Waits until packs are published again: the next phase is one of a working directory."""
    before = side.published()
    until("packs are published again", lambda: side.published() > before, RECOVERY_S)


def summary(phases: dict[str, list[Phase]]) -> dict[str, Any]:
    """Returns p99 and maxima in milliseconds, and the medians of the rounds' ratios of p99."""
    made: dict[str, Any] = {}
    for tier in TIERS:
        p99 = {
            name: [quantile(one.gets[tier], 0.99) for one in found]
            for name, found in phases.items()
        }
        for name, values in p99.items():
            made[f"{tier}_p99_ms_{name}"] = round(1000 * statistics.median(values), 3)
            most = max(max(one.gets[tier]) for one in phases[name])
            made[f"{tier}_max_ms_{name}"] = round(1000 * most, 2)
        for other in ("working", "none"):
            pairs = zip(p99["stopped"], p99[other], strict=True)
            ratio = statistics.median(one / two for one, two in pairs)
            made[f"{tier}_p99_stopped_vs_{other}"] = round(ratio, 3)
    for name, found in phases.items():
        puts = [seconds for one in found for seconds in one.puts]
        made[f"put_max_ms_{name}"] = round(1000 * max(puts), 2)
        made[f"put_p99_ms_{name}"] = round(1000 * quantile(puts, 0.99), 2)
        made[f"puts_{name}"] = len(puts)
    made["stopped_misses"] = sum(one.misses for found in phases.values() for one in found)
    return made
