"""A store that processes share (`dalsegno serve`), against TCP over loopback and pyzmq.

`calls`: a probe, and a lease with its release, of 512 blocks of 64 KiB that are all present. The
baseline is a directory behind pyzmq and msgpack. `reads`: 64 blocks of 512 KiB are used in the pool
or copied into memory of the client. The baseline is a Rust program that sends the same blocks over
TCP, straight from its memory. `full`: a pool is filled with blocks of nine sizes whose weights
shift. `scaling`: 1, 2, 4 and 8 clients read the same prompts from one pool, from a store for each
client with an eighth of the memory, and over TCP.

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
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dalsegno
from dalsegno.paths import local_path
from dalsegno_bench.index.program import build
from dalsegno_bench.pool.client import open_namespace
from dalsegno_bench.pool.figures import CLIENTS, MOST_CLIENTS, Figures, Run
from dalsegno_bench.pool.filling import fill
from dalsegno_bench.pool.processes import Addresses, Clients, serving, serving_tcp, serving_zmq
from dalsegno_bench.pool.workset import LARGE_BLOCKS, QUICK, WHOLE, Dose, Prompts, hash_of

__all__ = ["PARTS", "SUMMARY", "groups", "main"]

SUMMARY = "a store that processes share, against pyzmq for its calls and TCP for its bytes"

PARTS = ("calls", "reads", "full", "scaling")

# Blocks that are there and never read: bytes of each, and blocks of a put.
OTHER_BYTES, OTHER_BLOCKS = 512, 512

# Contenders that are compared, and how many clients they have.
Group = tuple[tuple[str, ...], int]


def groups(parts: Sequence[str]) -> list[Group]:
    """Returns what a round measures for some parts, each once."""
    found: list[Group] = []
    if "calls" in parts:
        found += [(("small probe", "zmq probe"), 1)]
        found += [(("small lease", "zmq lease"), clients) for clients in (1, MOST_CLIENTS)]
    if "reads" in parts:
        found += [(("large view",), 1), (("large sum", "tcp sum"), 1)]
    if "scaling" in parts:
        found += [(("large copy", "tcp copy", "own copy"), clients) for clients in CLIENTS]
    elif "reads" in parts:
        found += [(("large copy", "tcp copy"), clients) for clients in (1, MOST_CLIENTS)]
    return found


class Bench:
    """Servers that run, and clients.

    Args:
        addresses: Where the servers are.
        dose: How much is measured.
    """

    def __init__(self, addresses: Addresses, dose: Dose) -> None:
        self._addresses, self._dose = addresses, dose
        self.clients = Clients(addresses, dose)
        self._large = dalsegno.open(addresses.large)

    def close(self) -> None:
        """Ends the clients."""
        self.clients.close()
        self._large.close()

    def run(self, what: str, clients: int) -> Run:
        """Measures one contender."""
        before = self._large.stats()
        found = self.clients.measure(what, clients)
        if what == "tcp copy":
            return Run(found, dram_bytes=self._dose.large.total_bytes)
        if what == "large copy":
            after = self._large.stats()
            return Run(found, hit_rate(before, after), after["dram_bytes"])
        if what == "own copy":
            befores, afters = (
                {name: sum(one["own"][at][name] for one in found) for name in found[0]["own"][0]}
                for at in (0, 1)
            )
            return Run(found, hit_rate(befores, afters), afters["dram_bytes"])
        return Run(found)


def hit_rate(before: Any, after: Any) -> float:
    """Share of the blocks between two looks at the counters that came from DRAM."""
    dram, log = (after[name] - before[name] for name in ("get_dram_blocks", "get_log_blocks"))
    return float(dram / max(1, dram + log))


@contextlib.contextmanager
def serving_all(folder: Path, program: Path, dose: Dose) -> Iterator[Addresses]:
    """Runs all servers, and puts the prompts, while the block runs."""
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        pids, found = {}, {}
        for name, prompts in (("small", dose.small), ("large", dose.large)):
            capacity = 2 * prompts.total_bytes + (1 << 30)
            pids[name], found[name] = enter(serving(folder / name, dose.pool_bytes, capacity))
            if name == "small":
                put_others(found[name], range(prompts.total_blocks, dose.known_blocks))
            put_all(found[name], prompts)
        pids["zmq"], zmq = enter(serving_zmq(folder / "zmq", dose.known_blocks))
        pids["tcp"], tcp = enter(serving_tcp(program, dose.large))
        yield Addresses(**found, zmq=zmq, tcp=tcp, own=str(folder / "own"), pids=pids)


def put_others(path: str, numbers: range) -> None:
    """Puts tiny blocks, which only make the index of a store as large as that of the baseline."""
    with dalsegno.open(path) as store:
        namespace = store.namespace({"bench": "others"}, layers=1, slice_bytes=OTHER_BYTES)
        for first in range(0, len(numbers), OTHER_BLOCKS):
            chain = [hash_of(number) for number in numbers[first : first + OTHER_BLOCKS]]
            report = namespace.put_batch(chain, [bytes(OTHER_BYTES)] * len(chain))
            assert report.stored == len(chain), report


def put_all(path: str, prompts: Prompts) -> None:
    """Puts the blocks of all prompts into a store."""
    namespace = open_namespace(path, prompts)
    for chain, blocks in prompts.contents():
        report = namespace.put_batch(chain, blocks)
        assert report.stored == len(chain), report


def run(folder: Path, program: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Runs the parts; returns their figures."""
    dose = QUICK if options.quick else WHOLE
    result: dict[str, Any] = {}
    if "full" in options.only:
        result |= fill(folder / "full", dose)
        shutil.rmtree(folder / "full")
    wanted = groups(options.only)
    if not wanted:
        return result
    (folder / "own").mkdir()
    figures = Figures()
    with (
        serving_all(folder, program, dose) as addresses,
        contextlib.closing(Bench(addresses, dose)) as bench,
    ):
        for number in range(options.rounds):
            for contenders, clients in random.sample(wanted, len(wanted)):
                for what in random.sample(contenders, len(contenders)):
                    figures.runs[what, clients].append(bench.run(what, clients))
            print(f"round {number + 1} of {options.rounds} done", file=sys.stderr, flush=True)
    return result | figures.result(LARGE_BLOCKS)


def main(argv: Sequence[str]) -> int:
    """Runs the bench; the last line on standard output is its result as JSON.

    Args:
        argv: As ``--help`` shows.

    Returns:
        0; 1 if a baseline is missing or cannot be built; 2 if a server or a client failed.
    """
    options = _parser().parse_args(argv)
    options.only = options.only or PARTS
    if find_spec("zmq") is None or find_spec("msgpack") is None:
        print("dalsegno: the bench needs its baselines: dalsegno-bench[pool]", file=sys.stderr)
        return 1
    program = build("dalsegno-bench-tcp")
    if program is None:
        return 1
    folder = Path(tempfile.mkdtemp(prefix="dalsegno-bench-", dir=options.dir))
    load = [round(os.getloadavg()[0], 2)]
    try:
        result = run(folder, program, options)
    except (OSError, RuntimeError, dalsegno.DalsegnoError) as error:
        print(f"dalsegno: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    load.append(round(os.getloadavg()[0], 2))
    result = {"bench": "pool", **result, "rounds": options.rounds, "load": load}
    report(result)
    print(json.dumps(result))
    return 0


def report(result: dict[str, Any]) -> None:
    """Prints the figures, and the table of those by number of clients."""
    for name, value in result.items():
        if not isinstance(value, dict | list):
            print(f"{name:24}{value!s:>12}")
    rows = result.get("scaling") or result.get("copies", [])
    if rows:
        print("".join([f"{'':18}", *(f"{title:>14}" for title in list(rows[0])[1:])]))
    for row in rows:
        contender, *values = row.values()
        print("".join([f"{contender:18}", *(f"{value:>14}" for value in values)]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dalsegno bench pool",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rounds", type=int, default=13, help="rounds (%(default)s)")
    add("--only", action="append", choices=PARTS, metavar="PART", help=f"one of {', '.join(PARTS)}")
    add("--quick", action="store_true", help="a smoke test: small pools, short measurements")
    default = Path("/var/tmp")  # noqa: S108 - the bench makes a folder of its own in it
    add("--dir", type=local_path, default=default, help="where to write (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
