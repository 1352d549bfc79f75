"""The far tier on a bucket, against a plain client of the same library that moves the same bytes.

`raw`: packs are published and loaded, next to objects of the same size that a plain client puts and
reads range by range; requests and dollars per GB. `scattered`: blocks that are loaded one by one in
any order, against all of them in order. `fresh`: how long until another host finds a block, and
`idle`: the same after ten minutes without use.
`stopped`: local hits and puts while the server is stopped. `others`: stores of vLLM and LMCache in
buckets, next to ours.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dalsegno_bench.far import fresh, others, stopped
from dalsegno_bench.far.node import BLOCK_BYTES
from dalsegno_bench.far.places import BucketPlace, NoPlaceError, opened_bucket
from dalsegno_bench.far.transfer import Figures, Transfers
from dalsegno_bench.index.program import build

__all__ = ["PARTS", "run"]

PROGRAM = "dalsegno-bench-bucket"
PARTS = ("raw", "scattered", "fresh", "idle", "stopped", "others")
# S3 Standard, us-east-1: dollars for a GET, and for a PUT or a page of a listing.
READ_PRICE, WRITE_PRICE = 0.4e-6, 5e-6


def dollars(requests: Mapping[str, int]) -> float:
    """What requests cost."""
    writes = requests["writes"] + requests["lists"]
    return requests["reads"] * READ_PRICE + writes * WRITE_PRICE


def sent_for(found: Mapping[str, Any]) -> dict[str, int]:
    """What a load sent, without what it sent before: looking for packs is not loading."""
    before = found["sent_before"]
    return {
        kind: found["sent"][kind] - before[kind]
        for kind in ("reads", "writes", "lists", "read_bytes")
    }


def loaded(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Requests and dollars of loads, per GB of blocks, as medians."""
    each = [(sent_for(one), one["bytes"] / 1e9) for one in runs]
    reads = statistics.median(sent["reads"] / gigabytes for sent, gigabytes in each)
    return {
        "gets_per_gb": round(reads, 1),
        # One object for each block of 16 tokens needs as many GETs as there are blocks.
        "gets_per_gb_by_block": round(1e9 / BLOCK_BYTES, 1),
        "fewer_gets": round(1e9 / BLOCK_BYTES / reads, 1),
        "load_dollars_per_gb": round(statistics.median(dollars(s) / g for s, g in each), 7),
        "read_amplification": round(
            statistics.median(s["read_bytes"] / 1e9 / g for s, g in each), 3
        ),
    }


def measure_raw(transfers: Transfers, options: Any, dose: Any) -> dict[str, Any]:
    """Chooses the plain client's cells, then runs the rounds."""
    pilot = transfers.pilot(dose.pilot_workers, dose.pilot_repeats)
    cells = {mode: max(found, key=lambda cell: found[cell]) for mode, found in pilot.items()}
    figures = Figures()
    transfers.requests.clear()
    for _ in range(options.rounds):
        transfers.round(cells, figures)
    puts = transfers.requests["write"]
    per_gb = statistics.median(
        dollars(one["sent"]) / (one["blocks"] * BLOCK_BYTES / 1e9) for one in puts
    )
    result = figures.result()
    return {
        "get_vs_client": result.pop("read_vs_raw"),
        "put_vs_client": result.pop("write_vs_raw"),
        **result,
        **loaded(transfers.requests["read"]),
        "store_dollars_per_gb": round(per_gb, 7),
        "client_cells": {mode: [one.workers, one.request_mib] for mode, one in cells.items()},
        "rounds": options.rounds,
    }


def measure_scattered(transfers: Transfers, options: Any) -> dict[str, Any]:
    """Loads the same blocks in order, and one by one in any order."""
    name, at_a, at_b = transfers.fresh()
    transfers.ours("write", at_a, 32)
    ratios, gets = [], []
    for _ in range(options.rounds):
        in_order = transfers.ours("read", at_b, 32)
        scattered = transfers.ours("read", at_b, 32, scattered=True)
        ratios.append(scattered.gb_per_s / in_order.gb_per_s)
        gets.append(loaded([transfers.requests["read"][-1]])["gets_per_gb"])
    transfers.remove(name)
    return {
        "scattered_vs_in_order": round(statistics.median(ratios), 3),
        "scattered_gets_per_gb": statistics.median(gets),
    }


def run(options: Any, local: Path, dose: Any) -> dict[str, Any]:
    """Runs the parts on a private S3 server; returns their figures.

    Raises:
        NoPlaceError: The server or the plain client is not there.
    """
    program = build(PROGRAM)
    if program is None:
        raise NoPlaceError("the plain client cannot be built")
    result: dict[str, Any] = {}
    with opened_bucket(program) as place:
        transfers = Transfers(place, local, program, dose.packs)
        for part in options.only:
            result |= _measure(part, place, transfers, options, dose, local)
    return result


def _measure(
    part: str, place: BucketPlace, transfers: Transfers, options: Any, dose: Any, local: Path
) -> dict[str, Any]:
    if part == "raw":
        return measure_raw(transfers, options, dose)
    if part == "scattered":
        return measure_scattered(transfers, options)
    if part == "others":
        pythons = [str(one) for one in options.python or others.interpreters()]
        rounds, round_bytes = dose.others
        return others.measure(rounds, round_bytes, pythons)
    if part == "stopped":
        times, seconds = dose.stopped
        return stopped.measure(place, local, times, seconds)
    if part == "idle":
        hosts, idle_s = dose.idle
        return fresh.measure_idle(place, local, hosts, idle_s)
    return fresh.measure(place, local, dose.keys)
