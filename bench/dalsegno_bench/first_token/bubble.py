"""The first token of prompts whose beginning a store has, under six policies, in virtual time.

A simulator computes layer by layer, with the layer times of Llama-3-8B on an H200, and loads from
sources of 55 to 1.9 GB/s. Each policy serves prompts of 16,384 to 131,072 tokens with hit rates of
0 to 0.999. Then requests come one after another. The times of the H200 are measured, those of the
H100 are modelled from whole prefills.

The exit code is 1 if a check fails: ours against the best plan and against the other policies, the
crossover that our model predicts, what it learns from requests, what was measured on the H200, and
ours against other orders of reads and saves on one disk.

With `--real`, a store on this machine loads, and timed waits stand for compute. That compares
policies; its times are not those of a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dalsegno
from dalsegno.paths import local_path
from dalsegno_bench.first_token import arrivals, modelled, plot, real, report, saves
from dalsegno_bench.first_token.cells import HIT_RATES, LENGTHS, SOURCES, Table, table_of
from dalsegno_bench.first_token.checks import checked, still_right
from dalsegno_bench.first_token.ends import fronts_of
from dalsegno_bench.first_token.layers import H200, LayerTimes
from dalsegno_bench.first_token.loads_by_layer import reproduced
from dalsegno_bench.first_token.policies import Oracle

__all__ = ["SUMMARY", "main"]

SUMMARY = "first tokens and bubbles of policies that load or compute, in virtual time"

DATA = Path("../shared/data/prefill_T_compute.csv")
# Its rows, and the formula that stands for them without the file.
MODEL, SYSTEM, FORMULA = "Meta-Llama-3.1-8B", "h100_sxm", "llama-3.1-8b/h100"


def main(argv: Sequence[str]) -> int:
    """Runs the bench; the last line on standard output is its result as JSON.

    Args:
        argv: As ``--help`` shows.

    Returns:
        0; 1 if a check fails; 2 if it cannot run here.
    """
    options = _parser().parse_args(argv)
    lacking = plot.missing() if options.plot else None
    if lacking is not None:
        print(f"dalsegno: no picture: {lacking}", file=sys.stderr)
        return 2
    result: dict[str, Any] = {"bench": "bubble", "load": [round(os.getloadavg()[0], 2)]}
    try:
        h100, result["h100"] = _h100(options.prefills)
        if options.real:
            result["real"] = real.run(options.dir, options.rounds, options.seed)
    except (OSError, ValueError, dalsegno.DalsegnoError) as error:
        print(f"dalsegno: {error}", file=sys.stderr)
        return 2
    tables = _tables((H200, h100), range(options.seed, options.seed + options.histories))
    result |= _result((H200, h100), tables)
    result["arrivals"] = {
        source.name: arrivals.served(H200, source, options.seed) for source in SOURCES
    }
    checks = {
        **checked(tables),
        "learning": still_right(result["arrivals"]),
        "measured": reproduced(),
    }
    if not options.no_saves:
        result["saves"] = saves.measured(H200)
        if result["saves"] is None:
            return 2
        checks["saves"] = saves.checked(result["saves"])
        saves.show(result["saves"])
    report.print_all(tables, checks, result["arrivals"])
    if options.plot:
        plot.draw(tables, (H200, h100), options.plot_tokens, options.plot)
    result["checks"] = checks
    result["holds"] = all(check["holds"] for check in checks.values())
    result["load"].append(round(os.getloadavg()[0], 2))
    print(json.dumps(result))
    return 0 if result["holds"] else 1


def _h100(path: Path | None) -> tuple[LayerTimes, dict[str, Any]]:
    """Models the H100 from a file, or from the formula that was fitted to it."""
    file = path or Path(__file__).resolve().parents[3] / DATA
    if path is None and not file.is_file():
        print(f"the H100 is modelled from a formula: {DATA} is missing")
        times, figures = modelled.fitted("H100", modelled.prefills_by_formula(FORMULA))
        return times, {**figures, "prefills": "formula"}
    times, figures = modelled.fitted("H100", modelled.read_prefills(file, MODEL, SYSTEM))
    return times, {**figures, "prefills": file.name}


def _tables(gpus: Sequence[LayerTimes], seeds: Sequence[int]) -> list[Table]:
    known = [
        (times, tokens, Oracle(times, tokens), fronts_of(times, tokens))
        for times in gpus
        for tokens in LENGTHS
    ]
    return [
        table_of(times, source, oracle, fronts_s, tokens, seeds)
        for times, tokens, oracle, fronts_s in known
        for source in SOURCES
    ]


def _result(gpus: Sequence[LayerTimes], tables: Sequence[Table]) -> dict[str, Any]:
    """Returns the figures of all cells by GPU, source and length."""
    return {
        "hit_rates": HIT_RATES,
        "layer_times": {times.gpu: times.origin for times in gpus},
        "cells": {
            times.gpu: {
                source.name: {
                    table.tokens: table.figures()
                    for table in tables
                    if (table.gpu, table.source) == (times.gpu, source.name)
                }
                for source in SOURCES
            }
            for times in gpus
        },
        "crossovers": {
            table.name: {
                "simulated": round(table.crossover, 4),
                "predicted": [round(one, 4) for one in table.predicted],
            }
            for table in tables
        },
    }


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dalsegno bench bubble",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--seed", type=int, default=1, help="of what our model has learned (%(default)s)")
    add(
        "--histories",
        type=_positive,
        default=5,
        help="how often our model learns again, with further seeds (%(default)s)",
    )
    add(
        "--prefills",
        type=Path,
        help=f"a file with prefills of the H100 ({DATA}, or else a formula)",
    )
    add("--plot", type=local_path, help="also draw a picture into this file, with matplotlib")
    add(
        "--plot-tokens",
        type=int,
        default=65_536,
        choices=LENGTHS,
        help="length of prompts in the picture (%(default)s)",
    )
    add("--no-saves", action="store_true", help="without the part that needs a Rust compiler")
    add("--real", action="store_true", help="also load from a store, with timed compute")
    add(
        "--dir",
        type=local_path,
        default=Path(tempfile.gettempdir()),
        help="where that store is (%(default)s)",
    )
    add("--rounds", type=_positive, default=5, help="rounds of --real (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
