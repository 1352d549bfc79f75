"""Tensor log against raw fio and against one file per object: bandwidth and CPU, checksums on.

Every round runs every contender once, in an order of its own, so that noise of the machine hits
all alike. Figures are medians over the rounds. The denominator of every ratio is the best fio cell
of the same run, with registered buffers or without. Both sides use O_DIRECT, and neither waits for
a sync. The store is filled before the first round, so puts recycle segments as they do in service.
"""

import argparse
import json
import mmap
import os
import random
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import dalsegno
from dalsegno.paths import local_path
from dalsegno_bench.disk import fio
from dalsegno_bench.disk.objects import FilePerObject
from dalsegno_bench.machine.speed import Sample, timed

SUMMARY = "bandwidth and CPU cost of the tensor log against fio and one file per object"

SIZES = {"512k": 512 << 10, "8m": 8 << 20}
# About 2,000 tokens of a model with 128 KiB a token.
BATCH_BYTES = 256 << 20
READ_CELLS = fio.cells(("read", "randread"), (512 << 10, 1 << 20), (4, 8))
WRITE_CELLS = fio.cells(("write",), (512 << 10, 1 << 20), (4, 8))


@dataclass
class Figures:
    """Samples by contender and measure, such as ``("dalsegno", "read_512k")``."""

    samples: dict[tuple[str, str], list[Sample]] = field(default_factory=lambda: defaultdict(list))

    def add(self, contender: str, measure: str, sample: Sample) -> None:
        """Adds one sample."""
        self.samples[contender, measure].append(sample)

    def speed(self, contender: str, measure: str) -> float:
        """Median GB/s."""
        return statistics.median(s.gb_per_s for s in self.samples[contender, measure])

    def cpu(self, contender: str, direction: str) -> float:
        """Median CPU seconds per GB of the costlier object size."""
        return max(
            statistics.median(
                s.cpu_s_per_gb for s in self.samples[contender, f"{direction}_{size}"]
            )
            for size in SIZES
        )

    def best_cell(self, direction: str) -> str:
        """Name of the fio cell with the highest median."""
        names = [name for name, measure in self.samples if measure == f"fio_{direction}"]
        return max(names, key=lambda name: self.speed(name, f"fio_{direction}"))


def aligned(total_bytes: int) -> memoryview:
    """Page-aligned memory in huge pages, touched: what an engine's host pool is."""
    mapping = mmap.mmap(-1, total_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(mapping)
    pattern = random.Random(7).randbytes(1 << 20)  # noqa: S311 - test data
    for at in range(0, total_bytes, len(pattern)):
        part = view[at : at + len(pattern)]
        part[:] = pattern[: len(part)]
    return view


class Contender:
    """What both stores share: objects of one size, in batches.

    Args:
        object_bytes: Size of an object.
        total_bytes: Bytes of all objects of a round.
        memory: Source and target, ``BATCH_BYTES`` bytes, aligned.
    """

    def __init__(self, object_bytes: int, total_bytes: int, memory: memoryview) -> None:
        self.total_bytes = total_bytes
        per_batch = BATCH_BYTES // object_bytes
        self.blocks = [memory[i * object_bytes :][:object_bytes] for i in range(per_batch)]
        self.batches = total_bytes // BATCH_BYTES

    def chains(self, generation: int) -> list[list[bytes]]:
        """Keys of a round's objects, batch by batch."""
        return [
            [f"{generation:08}{batch:012}{block:012}".encode() for block in range(len(self.blocks))]
            for batch in range(self.batches)
        ]


def run_store(
    figures: Figures, namespace: dalsegno.Namespace, size: str, work: Contender, generation: int
) -> None:
    """One round of the store: puts, then gets in another order."""
    chains = work.chains(generation)

    def put() -> None:
        for chain in chains:
            report = namespace.put_batch(chain, work.blocks)
            assert report.stored == len(chain), report

    def get() -> None:
        for chain in shuffled:
            assert namespace.get_batch(chain, work.blocks) == len(chain)

    figures.add("dalsegno", f"write_{size}", timed(work.total_bytes, put))
    shuffled = random.sample(chains, len(chains))
    figures.add("dalsegno", f"read_{size}", timed(work.total_bytes, get))
    # What was read would be relocated with its segment: that cost is the policy's, not
    # the log's.
    namespace.remove()


def run_files(figures: Figures, files: FilePerObject, size: str, work: Contender) -> None:
    """One round of one file per object, written over from round to round."""
    chains = work.chains(0)

    def put() -> None:
        for chain in chains:
            files.put(chain, work.blocks)

    def get() -> None:
        for chain in shuffled:
            files.get(chain, work.blocks)

    figures.add("file_per_object", f"write_{size}", timed(work.total_bytes, put))
    shuffled = random.sample(chains, len(chains))
    figures.add("file_per_object", f"read_{size}", timed(work.total_bytes, get))


def run_cell(
    figures: Figures, path: Path, direction: str, cell: fio.Cell, total_bytes: int
) -> None:
    """One round of one fio cell."""
    sample = fio.measure(path, cell, total_bytes, total_bytes)
    figures.add(cell.name, f"fio_{direction}", sample)


def run(directory: Path, rounds: int, total_bytes: int) -> Figures:
    """Runs everything, interleaved."""
    figures = Figures()
    fio_file = directory / "fio.bin"
    fio.prepare(fio_file, total_bytes)
    memory = aligned(BATCH_BYTES)
    work = {size: Contender(count, total_bytes, memory) for size, count in SIZES.items()}
    (directory / "files").mkdir()
    files = FilePerObject(directory / "files")
    # Two rounds of both sizes fit, so that from the third on every put recycles.
    capacity = 4 * total_bytes + (2 << 30)
    with dalsegno.open(directory / "store", capacity=capacity, dram=0) as store:
        namespaces = {
            size: store.namespace({"bench": "log", "size": size}, layers=1, slice_bytes=count)
            for size, count in SIZES.items()
        }
        filler = Figures()
        while store.stats()["log"]["segments_recycled"] == 0:
            generation = len(filler.samples.get(("dalsegno", "write_512k"), ()))
            run_store(filler, namespaces["512k"], "512k", work["512k"], 1_000_000 + generation)
        for size in SIZES:
            run_files(filler, files, size, work[size])
        for number in range(rounds):
            tasks: list[Callable[[], None]] = [
                partial(run_cell, figures, fio_file, direction, cell, total_bytes)
                for direction, cells in (("read", READ_CELLS), ("write", WRITE_CELLS))
                for cell in cells
            ]
            for size in SIZES:
                tasks.append(
                    partial(run_store, figures, namespaces[size], size, work[size], number)
                )
                tasks.append(partial(run_files, figures, files, size, work[size]))
            # A device that still writes back what one contender wrote is slow for the next.
            random.shuffle(tasks)
            for task in tasks:
                task()
            print(f"round {number + 1} of {rounds} done", file=sys.stderr, flush=True)
        stats = store.stats()
        assert stats["io_direct"], "the store could not use O_DIRECT here"
    files.close()
    return figures


def report(figures: Figures, load: list[float]) -> dict[str, object]:
    """Prints the table and makes the result."""
    best = {d: figures.best_cell(d) for d in ("read", "write")}
    base = {d: figures.speed(name, f"fio_{d}") for d, name in best.items()}
    print(f"{'':24}{'read GB/s':>12}{'write GB/s':>12}")
    print(f"{'fio, best cell':24}{base['read']:12.2f}{base['write']:12.2f}")
    print(f"{'':24}{best['read']:>12} / {best['write']}")
    result: dict[str, object] = {
        "bench": "log",
        "fio_read": best["read"],
        "fio_write": best["write"],
    }
    result |= {f"fio_{d}_gb_per_s": round(base[d], 3) for d in base}
    for contender in ("dalsegno", "file_per_object"):
        part: dict[str, object] = {}
        for size in SIZES:
            speeds = {d: figures.speed(contender, f"{d}_{size}") for d in base}
            print(f"{contender + ' ' + size:24}{speeds['read']:12.2f}{speeds['write']:12.2f}")
            part |= {f"{d}_ratio_{size}": round(speeds[d] / base[d], 3) for d in base}
        part |= {f"cpu_s_per_gb_{d}": round(figures.cpu(contender, d), 4) for d in base}
        if contender == "dalsegno":
            result |= part
        else:
            result[contender] = part
    result["fio_cpu_s_per_gb"] = {
        d: round(statistics.median(s.cpu_s_per_gb for s in figures.samples[best[d], f"fio_{d}"]), 4)
        for d in base
    }
    result["load"] = load
    return result


def main(argv: list[str]) -> int:
    """Runs the bench; the last line on standard output is its result as JSON."""
    parser = argparse.ArgumentParser(prog="dalsegno bench log", description=__doc__)
    parser.add_argument("--dir", type=local_path, default=Path("/var/tmp"), help="where to write")  # noqa: S108
    parser.add_argument("--rounds", type=int, default=7, help="rounds (default 7)")
    parser.add_argument("--gib", type=float, default=0.5, help="GiB per cell (default 0.5)")
    arguments = parser.parse_args(argv)
    try:
        print(f"{fio.version()}, {os.cpu_count()} CPUs", file=sys.stderr)
    except fio.FioMissingError as error:
        print(error, file=sys.stderr)
        return 2
    total_bytes = max(1, int(arguments.gib * (1 << 30) / BATCH_BYTES)) * BATCH_BYTES
    directory = Path(tempfile.mkdtemp(prefix="dalsegno-bench-", dir=arguments.dir))
    load = [round(os.getloadavg()[0], 2)]
    try:
        figures = run(directory, arguments.rounds, total_bytes)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    load.append(round(os.getloadavg()[0], 2))
    print(json.dumps(report(figures, load)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
