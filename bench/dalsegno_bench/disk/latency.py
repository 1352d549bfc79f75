"""Latency of calls with one block, against one file per object.

Our put is one ``put_batch`` of a block with a chain of its own, and our get one ``get_batch``. Each
is measured without and with ``timeout_s``. A put of a file is ``open(O_DIRECT | O_CREAT)``,
``pwrite`` and ``close`` of a new file, a get is ``open``, ``pread`` and ``close``. Both sides run
from Python, one call at a time, with the same page-aligned memory, and neither waits for a sync.
Ours computes and verifies a checksum of every byte.

In each round the contenders take turns of a tenth of the calls, in an order that changes, so that
noise of the machine hits all alike. A ratio is ours / file of one round, and a figure is the median
over the rounds. The store is filled before the first round, so puts recycle segments as they do in
service.

With ``--use`` a block's memory is read between the calls of all contenders. Without it only our
checksum reads the result of a get. Then only our side pays for loading it into the core's cache,
and for evicting it when the next get writes there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dalsegno
from dalsegno_bench.disk.log import aligned
from dalsegno_bench.disk.merge import percentile

__all__ = ["SUMMARY", "Figures", "main", "report"]

SUMMARY = "latency of one-block puts and gets, with and without a timeout, against file per object"

SIZES = {"64k": 64 << 10, "512k": 512 << 10, "8m": 8 << 20}
LARGE = "8m"
OURS = ("dalsegno", "dalsegno_timeout")
FILE = "file"
PERCENTILES = {"p50": 0.50, "p99": 0.99}
# Far above what a call needs: the cost is that of a call with a deadline, not of waiting.
TIMEOUT_S = 30.0
# What the store has besides two rounds; its segments must hold the largest block.
SPARE_BYTES = 512 << 20
# Turns of each contender in a round.
TURNS = 10

Call = Callable[[int], None]


@dataclass
class Figures:
    """Nanoseconds of single calls: ``rounds[contender, "put 64k"][round]``."""

    rounds: dict[tuple[str, str], list[list[int]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def microseconds(self, contender: str, measure: str, share: float) -> list[float]:
        """A percentile of each round."""
        return [percentile(one, share) / 1e3 for one in self.rounds[contender, measure]]


class Blocks:
    """Blocks of one size of one round, as each contender puts and gets them.

    Args:
        namespace: Where ours go.
        directory: Where files go.
        block_bytes: Size of a block.
        memory: What is written and read into.
        name: Distinguishes these blocks from all others.
        calls: Puts, and gets, of each contender.
        reuse_files: Whether files are written over from round to round.
    """

    def __init__(  # noqa: PLR0913 - named where it is called
        self,
        *,
        namespace: dalsegno.Namespace,
        directory: Path,
        block_bytes: int,
        memory: memoryview,
        name: str,
        calls: int,
        reuse_files: bool,
    ) -> None:
        self._namespace = namespace
        self._reuse_files = reuse_files
        self._memory = memory[:block_bytes]
        prefix = f"{block_bytes}" if reuse_files else f"{name} {block_bytes}"
        self._paths = [str(directory / f"{prefix} {number}") for number in range(calls)]
        self._chains = {
            contender: [
                [hashlib.sha256(f"{name} {contender} {number}".encode()).digest()]
                for number in range(calls)
            ]
            for contender in OURS
        }

    def puts(self) -> dict[str, Call]:
        """How each contender puts a block."""

        def put_file(number: int) -> None:
            fd = os.open(self._paths[number], os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
            try:
                moved = os.pwrite(fd, self._memory, 0)
            finally:
                os.close(fd)
            assert moved == len(self._memory)

        def put_by(contender: str, timeout_s: float | None) -> Call:
            chains, blocks, put = self._chains[contender], [self._memory], self._namespace.put_batch

            def put_one(number: int) -> None:
                report = put(chains[number], blocks, timeout_s=timeout_s)
                assert report.stored == 1

            return put_one

        return {
            OURS[0]: put_by(OURS[0], None),
            OURS[1]: put_by(OURS[1], TIMEOUT_S),
            FILE: put_file,
        }

    def gets(self) -> dict[str, Call]:
        """How each contender gets a block."""
        out = [self._memory]

        def get_file(number: int) -> None:
            fd = os.open(self._paths[number], os.O_RDONLY | os.O_DIRECT)
            try:
                moved = os.preadv(fd, out, 0)
            finally:
                os.close(fd)
            assert moved == len(self._memory)

        def get_by(contender: str, timeout_s: float | None) -> Call:
            chains, get = self._chains[contender], self._namespace.get_batch

            def get_one(number: int) -> None:
                found = get(chains[number], out, timeout_s=timeout_s)
                assert found == 1

            return get_one

        return {
            OURS[0]: get_by(OURS[0], None),
            OURS[1]: get_by(OURS[1], TIMEOUT_S),
            FILE: get_file,
        }

    def use(self) -> None:
        """Reads what was put or got, as an engine does."""
        zlib.crc32(self._memory)

    def remove(self) -> None:
        """Removes the blocks, so that the next round finds space and nothing is relocated."""
        self._namespace.remove()
        if not self._reuse_files:
            for path in self._paths:
                Path(path).unlink()


def take_turns(
    calls: dict[str, Call], order: Sequence[int], between: Callable[[], object] | None = None
) -> dict[str, list[int]]:
    """Times every call of every contender, in turns; ``between`` calls nothing is timed."""
    spent: dict[str, list[int]] = {contender: [] for contender in calls}
    step = max(1, len(order) // TURNS)
    clock = time.perf_counter_ns
    for start in range(0, len(order), step):
        for contender in random.sample(list(calls), len(calls)):
            call, samples = calls[contender], spent[contender]
            for number in order[start : start + step]:
                begin = clock()
                call(number)
                samples.append(clock() - begin)
                if between is not None:
                    between()
    return spent


def run_size(figures: Figures, blocks: Blocks, size: str, calls: int, *, use: bool) -> None:
    """One round of one size."""
    order = list(range(calls))
    between = blocks.use if use else None
    for contender, samples in take_turns(blocks.puts(), order, between).items():
        figures.rounds[contender, f"put {size}"].append(samples)
    random.shuffle(order)
    for contender, samples in take_turns(blocks.gets(), order, between).items():
        figures.rounds[contender, f"get {size}"].append(samples)
    blocks.remove()


def run(directory: Path, options: argparse.Namespace) -> Figures:
    """Runs all rounds."""
    figures = Figures()
    calls = {size: options.large_calls if size == LARGE else options.calls for size in SIZES}
    round_bytes = sum(len(OURS) * calls[size] * count for size, count in SIZES.items())
    memory = aligned(max(SIZES.values()))
    files = directory / "files"
    files.mkdir()
    capacity = 2 * round_bytes + SPARE_BYTES
    with dalsegno.open(
        directory / "store", capacity=capacity, dram=0, index=options.index
    ) as store:
        namespaces = {
            size: store.namespace({"bench": "latency", "size": size}, layers=1, slice_bytes=count)
            for size, count in SIZES.items()
        }
        fill(store, namespaces[LARGE], memory)
        for number in range(options.rounds):
            for size in random.sample(list(SIZES), len(SIZES)):
                blocks = Blocks(
                    namespace=namespaces[size],
                    directory=files,
                    block_bytes=SIZES[size],
                    memory=memory,
                    name=f"round {number}",
                    calls=calls[size],
                    reuse_files=options.reuse_files,
                )
                run_size(figures, blocks, size, calls[size], use=options.use)
            print(f"round {number + 1} of {options.rounds} done", file=sys.stderr, flush=True)
        assert store.stats()["io_direct"], "the store could not use O_DIRECT here"
    return figures


def fill(store: dalsegno.Store, namespace: dalsegno.Namespace, memory: memoryview) -> None:
    """Puts blocks until a segment was recycled, then removes them."""
    number = 0
    while store.stats()["log"]["segments_recycled"] == 0:
        name = hashlib.sha256(f"fill {number}".encode()).digest()
        namespace.put_batch([name], [memory[: namespace.block_bytes]])
        number += 1
    namespace.remove()


def report(figures: Figures, load: list[float]) -> dict[str, Any]:
    """Prints the table and makes the result."""
    result: dict[str, Any] = {"bench": "latency"}
    micros: dict[str, dict[str, float]] = {name: {} for name in (*OURS, FILE)}
    titles = ("dalsegno us", "timeout us", "file us", "ratio", "with timeout")
    print(f"{'':14}" + "".join(f"{title:>14}" for title in titles))
    for way in ("put", "get"):
        for size in SIZES:
            for name, share in PERCENTILES.items():
                key = f"{way}_{name}_{size}"
                found = {
                    one: figures.microseconds(one, f"{way} {size}", share) for one in (*OURS, FILE)
                }
                for one, values in found.items():
                    micros[one][key] = round(statistics.median(values), 1)
                for one, suffix in zip(OURS, ("", "_timeout"), strict=True):
                    pairs = zip(found[one], found[FILE], strict=True)
                    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
                    result[key + suffix] = round(ratio, 3)
                row = "".join(f"{micros[one][key]:14.1f}" for one in (*OURS, FILE))
                print(f"{key:14}{row}{result[key]:14.3f}{result[key + '_timeout']:14.3f}")
    rounds = len(figures.rounds[FILE, "put 64k"])
    return result | {"us": micros, "rounds": rounds, "load": load}


def main(argv: Sequence[str]) -> int:
    """Runs the bench; the last line on standard output is its result as JSON.

    Args:
        argv: As ``--help`` shows.

    Returns:
        0; 2 if the file system has no direct I/O or no space.
    """
    options = _parser().parse_args(argv)
    directory = Path(tempfile.mkdtemp(prefix="dalsegno-bench-", dir=options.dir))
    load = [round(os.getloadavg()[0], 2)]
    try:
        figures = run(directory, options)
    except (OSError, dalsegno.DalsegnoError) as error:
        print(f"dalsegno: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    load.append(round(os.getloadavg()[0], 2))
    print(json.dumps(report(figures, load)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dalsegno bench latency",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rounds", type=int, default=7, help="rounds (%(default)s)")
    add("--calls", type=int, default=500, help="puts, and gets, of a round (%(default)s)")
    add("--large-calls", type=int, default=150, help="the same of 8 MiB (%(default)s)")
    add("--index", default="memory", help="memory or lsm (%(default)s)")
    add("--reuse-files", action="store_true", help="write files over instead of making new ones")
    add("--use", action="store_true", help="read the block between calls, as an engine does")
    add("--dir", type=Path, default=Path("/var/tmp"), help="where to write (%(default)s)")  # noqa: S108
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
