"""Gets from two disks of which one hangs: how long callers wait, and what the other disk does.

One process has two stores, each on a disk of its own behind a file system that hangs on command.
Threads get blocks from both in turns with a timeout, as an engine's loads do. One more thread does
what an engine's scheduler does: look up, submit, poll. After a while one disk hangs, and later
resumes. Every byte that is returned is compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dalsegno
from dalsegno_bench.machine import faulty

__all__ = ["SUMMARY", "main", "report"]

SUMMARY = "gets from two disks while one of them hangs"

BLOCK_BYTES = 64 << 10
CHAIN_BLOCKS = 16
CHAINS = 64
PHASES = ("before", "hang", "after")
# A get may end so much later than its timeout: the machine has other work.
LATE_MS = 1000.0


@dataclass
class Call:
    """One get.

    Attributes:
        at_s: When it began, from the start of the run.
        took_s: How long it took.
        hits: Blocks that came.
        wrong: Blocks that came and were not what was put.
    """

    at_s: float
    took_s: float
    hits: int
    wrong: int


@dataclass
class Disk:
    """One store on a disk that may hang."""

    name: str
    mount: faulty.Faulty
    store: dalsegno.Store
    space: dalsegno.Namespace
    calls: list[Call] = field(default_factory=list)


def _chain(number: int) -> list[bytes]:
    return [hashlib.sha256(f"{number}/{block}".encode()).digest() for block in range(CHAIN_BLOCKS)]


def _content(name: bytes) -> bytes:
    return name * (BLOCK_BYTES // len(name))


def _fill(name: str, mount: faulty.Faulty, index: str) -> Disk:
    store = dalsegno.open(
        mount.path / "store",
        capacity="256MiB",
        dram=0,
        index=index,
        index_memory="1MiB",
        scrub_rate=0,
    )
    space = store.namespace({"bench": "hang"}, layers=1, slice_bytes=BLOCK_BYTES)
    for number in range(CHAINS):
        chain = _chain(number)
        space.put_batch(chain, [_content(one) for one in chain])
    return Disk(name, mount, store, space)


class Load:
    """What runs against the disks until it is stopped."""

    def __init__(self, disks: Sequence[Disk], timeout_s: float) -> None:
        """Starts nothing yet."""
        self._disks, self._timeout_s = disks, timeout_s
        self._stopped = threading.Event()
        self._started = time.monotonic()
        self.scheduler_s: list[tuple[float, float]] = []

    def _get(self, seed: int) -> None:
        memory = [mmap.mmap(-1, BLOCK_BYTES) for _ in range(CHAIN_BLOCKS)]
        turn = seed
        while not self._stopped.is_set():
            disk, chain = self._disks[turn % len(self._disks)], _chain(turn * 7 % CHAINS)
            turn += 1
            began = time.monotonic()
            hits = disk.space.get_batch(chain, memory, timeout_s=self._timeout_s)
            took = time.monotonic() - began
            there = zip(chain[:hits], memory, strict=False)
            wrong = sum(block[:] != _content(name) for name, block in there)
            disk.calls.append(Call(began - self._started, took, hits, wrong))

    def _schedule(self) -> None:
        """Calls what an engine's scheduler calls, which must never wait."""
        turn = 0
        memory = [mmap.mmap(-1, BLOCK_BYTES) for _ in range(CHAIN_BLOCKS)]
        while not self._stopped.is_set():
            disk, chain = self._disks[turn % len(self._disks)], _chain(turn % CHAINS)
            turn += 1
            began = time.monotonic()
            disk.space.contains(chain)
            disk.space.probe(chain)
            transfer = disk.space.submit_get(chain, memory, timeout_s=self._timeout_s)
            disk.store.stats()
            self.scheduler_s.append((began - self._started, time.monotonic() - began))
            # Its buffers are used again.
            transfer.wait()

    def run(self, threads: int, before_s: float, hang_s: float, after_s: float) -> dict[str, Any]:
        """Runs all phases; the last disk hangs in the middle one."""
        hung = self._disks[-1]
        workers = [threading.Thread(target=self._get, args=(seed,)) for seed in range(threads)]
        workers.append(threading.Thread(target=self._schedule))
        for worker in workers:
            worker.start()
        time.sleep(before_s)
        hung.mount.send("add all hang")
        time.sleep(hang_s)
        during = hung.store.stats()["device"]
        hung.mount.send("clear")
        time.sleep(after_s)
        self._stopped.set()
        for worker in workers:
            worker.join()
        return dict(during)

    def phase(self, at_s: float, before_s: float, hang_s: float) -> str:
        """Names the phase in which a moment was."""
        if at_s < before_s:
            return "before"
        return "hang" if at_s < before_s + hang_s else "after"


def _at(values: Sequence[float], share: float) -> float:
    """Returns a percentile in milliseconds; 0 if there is no sample."""
    ordered = sorted(values)
    return 1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _row(disk: str, phase: str, calls: Sequence[Call]) -> dict[str, Any]:
    took = [call.took_s for call in calls]
    return {
        "disk": disk,
        "phase": phase,
        "gets": len(calls),
        "hit_blocks": sum(call.hits for call in calls),
        "wrong_blocks": sum(call.wrong for call in calls),
        "p50_ms": _at(took, 0.5),
        "p99_ms": _at(took, 0.99),
        "max_ms": _at(took, 1.0),
    }


def report(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Runs the bench in a folder and returns its figures."""
    checkout = Path(__file__).resolve().parents[3]
    with ExitStack() as stack:
        disks = []
        for name in ("well", "hung"):
            (folder / name).mkdir()
            mount = stack.enter_context(faulty.mounted(folder / name, checkout))
            disks.append(_fill(name, mount, options.index))
            stack.callback(disks[-1].store.close)
        load = Load(disks, options.timeout)
        during = load.run(options.threads, options.before, options.hang, options.after)
        phases = {
            (disk.name, phase): [
                call
                for call in disk.calls
                if load.phase(call.at_s, options.before, options.hang) == phase
            ]
            for disk in disks
            for phase in PHASES
        }
        rows = [_row(name, phase, calls) for (name, phase), calls in phases.items()]
        back = [call.at_s for call in phases["hung", "after"] if call.hits]
        ended = options.before + options.hang
        return {
            "timeout_ms": 1e3 * options.timeout,
            "hang_s": options.hang,
            "index": options.index,
            "rows": rows,
            "p99_ms_hung": _row("hung", "hang", phases["hung", "hang"])["p99_ms"],
            "max_ms_hung": _row("hung", "hang", phases["hung", "hang"])["max_ms"],
            "scheduler_p99_ms": _at([took for _, took in load.scheduler_s], 0.99),
            "scheduler_max_ms": _at([took for _, took in load.scheduler_s], 1.0),
            "device_while_it_hung": during,
            "recovered_after_s": min(back) - ended if back else None,
            "wrong_blocks": sum(row["wrong_blocks"] for row in rows),
            "load": os.getloadavg()[0],
        }


def _show(figures: dict[str, Any]) -> None:
    print(f"{'disk':6}{'phase':8}{'gets':>8}{'hits':>9}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}")
    for row in figures["rows"]:
        print(
            f"{row['disk']:6}{row['phase']:8}{row['gets']:8}{row['hit_blocks']:9}"
            f"{row['p50_ms']:9.2f}{row['p99_ms']:9.2f}{row['max_ms']:9.2f}"
        )
    print(
        f"lookups and submissions: p99 {figures['scheduler_p99_ms']:.2f} ms, "
        f"at most {figures['scheduler_max_ms']:.2f} ms"
    )


def main(argv: Sequence[str]) -> int:
    """Runs the bench; returns 1 if a byte was wrong, a get late, or a store did not recover."""
    parser = argparse.ArgumentParser(prog="dalsegno bench hang", description=__doc__)
    add = parser.add_argument
    add("--timeout", type=float, default=0.5, help="seconds a get may take (default %(default)s)")
    add("--threads", type=int, default=2, help="threads that get (default %(default)s)")
    add("--before", type=float, default=3.0, help="seconds before the hang (default %(default)s)")
    add("--hang", type=float, default=10.0, help="seconds it lasts (default %(default)s)")
    add("--after", type=float, default=7.0, help="seconds after it (default %(default)s)")
    add("--index", choices=("memory", "lsm"), default="memory", help="(default %(default)s)")
    options = parser.parse_args(argv)
    if (what := faulty.missing()) is not None:
        print(f"dalsegno: this bench mounts a file system: {what}", file=sys.stderr)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="dalsegno-hang-"))
    try:
        figures = report(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _show(figures)
    print(json.dumps(figures))
    too_late = figures["max_ms_hung"] > figures["timeout_ms"] + LATE_MS
    return int(figures["wrong_blocks"] > 0 or too_late or figures["recovered_after_s"] is None)
