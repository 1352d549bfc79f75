"""First tokens while saves are pending, in the orders in which a disk can serve both.

A program of this checkout simulates the disk: reads and writes beside each other reach a part of
their rates. It runs the schedule of the product, and others. A request loads all that hits by
layer; a gibibyte of saves is pending when it comes.

The slack of the schedule is what an engine predicts of its steps: by a model that has learned from
steps (`ours`), or by an offline table as in the paper, whose nearest point counts; and by one that
was measured while the GPU was faster (`stale_table`).
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Mapping
from typing import Any

import dalsegno
from dalsegno_bench.first_token.layers import BYTES_PER_TOKEN, CHUNK, LayerTimes
from dalsegno_bench.first_token.learning import learned
from dalsegno_bench.first_token.pipeline import Rest, Source
from dalsegno_bench.first_token.policies import OfflineTable, whole
from dalsegno_bench.index.program import build

__all__ = ["ORDERS", "cells_of", "checked", "measured", "show"]

PROGRAM = "dalsegno-bench-order"
ORDERS = ("alone", "fifo", "reads_first", "silent", "table", "stale_table", "ours")
# Other sources of slack of the same schedule.
TABLES = ("table", "stale_table")
# Ours divided by the best one of the others. Virtual time has no noise. Behind the patience of
# saves (docs/internals/schedule.md) they have a part of the time, which reads lose. The order
# `reads_first` starves them.
LIMIT, PATIENCE_S, AGED_LIMIT = 1.01, 2.0, 1.15
# Gigabytes per second of reads, and what writes reach of that.
SOURCES_GB_PER_S, WRITES = (25.0, 7.0, 1.9), 0.6
# What reads and writes reach beside each other (Tutti, 3.4: they lose up to 60%).
BESIDE = 0.4
# Between the points of the table.
LENGTHS, HIT_RATES = (20_000, 50_000, 110_000), (0.6, 0.85, 0.97)
# How much faster the GPU was that has a stale table.
FASTER, SEED = 1.5, 1
SAVE_BYTES = 1 << 30


def cells_of(times: LayerTimes) -> list[dict[str, Any]]:
    """Returns the cells that the program simulates.

    Args:
        times: Of the GPU.
    """
    cells = []
    model = learned(times, Source("", SOURCES_GB_PER_S[0] * 1e9, 0.0), SEED)
    for speed in SOURCES_GB_PER_S:
        for prompt in LENGTHS:
            for rate in HIT_RATES:
                tokens = whole(prompt * rate)
                rest = Rest.of(times, tokens, prompt)
                table = by_table(times, prompt, rate) / (rest.layer_s * times.layers)
                cells.append(
                    {
                        "name": f"{speed:g} GB/s, {prompt} tokens, hit rate {rate:g}",
                        "layers": times.layers,
                        "layer_s": rest.layer_s,
                        "layer_bytes": tokens * BYTES_PER_TOKEN // times.layers,
                        "later_s": rest.later_s,
                        "save_bytes": SAVE_BYTES,
                        "read_bytes_per_s": speed * 1e9,
                        "write_bytes_per_s": WRITES * speed * 1e9,
                        "beside": BESIDE,
                        "model": by_model(model, tokens, prompt) / (rest.layer_s * times.layers),
                        "table": table,
                        "stale_table": table / FASTER,
                    }
                )
    return cells


def by_model(model: dalsegno.CostModel, tokens: int, prompt: int) -> float:
    """Returns the seconds that a model predicts of the first step behind loaded tokens."""
    new = min(CHUNK, prompt - tokens)
    return model.step_s(new, new * (tokens + new / 2), tokens + new)


def by_table(times: LayerTimes, prompt: int, rate: float) -> float:
    """Returns the seconds of the same step at the nearest point of the grid."""
    length, hit = OfflineTable.nearest(prompt, rate)
    return Rest.of(times, whole(length * hit), length).layer_s * times.layers


def measured(times: LayerTimes) -> dict[str, dict[str, Any]] | None:
    """Simulates all cells; returns by cell what each order leads to.

    Args:
        times: Of the GPU.

    Returns:
        None if the program cannot be built here; the reason is on standard error.
    """
    binary = build(PROGRAM)
    if binary is None:
        return None
    cells = cells_of(times)
    ran = subprocess.run(
        [str(binary)], input=json.dumps(cells), capture_output=True, text=True, check=True
    )
    lines = ran.stdout.splitlines()
    return {
        str(cell["name"]): dict(json.loads(line)) for cell, line in zip(cells, lines, strict=True)
    }


def checked(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns whether ours is never later than another order, and by how much it is earlier.

    Args:
        found: From `measured`.
    """
    others = [order for order in ORDERS if order not in ("alone", "ours", *TABLES)]

    def ratios(order: str) -> list[float]:
        pairs = ((one["ours"], one[order]) for one in found.values())
        return [ours["first_token_s"] / other["first_token_s"] for ours, other in pairs]

    def worst(cells: Mapping[str, Mapping[str, Any]]) -> tuple[float, str]:
        return max(
            (max(ours(one) / one[order]["first_token_s"] for order in others), name)
            for name, one in cells.items()
        )

    def saved(order: str) -> int:
        return sum(int(one[order]["saved_bytes"]) for one in found.values())

    def ours(one: Mapping[str, Any]) -> float:
        return float(one["ours"]["first_token_s"])

    patient = {name: one for name, one in found.items() if ours(one) <= PATIENCE_S}
    aged = {name: one for name, one in found.items() if name not in patient}
    (ratio, name), beyond = worst(patient), worst(aged)[0] if aged else 1.0
    return {
        "holds": ratio <= LIMIT and beyond <= AGED_LIMIT,
        "worst": round(ratio, 4),
        "limit": LIMIT,
        "worst_beyond_patience": round(beyond, 4),
        "cell": name,
        "median": {order: round(statistics.median(ratios(order)), 3) for order in others},
        # Above 1 a table is the better source of slack. What was saved by the first token is over
        # that of ours.
        "sources": {
            order: {
                "first_token": [round(one, 4) for one in (min(ratios(order)), max(ratios(order)))],
                "saved": round(saved(order) / max(1, saved("ours")), 3),
            }
            for order in TABLES
        },
        "beside_none": round(max(ratios("alone")), 3),
    }


def show(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints the first tokens of all cells, and what was saved by then."""
    print(
        f"\nms to the first token while {SAVE_BYTES >> 20} MiB are to be saved; MiB saved by then"
    )
    print(f"{'cell':42}" + "".join(f"{order:>18}" for order in ORDERS))
    for name, one in found.items():
        print(f"{name:42}" + "".join(_entry(one[order]) for order in ORDERS))


def _entry(served: Mapping[str, Any]) -> str:
    return f"{1e3 * served['first_token_s']:>12.1f}{served['saved_bytes'] >> 20:>6}"
