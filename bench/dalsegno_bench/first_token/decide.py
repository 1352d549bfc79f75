"""What a decision of how many blocks to load costs the scheduler's thread of an engine.

`locate` asks a store in which tiers the 4,000 blocks of a prompt are: a store in this process, and
the same store behind `dalsegno serve`, over its socket. Runs of blocks alternate between the pool
and the log. `decide` takes that answer, merges it over 1 and 8 ranks and decides, as vLLM's direct
path does. A Rust program measures the decision alone. The baseline of `locate` is `probe` of the
same blocks. `echo` is what any server costs here: a process reads as many bytes from a socket as
the blocks' names have, and answers.

All calls take turns in rounds. The garbage collector of Python runs as it does in an engine.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import dalsegno
from dalsegno import merge_located
from dalsegno.integrations.common.deciding import Decision, Engine, LoadDecider
from dalsegno.integrations.common.settings import StoreSettings
from dalsegno.integrations.common.steps import StepTime, work_of
from dalsegno.integrations.common.wishes import Wish
from dalsegno.paths import local_path
from dalsegno.profiles import ComputePrior, Profile
from dalsegno_bench.index.program import build
from dalsegno_bench.pool.processes import serving
from dalsegno_bench.pool.workset import hash_of

__all__ = ["BOUNDS_US", "SUMMARY", "Times", "decider", "main", "missed", "runs_of_ranks"]

SUMMARY = "a decision to load 4,000 blocks, and `locate` of them: microseconds of the scheduler"

# The 99th percentiles that the direct path must keep.
BOUNDS_US = {
    "choose_rust": 20.0,
    "decide_1_rank": 20.0,
    "locate": 300.0,
    "locate_served": 500.0,
}

RANKS = (1, 8)
# The least blocks that a store has; a pool gives each of them 64 KiB.
BLOCK_BYTES, POOL_BYTES, CAPACITY = 512, 1 << 29, 1 << 30
# Of Llama-3-8B, and of vLLM.
ENGINE = Engine(layers=32, block_bytes=2 << 20, block_tokens=16, chunk=8192, max_wait_s=0.05)
PRIOR = ComputePrior(step_s=9.6e-3, token_s=4.3e-5, pair_s=1.75e-9, read_s=6.6e-8)
# Blocks of which a step of the direct path may read the layers.
MOST_READ = 2048

Located = Sequence[Mapping[str, Any]]
Call = Callable[[], object]

# Answers each message on the socket that is standard input, until its peer closes it.
ECHO = """
import socket, sys
peer, size = socket.socket(fileno=0), int(sys.argv[1])
memory = memoryview(bytearray(size))
while (got := peer.recv_into(memory)):
    while got < size:
        if not (more := peer.recv_into(memory[got:])):
            sys.exit()
        got += more
    peer.sendall(b"here")
"""


class Times:
    """Nanoseconds of calls by name."""

    def __init__(self) -> None:
        self._spent: dict[str, list[int]] = defaultdict(list)

    def measure(self, name: str, call: Call, count: int) -> None:
        """Makes so many calls, after a fifth of them that warm up."""
        for _ in range(count // 5 + 1):
            call()
        spent, now = self._spent[name], time.perf_counter_ns
        for _ in range(count):
            began = now()
            call()
            spent.append(now() - began)

    def figures(self) -> dict[str, dict[str, float]]:
        """Returns the median and the 99th percentile of each name, in microseconds."""
        return {name: _figures(spent) for name, spent in self._spent.items()}


def _figures(spent: Sequence[int]) -> dict[str, float]:
    ordered = sorted(spent)
    p99 = ordered[len(ordered) * 99 // 100]
    return {
        "p50_us": round(statistics.median(ordered) / 1e3, 2),
        "p99_us": round(p99 / 1e3, 2),
        "calls": len(ordered),
    }


def missed(figures: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Returns the figures whose 99th percentile is above its bound."""
    return [name for name, most in BOUNDS_US.items() if figures[name]["p99_us"] > most]


def decider() -> LoadDecider:
    """Returns what decides for an engine that has measured steps, and loads of both tiers."""
    decides = LoadDecider(StoreSettings(path=Path("/store")), ENGINE, Profile({}, PRIOR, None))
    for at in range(1, 41):
        work = work_of([(1000 * (at % 7), 200 * at)])
        assert work is not None
        decides.note_step(StepTime(work, 1e-2 + 5e-5 * work.tokens + 2e-9 * work.pairs))
        for tier, block_s in (("dram", 2e-4), ("log", 1e-3)):
            decides.begin_load(at, [(tier, 50 * at)], 50 * at)
            decides.end_load(at, 1e-3 + 50 * at * block_s, is_whole=True)
    return decides


def runs_of_ranks(located: Located, ranks: int) -> list[list[dict[str, Any]]]:
    """Returns what so many ranks answer: each border of the first one is a block further back."""
    blocks = [int(run["blocks"]) for run in located]
    found = []
    for rank in range(ranks):
        moved = [blocks[0] + rank, *blocks[1:-1], blocks[-1] - rank] if rank else blocks
        found.append([{**run, "blocks": own} for run, own in zip(located, moved, strict=True)])
    return found


def decide(decides: LoadDecider, answers: Sequence[Located], total: int) -> Decision:
    """Decides about all blocks, from what the ranks have answered."""
    runs = merge_located(answers, total)
    wish = Wish(runs, 0, total * ENGINE.block_tokens + 1)
    wish.most_read = min(MOST_READ, total)
    wish.most_copied = runs[0][1] if runs[0][0] == "dram" else 0
    return decides.decide(wish)


def decisions(located: Located) -> dict[str, Call]:
    """Returns the calls that decide, from what a store has answered."""
    decides, total = decider(), sum(int(run["blocks"]) for run in located)
    calls: dict[str, Call] = {}
    for ranks in RANKS:
        answers = runs_of_ranks(located, ranks)
        name = f"{ranks}_rank{'s' if ranks > 1 else ''}"
        calls[f"merge_{name}"] = partial(merge_located, answers, total)
        calls[f"decide_{name}"] = partial(decide, decides, answers, total)
    return calls


def open_namespace(store: dalsegno.Store) -> dalsegno.Namespace:
    """Returns the namespace of the blocks."""
    return store.namespace({"bench": "decide"}, layers=1, slice_bytes=BLOCK_BYTES)


def fill(path: str, chain: list[bytes]) -> None:
    """Puts all blocks into the log of a store."""
    with dalsegno.open(path, capacity=CAPACITY, dram=0) as store:
        report = open_namespace(store).put_batch(chain, [bytes(BLOCK_BYTES)] * len(chain))
        assert report.stored == len(chain), report


def warm(namespace: dalsegno.Namespace, chain: list[bytes], runs: int) -> Located:
    """Loads every second run of blocks into the pool; returns where all of them are.

    Raises:
        RuntimeError: They are elsewhere.
    """
    borders = [len(chain) * at // runs for at in range(runs + 1)]
    for begin, end in zip(borders[:-1:2], borders[1::2], strict=False):
        part = chain[begin:end]
        namespace.get_batch(part, [bytearray(BLOCK_BYTES) for _ in part])
    located = namespace.locate(chain)
    tiers = [run["tier"] for run in located]
    expected = [("dram", "log")[at % 2] for at in range(runs)]
    if tiers != expected or sum(run["blocks"] for run in located) != len(chain):
        raise RuntimeError(f"the blocks are not where they should be: {located}")
    return located


@contextlib.contextmanager
def stores(
    folder: Path, chain: list[bytes], runs: int
) -> Iterator[tuple[dict[str, Call], Located]]:
    """Opens a store here and one behind a server; yields the calls, and where the blocks are."""
    for name in ("here", "served"):
        fill(str(folder / name), chain)
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        here = enter(dalsegno.open(str(folder / "here"), capacity=CAPACITY, dram=POOL_BYTES))
        _, address = enter(serving(folder / "served", POOL_BYTES, CAPACITY))
        served = enter(dalsegno.open(address))
        calls: dict[str, Call] = {}
        for suffix, store in (("", here), ("_served", served)):
            namespace = open_namespace(store)
            located = warm(namespace, chain, runs)
            calls[f"locate{suffix}"] = partial(namespace.locate, chain)
            calls[f"probe{suffix}"] = partial(namespace.probe, chain)
        yield calls, located


@contextlib.contextmanager
def echoing(size: int) -> Iterator[Call]:
    """Runs a process that answers messages of `size` bytes; yields the call that sends one."""
    here, there = socket.socketpair()
    message = bytes(size)
    command = [sys.executable, "-c", ECHO, str(size)]
    with there, subprocess.Popen(command, stdin=there.fileno()):
        there.close()

        def call() -> None:
            here.sendall(message)
            if not here.recv(16):
                raise RuntimeError("the process that answers ended")

        # The process ends when its peer is closed.
        with here:
            yield call


def chosen_in_rust(blocks: int, runs: int, calls: int) -> dict[str, float]:
    """Returns the figures of the decision alone, from the Rust program.

    Raises:
        RuntimeError: It cannot be built or run.
    """
    binary = build("dalsegno-bench-decide")
    if binary is None:
        raise RuntimeError("the Rust program cannot be built")
    given = [f"--blocks={blocks}", f"--runs={runs}", f"--calls={calls}"]
    done = subprocess.run([str(binary), *given], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    figure = {name: round(us, 2) for name, us in json.loads(done.stdout)[str(runs)].items()}
    return {**figure, "calls": calls}


def run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measures everything."""
    in_rust = chosen_in_rust(options.blocks, options.runs, options.calls)
    chain = [hash_of(number) for number in range(options.blocks)]
    times = Times()
    size = sum(map(len, chain))
    with stores(folder, chain, options.runs) as (of_stores, located), echoing(size) as echo:
        calls = {**of_stores, "echo": echo, **decisions(located)}
        for _ in range(options.rounds):
            for name, call in calls.items():
                times.measure(name, call, -(-options.calls // options.rounds))
        decision = decide(decider(), [located], options.blocks)
    figures = {"choose_rust": in_rust, **times.figures()}
    # It must not be the trivial one of an empty wish.
    decided = {"blocks": decision.blocks, "in_step": decision.in_step}
    return {"decided": decided, "figures": figures, "missed": missed(figures)}


def main(argv: Sequence[str]) -> int:
    """Runs the bench; the last line on standard output is its result as JSON.

    Args:
        argv: As ``--help`` shows.

    Returns:
        0, whether or not a bound is missed; 2 if it cannot be measured here.
    """
    options = _parser().parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="dalsegno-bench-", dir=options.dir))
    given = {name: getattr(options, name) for name in ("blocks", "runs", "calls", "rounds")}
    result = {"bench": "decide", **given, "bounds_us": BOUNDS_US, "gc": gc.isenabled()}
    load = [round(os.getloadavg()[0], 2)]
    try:
        result |= run(folder, options)
    except (OSError, RuntimeError, dalsegno.DalsegnoError) as error:
        print(f"dalsegno: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result["load"] = [*load, round(os.getloadavg()[0], 2)]
    report(result)
    print(json.dumps(result))
    return 0


def report(result: Mapping[str, Any]) -> None:
    """Prints the table of the figures."""
    print(f"{'call':16}{'p50 us':>10}{'p99 us':>10}{'bound us':>10}")
    for name, figure in result["figures"].items():
        bound = BOUNDS_US.get(name, "")
        print(f"{name:16}{figure['p50_us']:>10}{figure['p99_us']:>10}{bound:>10}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dalsegno bench decide",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--blocks", type=int, default=4000, help="blocks of the prompt (%(default)s)")
    add("--runs", type=int, default=8, help="runs that alternate between tiers (%(default)s)")
    add("--calls", type=int, default=5000, help="measured calls of each kind (%(default)s)")
    add("--rounds", type=int, default=10, help="rounds in which calls take turns (%(default)s)")
    default = Path("/var/tmp")  # noqa: S108 - the bench makes a folder of its own in it
    add("--dir", type=local_path, default=default, help="where to write (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
