"""First tokens while saves are pending, in the orders in which a disk can serve both.

A program of this checkout simulates the disk: reads and writes beside each other reach a part of
their rates. It runs the schedule of the product, and others. A request loads all that hits by
layer; a gibibyte of saves is pending when it comes.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Mapping
from typing import Any

from dalsegno_bench.first_token.layers import BYTES_PER_TOKEN, LayerTimes
from dalsegno_bench.first_token.pipeline import Rest
from dalsegno_bench.first_token.policies import whole
from dalsegno_bench.index.program import build

__all__ = ["ORDERS", "cells_of", "checked", "measured", "show"]

PROGRAM = "dalsegno-bench-order"
ORDERS = ("alone", "fifo", "reads_first", "silent", "ours")
# Ours divided by the best one of the others. Virtual time has no noise. Behind the patience of
# saves (docs/internals/schedule.md) they have a part of the time, which reads lose. The order
# `reads_first` starves them.
LIMIT, PATIENCE_S, AGED_LIMIT = 1.01, 2.0, 1.15
# Gigabytes per second of reads, and what writes reach of that.
SOURCES_GB_PER_S, WRITES = (25.0, 7.0, 1.9), 0.6
# What reads and writes reach beside each other (Tutti, 3.4: they lose up to 60%).
BESIDE = 0.4
LENGTHS, HIT_RATES = (16_384, 65_536, 131_072), (0.5, 0.9, 0.98)
SAVE_BYTES = 1 << 30


def cells_of(times: LayerTimes) -> list[dict[str, Any]]:
    """Returns the cells that the program simulates.

    Args:
        times: Of the GPU.
    """
    cells = []
    for speed in SOURCES_GB_PER_S:
        for prompt in LENGTHS:
            for rate in HIT_RATES:
                tokens = whole(prompt * rate)
                rest = Rest.of(times, tokens, prompt)
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
                    }
                )
    return cells


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
    others = [order for order in ORDERS if order not in ("alone", "ours")]

    def ratios(order: str) -> list[float]:
        pairs = ((one["ours"], one[order]) for one in found.values())
        return [ours["first_token_s"] / other["first_token_s"] for ours, other in pairs]

    def worst(cells: Mapping[str, Mapping[str, Any]]) -> tuple[float, str]:
        return max(
            (max(ours(one) / one[order]["first_token_s"] for order in others), name)
            for name, one in cells.items()
        )

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
