"""Merging of small extents: extents that remain, bytes written, and its effect on gets.

Blocks are put one at a time, round robin over many lineages, as decode does. Another thread gets
runs of blocks that are present. Stores with merging and without take turns part by part, so that
noise of the machine hits both alike. The ratio of the gets' 99th percentiles is the median over the
parts. At the end the stores run without load until nothing waits to be merged. Then they are closed
and their extents are counted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import dalsegno
from dalsegno.paths import local_path
from dalsegno_bench.machine.speed import cpu_s

__all__ = ["SUMMARY", "main", "percentile", "report"]

SUMMARY = "merging of small extents: extents per lineage, bytes rewritten, p99 of concurrent gets"

# Blocks of one get at most: a part of a prefix.
GET_BLOCKS = 32
SETTLE_S = 180.0


@dataclass
class Figures:
    """What was measured of one store."""

    p99_ms: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    put_s: float = 0.0
    cpu_s: float = 0.0


def percentile(samples: Sequence[float], share: float) -> float:
    """The sample that ``share`` of all do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Subject:
    """One store, with merging on or off.

    Args:
        directory: Where it lives.
        rate: The setting ``merge_rate``.
        options: The bench's arguments.
    """

    def __init__(self, directory: Path, rate: str | int, options: argparse.Namespace) -> None:
        self.directory = directory
        self.options = options
        put_bytes = options.blocks * options.block_kib << 10
        self.store = dalsegno.open(
            directory,
            capacity=4 * put_bytes + (1 << 30),
            dram=0,
            index=options.index,
            merge_rate=rate,
        )
        self.namespace = self.store.namespace(
            {"bench": "merge"},
            layers=options.layers,
            slice_bytes=self.block_bytes() // options.layers,
        )
        self.chains: list[list[bytes]] = [[] for _ in range(options.lineages)]
        self.figures = Figures()
        self.block = memoryview(bytearray(random.Random(7).randbytes(self.block_bytes())))  # noqa: S311

    def block_bytes(self) -> int:
        """Bytes of a block."""
        return int(self.options.block_kib) << 10

    def put_round(self, count: int) -> None:
        """Puts ``count`` blocks behind every lineage, one at a time in turn."""
        for _ in range(count):
            for number, chain in enumerate(self.chains):
                chain.append(hashlib.sha256(f"{number} {len(chain)}".encode()).digest())
                first = len(chain) - 1
                report = self.namespace.put_batch(chain[-2:], [self.block], first=min(first, 1))
                assert report.stored == 1, report

    def part(self, count: int) -> None:
        """Runs one part: puts, and gets at the same time."""
        done = threading.Event()
        samples: list[float] = []
        reader = threading.Thread(target=self._read, args=(done, samples))
        cpu = cpu_s()
        start = time.perf_counter()
        reader.start()
        try:
            self.put_round(count)
        finally:
            done.set()
            reader.join()
        self.figures.put_s += time.perf_counter() - start
        self.figures.cpu_s += cpu_s() - cpu
        self.figures.p50_ms.append(percentile(samples, 0.5) * 1e3)
        self.figures.p99_ms.append(percentile(samples, 0.99) * 1e3)

    def _read(self, done: threading.Event, samples: list[float]) -> None:
        rng = random.Random(len(self.chains[0]))  # noqa: S311 - which blocks are read, no secret
        out = [bytearray(self.block_bytes()) for _ in range(GET_BLOCKS)]
        while not done.is_set():
            # Of blocks whose put has ended.
            chain = rng.choice(self.chains)[:-1]
            if not chain:
                time.sleep(0.001)
                continue
            first = rng.randrange(len(chain))
            wanted = chain[first : first + GET_BLOCKS]
            start = time.perf_counter()
            got = self.namespace.get_batch(wanted, out[: len(wanted)])
            samples.append(time.perf_counter() - start)
            assert got == len(wanted), (got, len(wanted))
            time.sleep(self.options.think_ms / 1e3)

    def settle(self) -> dict[str, int]:
        """Waits until nothing waits to be merged; returns what merging did."""
        cpu = cpu_s()
        end = time.monotonic() + SETTLE_S
        while self.store.stats()["merging"]["waiting_lineages"] and time.monotonic() < end:
            time.sleep(0.2)
        self.figures.cpu_s += cpu_s() - cpu
        return cast("dict[str, int]", self.store.stats()["merging"])

    def count_extents(self) -> dict[str, int]:
        """Counts extents, as the next open would; the store is closed for it."""
        self.store.close()
        row: dict[str, int] = dalsegno.info(str(self.directory))["namespaces"][0]
        return {name: row[name] for name in ("lineages", "extents", "most_extents")}


def run(directory: Path, options: argparse.Namespace) -> dict[str, object]:
    """Runs both stores part by part; returns the result."""
    load = [round(os.getloadavg()[0], 2)]
    on = Subject(directory / "on", options.rate, options)
    off = Subject(directory / "off", 0, options)
    per_lineage = options.blocks // options.lineages
    done = 0
    for part in range(options.parts):
        count = per_lineage * (part + 1) // options.parts - done
        done += count
        for subject in (on, off) if part % 2 else (off, on):
            subject.part(count)
        print(f"part {part + 1} of {options.parts} done", file=sys.stderr, flush=True)
    put_bytes = on.store.stats()["put_bytes"]
    print("waiting until nothing is left to merge", file=sys.stderr, flush=True)
    merging = on.settle()
    files = sum(1 for _ in on.directory.iterdir())
    figures = {"on": on.figures, "off": off.figures}
    counts = {"on": on.count_extents(), "off": off.count_extents()}
    load.append(round(os.getloadavg()[0], 2))
    return report(figures, counts, {"put_bytes": put_bytes, "files": files, **merging}, load)


def report(
    figures: dict[str, Figures],
    counts: dict[str, dict[str, int]],
    facts: dict[str, int],
    load: list[float],
) -> dict[str, object]:
    """Prints the table and makes the result."""
    columns = ("extents max", "mean", "get p50 ms", "get p99 ms", "puts s", "CPU s")
    print(f"{'merging':8}" + "".join(f"{name:>12}" for name in columns))
    result: dict[str, object] = {"bench": "merge"}
    for name, one in figures.items():
        p50, p99 = statistics.median(one.p50_ms), statistics.median(one.p99_ms)
        count = counts[name]
        mean = count["extents"] / count["lineages"]
        print(f"{name:8}{count['most_extents']:12}{mean:12.2f}{p50:12.3f}{p99:12.3f}", end="")
        print(f"{one.put_s:12.1f}{one.cpu_s:12.1f}")
        result[name] = {
            "get_p50_ms": round(p50, 4),
            "get_p99_ms": round(p99, 4),
            "put_s": round(one.put_s, 2),
            "extents_per_lineage_max": count["most_extents"],
            "extents_per_lineage_mean": round(mean, 3),
        }
    pairs = zip(figures["on"].p99_ms, figures["off"].p99_ms, strict=True)
    ratios = [on / off for on, off in pairs]
    result |= {
        "lineages": counts["on"]["lineages"],
        "extents_per_lineage_max": counts["on"]["most_extents"],
        "extents_per_lineage_mean": round(counts["on"]["extents"] / counts["on"]["lineages"], 3),
        "rewritten_ratio": round(facts["merged_bytes"] / facts["put_bytes"], 4),
        "get_p99_ratio": round(statistics.median(ratios), 3),
        "get_p99_ratios": [round(ratio, 3) for ratio in ratios],
        "cpu_s": round(figures["on"].cpu_s, 2),
        "cpu_s_off": round(figures["off"].cpu_s, 2),
        "merges": facts["merges"],
        "files": facts["files"],
        "load": load,
    }
    return result


def main(argv: Sequence[str]) -> int:
    """Runs the bench; the last line on standard output is its result as JSON."""
    parser = argparse.ArgumentParser(
        prog="dalsegno bench merge", description=f"Measures {SUMMARY}."
    )
    add = parser.add_argument
    add("--blocks", type=int, default=100_000, help="blocks to put (default %(default)s)")
    add("--lineages", type=int, default=500, help="lineages they go to (default %(default)s)")
    add("--block-kib", type=int, default=16, help="KiB of a block (default %(default)s)")
    add("--layers", type=int, default=2, help="layers of a block (default %(default)s)")
    add("--parts", type=int, default=10, help="parts that take turns (default %(default)s)")
    add("--index", default="memory", help="memory or lsm (default %(default)s)")
    add("--rate", default="64MiB", help="the setting merge_rate (default %(default)s)")
    add("--think-ms", type=float, default=1.0, help="between two gets (default %(default)s)")
    add("--dir", type=local_path, default=Path("/var/tmp"), help="where to write")  # noqa: S108
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(
        prefix="dalsegno-bench-", dir=options.dir, ignore_cleanup_errors=True
    ) as directory:
        result = run(Path(directory), options)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
