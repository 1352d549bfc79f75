"""Decode steps of a real vLLM beside blocks that another process saves.

One engine on the CPU decodes, with our connector and the store of a server. Meanwhile another
process saves `--gib` GiB, in one of three ways:

* `ours`: into the same store, which hears of each step of the engine.
* `untold`: into the store of another server on the same disk, which hears of no engine.
* `files`: a file for each block, written by threads.

Each is measured between steps without saves, so that each ratio has one of the noise beside it.
Steps while blocks are saved count, over those without. Contenders take turns in rounds; the figures
are medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import dalsegno
from dalsegno.paths import local_path
from dalsegno_bench.disk.contenders import BLOCK_BYTES, SAVE_BLOCKS, Files, memory_of, names_of
from dalsegno_bench.disk.merge import percentile
from dalsegno_bench.pool.processes import serving
from dalsegno_bench.vllm.llama import Llama

__all__ = ["ENVIRONMENT", "SUMMARY", "main"]

SUMMARY = "decode steps of a real vLLM beside blocks that another process saves"
ENVIRONMENT = "vllm"

# Saves that are pending at any time.
PENDING = 8
POOL_BYTES = 1 << 30
# Before the first measurement, and of one without saves.
WARM_UP_S, QUIET_S = 5.0, 10.0


class Model(Llama):
    """A model whose steps take tens of milliseconds."""

    KV_HEADS, WIDTH, MOST_TOKENS, LAYERS = 2, 1024, 4096, 6

    def __init__(self, folder: Path) -> None:
        """Writes its configuration; the weights are random."""
        super().__init__(folder, self.LAYERS)


class Engine:
    """The engine, in a process of its own."""

    def __init__(self, model: Model, path: str, log: Path) -> None:
        """Starts it.

        Args:
            model: The model.
            path: Of its store.
            log: File for what it says.
        """
        extra = {"path": path, "path_to_engine": "direct", "weights_fingerprint": "random"}
        config = {
            "kv_connector": "DalsegnoConnector",
            "kv_connector_module_path": "dalsegno.integrations.vllm",
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra,
        }
        spec = json.dumps({"model": str(model.folder), "kv_transfer_config": config})
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dalsegno_bench.vllm.decode_program", spec],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
            )
        self._answer()

    def _order(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            end = self._log.read_text(encoding="utf-8", errors="replace")[-3000:]
            raise RuntimeError(f"the engine has ended:\n{end}")
        return json.loads(line)

    def steps_during(self, work: Callable[[], None]) -> list[float]:
        """Decodes while something is done; returns the seconds of the steps."""
        self._order()
        work()
        self._order()
        steps: list[float] = self._answer()
        return steps

    def stop(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()


class Saver(Protocol):
    """What saves blocks."""

    def save(self, number: int) -> Callable[[], bool]:
        """Begins to save some blocks; returns what waits for them, and says whether they are."""


class Served:
    """The store of a server."""

    def __init__(self, path: str) -> None:
        """Connects."""
        self._namespace = dalsegno.open(path).namespace(
            {"bench": "decode"}, layers=1, slice_bytes=BLOCK_BYTES
        )
        self._source = memory_of(SAVE_BLOCKS)
        self._source[:] = os.urandom(len(self._source))

    def save(self, number: int) -> Callable[[], bool]:
        """Begins to save some blocks."""
        blocks = [self._source[at * BLOCK_BYTES :][:BLOCK_BYTES] for at in range(SAVE_BLOCKS)]
        begun = self._namespace.submit_put(names_of("new", number, SAVE_BLOCKS), blocks)
        return lambda: begun.wait() and begun.result().failed == 0


def save_all(saver: Saver, first: int, count: int) -> int:
    """Saves with some saves pending; returns how many failed."""
    pending: deque[Callable[[], bool]] = deque()
    lost = 0
    for number in range(first, first + count):
        if len(pending) == PENDING:
            lost += not pending.popleft()()
        pending.append(saver.save(number))
    return lost + sum(not one() for one in pending)


@contextmanager
def contending(folder: Path, capacity: int) -> Iterator[tuple[Engine, dict[str, Saver]]]:
    """Runs the engine and those who save."""
    with ExitStack() as stack:
        paths = {
            name: stack.enter_context(serving(folder / name, POOL_BYTES, capacity))[1]
            for name in ("ours", "untold")
        }
        engine = Engine(Model(folder / "model"), paths["ours"], folder / "engine.log")
        stack.callback(engine.stop)
        files = Files(folder / "files")
        stack.callback(files.close)
        yield engine, {**{name: Served(path) for name, path in paths.items()}, "files": files}


def run(folder: Path, rounds: int, size: int) -> dict[str, Any]:
    """Measures.

    Args:
        folder: Where everything is.
        rounds: How often contenders take turns.
        size: Bytes that each saves in a round.
    """
    count = size // (SAVE_BLOCKS * BLOCK_BYTES)
    figures: dict[str, list[dict[str, float]]] = {}
    with contending(folder, 2 * size) as (engine, savers):
        engine.steps_during(lambda: time.sleep(WARM_UP_S))
        for number in range(rounds):
            names = list(savers)
            for name in names[number % 3 :] + names[: number % 3]:
                figures.setdefault(name, []).append(
                    measured(engine, savers[name], number * count, count)
                )
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return {
        name: {key: round(statistics.median(one[key] for one in rows), 4) for key in rows[0]}
        for name, rows in figures.items()
    }


def measured(engine: Engine, saver: Saver, first: int, count: int) -> dict[str, float]:
    """Measures one contender: without saves, beside them, and without again."""
    # A disk still writes what others left in its cache.
    os.sync()
    quiet = engine.steps_during(lambda: time.sleep(QUIET_S))
    lost, seconds = 0, 0.0

    def work() -> None:
        nonlocal lost, seconds
        began = time.perf_counter()
        lost = save_all(saver, first, count)
        os.sync()
        seconds = time.perf_counter() - began

    beside = engine.steps_during(work)
    again = engine.steps_during(lambda: time.sleep(QUIET_S))
    row = {"saved_mb_per_s": count * SAVE_BLOCKS * BLOCK_BYTES / seconds / 1e6, "lost": float(lost)}
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        without = percentile(quiet + again, share)
        row[f"{name}_ms"] = percentile(beside, share) * 1e3
        row[name] = percentile(beside, share) / without
        row[f"{name}_a_a"] = percentile(again, share) / percentile(quiet, share)
    return row


def show(figures: Mapping[str, Mapping[str, float]]) -> None:
    """Prints the table."""
    columns = ("p50", "p50_a_a", "p99", "p99_a_a", "p50_ms", "p99_ms", "saved_mb_per_s", "lost")
    print(f"{'saves':10}" + "".join(f"{name:>16}" for name in columns))
    for name, row in figures.items():
        print(f"{name:10}" + "".join(f"{row[column]:16.3f}" for column in columns))


def main(argv: Sequence[str]) -> int:
    """Runs the bench; the last line on standard output is its result as JSON."""
    parser = argparse.ArgumentParser(
        prog="dalsegno bench decode",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rounds", type=int, default=3, help="rounds in which contenders take turns (%(default)s)")
    add("--gib", type=float, default=4.0, help="GiB that each saves in a round (%(default)s)")
    add("--dir", type=local_path, default=Path("/var/tmp"), help="where to write")  # noqa: S108
    options = parser.parse_args(argv)
    load = [round(os.getloadavg()[0], 2)]
    with tempfile.TemporaryDirectory(
        prefix="dalsegno-bench-", dir=options.dir, ignore_cleanup_errors=True
    ) as directory:
        figures = run(Path(directory), options.rounds, int(options.gib * (1 << 30)))
    show(figures)
    load.append(round(os.getloadavg()[0], 2))
    print(json.dumps({"bench": "decode", "gib": options.gib, "load": load, **figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
