"""Reads and steps of an engine beside writes that are always pending, with and without a schedule.

An engine computes steps of at least 20 ms: it hashes memory on one core. Three contenders save
blocks meanwhile, as many as they can take: *ours*, a store to which the engine says what it
computes; *reads first*, the same store, to which it says only when it reads; and *fifo*, a file for
each block, read and written by threads in the order of the requests, as engines do without us.

* decode: how long steps take that read nothing.
* prefill: first tokens: a prefix is read, then a step computes.
* bandwidth: reads one after the other, as a load that never ends.

Each part is measured without writes, with writes, and without writes again, so that each ratio has
one beside it of the noise. Contenders take turns in rounds; the figures are medians of the rounds.
Every save is watched: how long it took until it was stored, against the bound that the schedule
promises: the patience of saves, and four times the time that the disk needs for those before it,
one at a time and beside reads. That rate is measured in each round, while the engine is idle; the
bound has the slowest one, as it is for the slowest save.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import queue
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dalsegno.paths import local_path
from dalsegno_bench.disk.contenders import (
    BLOCK_BYTES,
    SAVE_BLOCKS,
    Contender,
    Files,
    Ours,
    Speech,
)
from dalsegno_bench.disk.merge import percentile
from dalsegno_bench.machine.speed import cpu_s

__all__ = ["SUMMARY", "main"]

SUMMARY = "steps, first tokens and reads of an engine beside writes that are always pending"

STEP_S = 0.02
# Saves that are pending at any time.
PENDING = 8
# What the schedule promises (docs/internals/schedule.md).
PATIENCE_S, AGED_PART = 2.0, 4
OURS, FIRST, FIFO = "ours", "reads_first", "fifo"


class Compute:
    """A step of an engine: hashes memory until it takes long enough."""

    def __init__(self) -> None:
        """Finds how much that is."""
        self._memory = random.Random(3).randbytes(1 << 20)  # noqa: S311 - bytes to hash
        self._count = 1
        while self._once() < STEP_S * 1.2:
            self._count += 1
        self.usual_s = statistics.median(self._once() for _ in range(20))

    def _once(self) -> float:
        began = time.perf_counter()
        for _ in range(self._count):
            hashlib.sha256(self._memory)
        return time.perf_counter() - began

    def __call__(self) -> float:
        """Computes a step; returns its seconds."""
        return self._once()


@dataclass
class Landed:
    """What became of the saves of a part.

    Attributes:
        count: How many were stored.
        lost: How many were not.
        longest_s: From when one was asked for until it was stored, at most.
        seconds: Of the part.
    """

    count: int = 0
    lost: int = 0
    longest_s: float = 0.0
    seconds: float = 0.0

    @property
    def bytes_per_s(self) -> float:
        """How fast blocks were saved."""
        return self.count * SAVE_BLOCKS * BLOCK_BYTES / self.seconds if self.seconds else 0.0


_numbers = itertools.count()


@contextmanager
def saving(contender: Contender, most: int = PENDING) -> Iterator[Landed]:
    """Keeps saves pending; at the end the engine is idle, and all of them land.

    Args:
        contender: Who saves.
        most: How many saves are pending.
    """
    landed, is_over = Landed(), threading.Event()
    pending: queue.SimpleQueue[Any] = queue.SimpleQueue()
    free = threading.Semaphore(most)

    def ask() -> None:
        while free.acquire() and not is_over.is_set():
            began = time.perf_counter()
            pending.put((began, contender.save(next(_numbers))))
        pending.put(None)

    def wait() -> None:
        while (one := pending.get()) is not None:
            began, is_stored = one
            if is_stored():
                landed.count += 1
            else:
                landed.lost += 1
            landed.longest_s = max(landed.longest_s, time.perf_counter() - began)
            free.release()

    threads = [threading.Thread(target=work) for work in (ask, wait)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    try:
        yield landed
    finally:
        landed.seconds = time.perf_counter() - began
        # What lands from now on is not of the part.
        counted = landed.count
        is_over.set()
        contender.say("idle")
        free.release()
        for thread in threads:
            thread.join()
        landed.count = counted


def decode(contender: Contender, compute: Compute, seconds: float) -> list[float]:
    """Returns the seconds of steps that read nothing."""
    steps: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        last = [steps[-1] / compute.usual_s] if steps else []
        contender.say("decode", steps=last)
        steps.append(compute())
    return steps


def prefill(contender: Contender, compute: Compute, seconds: float) -> list[float]:
    """Returns the seconds until first tokens: a load, then a step."""
    firsts = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        contender.say("prefill")
        contender.load()
        contender.say("prefill", slack_s=compute.usual_s)
        compute()
        firsts.append(time.perf_counter() - began)
    return firsts


def bandwidth(contender: Contender, _: Compute, seconds: float) -> list[float]:
    """Returns the seconds of loads that follow each other."""
    loads = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        contender.say("prefill")
        contender.load()
        loads.append(time.perf_counter() - began)
    return loads


def one_at_a_time(contender: Contender, seconds: float) -> float:
    """Returns the bytes per second of saves that follow each other beside loads that do so too."""
    contender.prepare()
    end = time.perf_counter() + seconds
    with saving(contender, 1) as landed:
        while time.perf_counter() < end or not landed.count + landed.lost:
            contender.load()
    if not landed.count:
        raise SystemExit("mixed: no save succeeded; is the disk full?")
    return landed.bytes_per_s


PARTS = {"decode": decode, "prefill": prefill, "bandwidth": bandwidth}


@dataclass
class Measured:
    """The figures of one part of one contender, a number for each round."""

    ratios: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    saved: list[float] = field(default_factory=list)
    longest_s: list[float] = field(default_factory=list)
    lost: int = 0


def run_part(
    name: str, contender: Contender, compute: Compute, seconds: float, measured: Measured
) -> None:
    """Measures a part: without writes, with writes, and without again."""
    work = PARTS[name]
    # A disk still writes what others left in its cache.
    os.sync()
    contender.prepare()
    quiet = work(contender, compute, seconds)
    with saving(contender) as landed:
        beside = work(contender, compute, seconds)
    os.sync()
    contender.prepare()
    again = work(contender, compute, seconds)
    contender.say("idle")

    def figure(samples: Sequence[float]) -> float:
        # Bandwidth is a mean; the other parts are about the slowest ones.
        return statistics.mean(samples) if name == "bandwidth" else percentile(samples, 0.99)

    without = statistics.mean((figure(quiet), figure(again)))
    measured.ratios.append(figure(beside) / without)
    measured.noise.append(figure(again) / figure(quiet))
    measured.p50_ms.append(percentile(beside, 0.5) * 1e3)
    measured.p99_ms.append(percentile(beside, 0.99) * 1e3)
    measured.saved.append(landed.bytes_per_s)
    measured.longest_s.append(landed.longest_s)
    measured.lost += landed.lost


def run(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measures all; returns the result."""
    compute = Compute()
    contenders: dict[str, Contender] = {
        OURS: Ours(directory / OURS, Speech.ALL),
        FIRST: Ours(directory / FIRST, Speech.READS),
        FIFO: Files(directory / FIFO),
    }
    measured: dict[str, dict[str, Measured]] = defaultdict(lambda: defaultdict(Measured))
    load, cpu = [round(os.getloadavg()[0], 2)], cpu_s()
    alone: list[float] = []
    try:
        for number in range(options.rounds):
            alone.append(one_at_a_time(contenders[FIRST], options.seconds))
            names = list(contenders)
            order = names[number % 3 :] + names[: number % 3]
            for name, part in itertools.product(order, options.only or PARTS):
                run_part(part, contenders[name], compute, options.seconds, measured[part][name])
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    finally:
        for contender in contenders.values():
            contender.close()
    load.append(round(os.getloadavg()[0], 2))
    return report(measured, alone, {"cpu_s": cpu_s() - cpu, "load": load})


def report(
    measured: dict[str, dict[str, Measured]], alone: Sequence[float], facts: dict[str, Any]
) -> dict[str, Any]:
    """Prints the table and returns the result.

    Args:
        measured: By part and contender.
        alone: Bytes per second of saves that follow each other, in each round.
        facts: Of the machine.
    """
    bound_s = PATIENCE_S + AGED_PART * PENDING * SAVE_BLOCKS * BLOCK_BYTES / min(alone)
    result: dict[str, Any] = {"bench": "mixed", **facts}
    result["save_bytes_per_s"] = round(statistics.median(alone))
    result["least_save_bytes_per_s"] = round(min(alone))
    result["save_bound_s"] = round(bound_s, 2)
    columns = ("ratio", "noise", "p50 ms", "p99 ms", "saved MB/s", "longest s")
    print(f"{'part':10} {'contender':12}" + "".join(f"{name:>12}" for name in columns))
    for part, contenders in measured.items():
        result[part] = {}
        for name, one in contenders.items():
            rounds = (one.ratios, one.noise, one.p50_ms, one.p99_ms, one.saved)
            ratio, noise, p50, p99, saved = map(statistics.median, rounds)
            longest = max(one.longest_s)
            print(
                f"{part:10} {name:12}{ratio:12.3f}{noise:12.3f}{p50:12.1f}{p99:12.1f}"
                f"{saved / 1e6:12.0f}{longest:12.2f}"
            )
            result[part][name] = {
                "ratio": round(ratio, 4),
                "a_a": round(noise, 4),
                "ratios": [round(each, 3) for each in one.ratios],
                "p50_ms": round(p50, 2),
                "p99_ms": round(p99, 2),
                "saved_bytes_per_s": round(saved),
                "longest_save_s": round(longest, 3),
                "lost_saves": one.lost,
            }
    ours = [part[OURS] for part in result.values() if isinstance(part, dict) and OURS in part]
    result["landed_in_bound"] = all(one["longest_save_s"] <= bound_s for one in ours)
    return result


def main(argv: Sequence[str]) -> int:
    """Runs the bench; the last line on standard output is its result as JSON."""
    parser = argparse.ArgumentParser(
        prog="dalsegno bench mixed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rounds", type=int, default=5, help="rounds in which contenders take turns (%(default)s)")
    add("--seconds", type=float, default=4.0, help="of each third of a part (%(default)s)")
    add("--only", action="append", choices=list(PARTS), help="only this part; may be repeated")
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
