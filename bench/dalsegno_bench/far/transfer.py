"""Bytes through the far tier against raw files of the same size, or a plain client's objects.

A pilot chooses the raw cell: workers and bytes of a request. In each round raw files and packs are
written under fresh names and read through the other mount, in an order that changes. Ours runs with
as many workers. Every contender is a process of its own.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dalsegno_bench.far.places import BucketPlace, Place, Where
from dalsegno_bench.machine.speed import Sample

__all__ = ["WORKERS", "Cell", "Figures", "Transfers"]

WORKERS = (1, 2, 4, 8, 16, 32, 64)
REQUEST_MIB = (1, 8)
LIMIT_S = 300


@dataclass(frozen=True, order=True)
class Cell:
    """How raw files are written or read.

    Attributes:
        workers: Threads.
        request_mib: MiB of a request.
    """

    workers: int
    request_mib: int


@dataclass
class Figures:
    """Samples of the rounds, by contender and direction, such as ``("raw", "read")``."""

    samples: dict[tuple[str, str], list[Sample]] = field(default_factory=lambda: defaultdict(list))

    def add(self, contender: str, direction: str, sample: Sample) -> None:
        """Adds one sample."""
        self.samples[contender, direction].append(sample)

    def ratio(self, direction: str) -> float:
        """The median of the rounds' ratios of speed, ours / raw."""
        pairs = zip(self.samples["ours", direction], self.samples["raw", direction], strict=True)
        return statistics.median(ours.gb_per_s / raw.gb_per_s for ours, raw in pairs)

    def cpu_over_raw(self, direction: str) -> float:
        """The median of the rounds' differences of CPU seconds per GB, ours - raw."""
        pairs = zip(self.samples["ours", direction], self.samples["raw", direction], strict=True)
        return statistics.median(ours.cpu_s_per_gb - raw.cpu_s_per_gb for ours, raw in pairs)

    def result(self) -> dict[str, Any]:
        """Everything that the rounds say."""
        directions = sorted({direction for _, direction in self.samples})
        made: dict[str, Any] = {f"{one}_vs_raw": round(self.ratio(one), 3) for one in directions}
        over = {one: round(self.cpu_over_raw(one), 3) for one in directions}
        made |= {"cpu_over_raw_s_per_gb": max(over.values()), "cpu_over_raw": over}
        for (contender, direction), samples in self.samples.items():
            speed = statistics.median(one.gb_per_s for one in samples)
            cpu = statistics.median(one.cpu_s_per_gb for one in samples)
            made[f"{contender}_{direction}_gb_per_s"] = round(speed, 3)
            made[f"{contender}_{direction}_cpu_s_per_gb"] = round(cpu, 3)
            spread = [round(one.gb_per_s, 3) for one in samples]
            made[f"{contender}_{direction}_rounds"] = spread
        return made


class Transfers:
    """The contenders on one place.

    Args:
        place: Where they write and read.
        local: Where stores keep their logs.
        program: The program for raw files.
        packs: Files of each write, of 32 MiB.
    """

    def __init__(self, place: Place | BucketPlace, local: Path, program: Path, packs: int) -> None:
        self._place, self._local, self._program, self._packs = place, local, program, packs
        self._number = 0
        # What ours sent to a bucket, by direction: one entry for each run.
        self.requests: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def _run(self, command: list[str]) -> tuple[Sample, dict[str, Any]]:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command[:4])} failed: {done.stderr.strip()[-2000:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        gigabytes = found["bytes"] / 1e9
        return Sample(gigabytes / found["s"], found["cpu_s"] / gigabytes), found

    def raw(self, mode: str, folder: Where, cell: Cell) -> Sample:
        """Writes or reads raw files of a folder."""
        file_bytes, request_bytes = self._place.raw_sizes(cell.request_mib)
        sizes = {"files": self._packs, "file-bytes": file_bytes}
        sizes |= {"request-bytes": request_bytes, "workers": cell.workers}
        words = [f"--{name}={value}" for name, value in sizes.items()]
        return self._run([str(self._program), f"--mode={mode}", f"--dir={folder}", *words])[0]

    def remove(self, name: str) -> None:
        """Removes a folder that :meth:`fresh` made."""
        self._place.remove(name)

    def ours(self, mode: str, folder: Where, workers: int, *, scattered: bool = False) -> Sample:
        """Publishes or loads the blocks of a folder, with an empty local directory."""
        local = self._local / "node"
        shutil.rmtree(local, ignore_errors=True)
        options: dict[str, object] = {"far": folder, "local": local, "name": Path(folder).name}
        options |= {"packs": self._packs, "workers": workers}
        words = [f"--{name}={value}" for name, value in options.items()]
        command = [sys.executable, "-m", "dalsegno_bench.far.node", mode, *words]
        command += ["--scattered"] if scattered else []
        try:
            sample, found = self._run(command)
        finally:
            shutil.rmtree(local, ignore_errors=True)
        if found["sent"]:
            self.requests[mode].append(found)
        return sample

    def fresh(self) -> tuple[str, Where, Where]:
        """Makes a folder with a new name; returns its name and its path at both nodes."""
        self._number += 1
        name = f"round-{self._number}"
        return (name, *self._place.folder(name))

    def pilot(self, workers: tuple[int, ...], repeats: int) -> dict[str, dict[Cell, float]]:
        """Measures raw cells; returns the median GB/s of each, by direction."""
        speeds: dict[str, dict[Cell, list[float]]] = {
            mode: defaultdict(list) for mode in ("write", "read")
        }
        cells = [Cell(count, mib) for count in workers for mib in REQUEST_MIB]
        for _ in range(repeats):
            for cell in random.sample(cells, len(cells)):
                name, at_a, at_b = self.fresh()
                speeds["write"][cell].append(self.raw("write", at_a, cell).gb_per_s)
                speeds["read"][cell].append(self.raw("read", at_b, cell).gb_per_s)
                self._place.remove(name)
        return {
            mode: {cell: statistics.median(found) for cell, found in of_cells.items()}
            for mode, of_cells in speeds.items()
        }

    def round(self, cells: dict[str, Cell], figures: Figures) -> None:
        """Runs both contenders once in both directions."""
        folders = {}
        for contender in random.sample(("raw", "ours"), 2):
            name, at_a, at_b = self.fresh()
            folders[contender] = (name, at_b)
            if contender == "raw":
                sample = self.raw("write", at_a, cells["write"])
            else:
                sample = self.ours("write", at_a, cells["write"].workers)
            figures.add(contender, "write", sample)
        for contender in random.sample(("raw", "ours"), 2):
            name, at_b = folders[contender]
            if contender == "raw":
                sample = self.raw("read", at_b, cells["read"])
            else:
                sample = self.ours("read", at_b, cells["read"].workers)
            figures.add(contender, "read", sample)
            self._place.remove(name)

    def curve(self, workers: tuple[int, ...], request_mib: int, rounds: int) -> dict[str, Any]:
        """Reads with more and more workers: ours, and raw files next to it."""
        (mine, mine_a, mine_b), (raw, raw_a, raw_b) = self.fresh(), self.fresh()
        self.ours("write", mine_a, 32)
        self.raw("write", raw_a, Cell(4, request_mib))
        speeds: dict[tuple[str, int], list[float]] = defaultdict(list)
        for _ in range(rounds):
            for count in random.sample(workers, len(workers)):
                speeds["workers", count].append(self.ours("read", mine_b, count).gb_per_s)
                sample = self.raw("read", raw_b, Cell(count, request_mib))
                speeds["raw_workers", count].append(sample.gb_per_s)
        self._place.remove(mine)
        self._place.remove(raw)
        return {
            name: [[count, round(statistics.median(speeds[name, count]), 3)] for count in workers]
            for name in ("workers", "raw_workers")
        }
