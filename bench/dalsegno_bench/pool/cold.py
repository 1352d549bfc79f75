"""A get through `dalsegno serve` of blocks that are only on the disk, against a store in-process.

Contenders: a store in the process that gets the blocks, a server whose pool has pages of 4 KiB, and
one that may use huge pages. Each has its own copy of the same blocks on the same disk. One reader
gets a prompt of 1 GiB, or eight get an eighth of it each: clients are processes, readers of the
store in-process are its threads. Prompts take turns, and no pool can hold them, so all blocks come
from the disk. They are read into memory in huge pages, which was touched before.

In each round all contenders take turns in an order that changes. A ratio is the median of the
rounds' ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import dalsegno
from dalsegno.paths import local_path
from dalsegno_bench.pool import processes
from dalsegno_bench.pool.client import name_blocks
from dalsegno_bench.pool.workset import MIB, Prompts

__all__ = ["SUMMARY", "Figures", "Run", "main", "parts"]

SUMMARY = "gets of blocks that are only on the disk, through a server against in-process"

OWN, SMALL, HUGE = CONTENDERS = ("in_process", "serve_4k", "serve_2m")
READERS = (1, 8)
PROMPTS = 3


@dataclass(frozen=True)
class Run:
    """One prompt that was read.

    Attributes:
        gb_per_s: Gigabytes a second, from the first reader's begin to the last one's end.
        cpu_s_per_gb: CPU seconds of readers and server for a gigabyte.
        cold: Share of the blocks that came from the disk.
    """

    gb_per_s: float
    cpu_s_per_gb: float
    cold: float


@dataclass
class Figures:
    """Runs by contender and number of readers, one for each round."""

    runs: dict[tuple[str, int], list[Run]] = field(default_factory=lambda: defaultdict(list))

    def result(self) -> dict[str, Any]:
        """Returns the ratios, and the figures of each contender."""
        found: dict[str, Any] = {}
        for contender in (SMALL, HUGE):
            for readers in READERS:
                pairs = zip(self.runs[contender, readers], self.runs[OWN, readers], strict=True)
                ratios = [ours.gb_per_s / own.gb_per_s for ours, own in pairs]
                name = f"cold_ratio_{contender.removeprefix('serve_')}_{readers}"
                found[name] = round(statistics.median(ratios), 3)
                found[f"{name}_range"] = [round(min(ratios), 2), round(max(ratios), 2)]
        found["contenders"] = [
            {
                "contender": contender,
                "readers": readers,
                "gb_per_s": round(self._median(contender, readers, "gb_per_s"), 2),
                "cpu_s_per_gb": round(self._median(contender, readers, "cpu_s_per_gb"), 3),
                "cold": round(self._median(contender, readers, "cold"), 3),
            }
            for readers in READERS
            for contender in CONTENDERS
        ]
        return found

    def _median(self, contender: str, readers: int, name: str) -> float:
        values = (getattr(run, name) for run in self.runs[contender, readers])
        return float(statistics.median(values))


def parts(blocks: int, readers: int) -> list[tuple[int, int]]:
    """Returns which blocks each reader gets: the first, and the one behind the last."""
    size = blocks // readers
    return [(first, first + size) for first in range(0, size * readers, size)]


class Contender:
    """A store with all prompts, and the processes that read it.

    Args:
        path: For :func:`dalsegno.open`.
        settings: Further arguments of it.
        prompts: The blocks.
        server: The process that serves them; ``None`` if readers are threads of one process.
    """

    def __init__(
        self, path: str, settings: dict[str, Any], prompts: Prompts, server: int | None
    ) -> None:
        self._prompts, self._server = prompts, server
        count = READERS[-1] if server else 1
        self._processes: list[subprocess.Popen[str]] = []
        self._next = 0
        for number in range(count):
            # The first one alone gets a whole prompt, too.
            blocks = prompts.blocks if number == 0 else prompts.blocks // count
            given = {"path": path, "settings": settings, "prompts": asdict(prompts)}
            command = [sys.executable, "-m", "dalsegno_bench.pool.cold_reader"]
            command += [json.dumps({**given, "most_blocks": blocks})]
            pipe = subprocess.PIPE
            self._processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        for process in self._processes:
            processes.read(process)

    def close(self) -> None:
        """Ends the readers."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            with process:
                processes.stop(process)

    def run(self, readers: int) -> Run:
        """Reads the next prompt."""
        prompt, self._next = self._next, (self._next + 1) % self._prompts.count
        shares = parts(self._prompts.blocks, readers)
        tasks = [[share] for share in shares] if self._server else [shares]
        chosen = self._processes[: len(tasks)]
        before, cpu = self._log_blocks(), self._server_cpu_s()
        for process, task in zip(chosen, tasks, strict=True):
            processes.write(process, json.dumps({"prompt": prompt, "parts": task}))
        found = [json.loads(processes.read(process)) for process in chosen]
        cpu = self._server_cpu_s() - cpu + sum(one["cpu_s"] for one in found)
        seconds = max(one["end"] for one in found) - min(one["begin"] for one in found)
        gigabytes = shares[-1][1] * self._prompts.block_bytes / 1e9
        cold = (self._log_blocks() - before) / shares[-1][1]
        return Run(gigabytes / seconds, cpu / gigabytes, cold)

    def _log_blocks(self) -> int:
        processes.write(self._processes[0], "null")
        return int(processes.read(self._processes[0]))

    def _server_cpu_s(self) -> float:
        return processes.cpu_s_of(self._server) if self._server else 0.0


@contextlib.contextmanager
def contenders(folder: Path, prompts: Prompts, pool_bytes: int) -> Iterator[dict[str, Contender]]:
    """Runs all servers and readers, and puts the prompts, while the block runs."""
    capacity = 2 * prompts.total_bytes + (1 << 30)
    with contextlib.ExitStack() as stack:
        found = {}
        for name in (SMALL, HUGE):
            serving = processes.serving(
                folder / name, pool_bytes, capacity, huge_pages=name == HUGE
            )
            server, path = stack.enter_context(serving)
            put_all(path, {}, prompts)
            found[name] = Contender(path, {}, prompts, server)
            stack.callback(found[name].close)
        path, settings = str(folder / OWN), {"capacity": capacity, "dram": 0}
        put_all(path, settings, prompts)
        found[OWN] = Contender(path, settings, prompts, None)
        stack.callback(found[OWN].close)
        yield found


def put_all(path: str, settings: dict[str, Any], prompts: Prompts) -> None:
    """Puts the blocks of all prompts into a store."""
    with dalsegno.open(path, **settings) as store:
        namespace = name_blocks(store, prompts)
        for chain, blocks in prompts.contents():
            report = namespace.put_batch(chain, blocks)
            assert report.stored == len(chain), report


def run(folder: Path, options: argparse.Namespace) -> Figures:
    """Measures all contenders, interleaved."""
    prompts = Prompts(PROMPTS, options.mib * 1024 // options.block_kib, options.block_kib << 10)
    figures = Figures()
    with contenders(folder, prompts, options.pool_mib * MIB) as found:
        wanted = [(name, readers) for readers in READERS for name in CONTENDERS]
        for number in range(-1, options.rounds):
            for readers in random.sample(READERS, len(READERS)):
                for name in random.sample(CONTENDERS, len(CONTENDERS)):
                    measured = found[name].run(readers)
                    # The first round warms up: pools are full, and prompts take turns in them.
                    if number >= 0:
                        figures.runs[name, readers].append(measured)
        assert all(figures.runs[one] for one in wanted)
    return figures


def main(argv: Sequence[str]) -> int:
    """Runs the bench; the last line on standard output is its result as JSON.

    Args:
        argv: As ``--help`` shows.

    Returns:
        0; 2 if a server or a reader failed.
    """
    options = _parser().parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="dalsegno-bench-", dir=options.dir))
    load = [round(os.getloadavg()[0], 2)]
    try:
        figures = run(folder, options)
    except (OSError, RuntimeError, dalsegno.DalsegnoError) as error:
        print(f"dalsegno: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    load.append(round(os.getloadavg()[0], 2))
    given = {name: getattr(options, name) for name in ("block_kib", "mib", "pool_mib", "rounds")}
    result = {"bench": "cold", **given, **figures.result(), "load": load}
    report(result)
    print(json.dumps(result))
    return 0


def report(result: dict[str, Any]) -> None:
    """Prints the ratios, and the table of the contenders."""
    for name, value in result.items():
        if name.startswith("cold_ratio"):
            print(f"{name:28}{value!s:>16}")
    rows = result["contenders"]
    print("".join(f"{title:>14}" for title in rows[0]))
    for row in rows:
        print("".join(f"{value:>14}" for value in row.values()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dalsegno bench cold",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rounds", type=int, default=12, help="rounds (%(default)s)")
    add("--block-kib", type=int, default=2048, help="size of a block (%(default)s)")
    add("--mib", type=int, default=1024, help="size of a prompt (%(default)s)")
    add("--pool-mib", type=int, default=1024, help="size of a pool (%(default)s)")
    default = Path("/var/tmp")  # noqa: S108 - the bench makes a folder of its own in it
    add("--dir", type=local_path, default=default, help="where to write (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
