"""What the tier costs vLLM's scheduler: time of its calls, without and with KV events.

vLLM calls a tier on the thread that schedules, so each microsecond delays every request. A tier is
driven here as vLLM's scheduler drives it, without an engine. A request looks its blocks up, loads
those that are present and stores the rest. In each step jobs are polled, and events and metrics are
read. The store is smaller than what is put, so blocks are evicted, and withdrawn from routers, all
the time.

Two tiers take turns request by request, each with a store of its own: `off` reports no KV events,
`on` reports them. `step` is all calls of a step together. A ratio is `on` / `off` of one round, and
a figure is the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dalsegno_bench.disk.merge import percentile

__all__ = ["ENVIRONMENT", "SUMMARY", "main", "report"]

SUMMARY = "time that the vLLM tier takes on the scheduler's thread, without and with KV events"
ENVIRONMENT = "vllm"

CONTENDERS = ("off", "on")
SHARES = {"p50": 0.50, "p99": 0.99}

# Nanoseconds of single calls: samples[contender][call][round].
Samples = dict[str, dict[str, list[list[int]]]]


def report(samples: Samples, loads: Sequence[float]) -> dict[str, Any]:
    """Returns the last line: medians over the rounds."""
    line: dict[str, Any] = {"us": {}, "ratio": {}}
    for contender, calls in samples.items():
        line["us"][contender] = {
            f"{call}_{name}": round(
                statistics.median(percentile(one, share) / 1e3 for one in rounds), 2
            )
            for call, rounds in sorted(calls.items())
            for name, share in SHARES.items()
        }
    off, on = (samples[contender] for contender in CONTENDERS)
    for call in sorted(off):
        for name, share in SHARES.items():
            pairs = zip(on[call], off[call], strict=True)
            line["ratio"][f"{call}_{name}"] = round(
                statistics.median(
                    percentile(mine, share) / max(1, percentile(theirs, share))
                    for mine, theirs in pairs
                ),
                3,
            )
    line["rounds"] = len(off["step"])
    line["load"] = [round(load, 2) for load in loads]
    return line


def _print(line: dict[str, Any]) -> None:
    """Prints a table for people."""
    print(f"{'call':24}{'off p50':>10}{'p99':>10}{'on p50':>10}{'p99':>10}  microseconds")
    names = sorted({key.rsplit("_", 1)[0] for key in line["us"]["off"]})
    for name in names:
        cells = [
            line["us"][contender][f"{name}_{share}"] for contender in CONTENDERS for share in SHARES
        ]
        print(f"{name:24}" + "".join(f"{cell:>10.1f}" for cell in cells))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dalsegno bench vllm-tier",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=7, help="rounds (default: %(default)s)")
    parser.add_argument(
        "--requests", type=int, default=60, help="requests of each tier in a round (%(default)s)"
    )
    parser.add_argument(
        "--block-kib", type=int, default=64, help="size of a block (default: %(default)s)"
    )
    parser.add_argument(
        "--capacity-mib", type=int, default=160, help="disk of each store (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the prompts (default: %(default)s)")
    parser.add_argument(
        "--no-events",
        action="store_true",
        help="both tiers without KV events: what two equal tiers differ by",
    )
    parser.add_argument("--dir", type=Path, default=None, help="where to put the stores")
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs the bench.

    Args:
        argv: See ``--help``.

    Returns:
        The exit code.
    """
    options = _parser().parse_args(argv)
    try:
        from dalsegno_bench.vllm.driver import Driver, prompts
    except ImportError:
        print("dalsegno: vLLM is not installed here: use make bench", file=sys.stderr)
        return 1
    samples: Samples = {contender: defaultdict(list) for contender in CONTENDERS}
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        drivers = {
            contender: Driver(
                Path(folder) / contender,
                options.block_kib << 10,
                options.capacity_mib << 20,
                events=contender == "on" and not options.no_events,
            )
            for contender in CONTENDERS
        }
        try:
            make = prompts(options.seed)
            # The first round fills the stores and is not counted.
            for number in range(options.rounds + 1):
                for request in range(options.requests):
                    keys = make()
                    order = CONTENDERS if (number + request) % 2 else CONTENDERS[::-1]
                    for contender in order:
                        drivers[contender].serve(f"r{number}-{request}", keys)
                for contender, driver in drivers.items():
                    calls, driver.calls = driver.calls, defaultdict(list)
                    if number:
                        for call, spent in calls.items():
                            samples[contender][call].append(spent)
                loads.append(os.getloadavg()[0])
                print(f"round {number} of {options.rounds}", file=sys.stderr)
        finally:
            for driver in drivers.values():
                driver.close()
    line = report(samples, loads)
    _print(line)
    print(json.dumps(line))
    return 0
