"""Tables and verdicts over the records of a folder, as plain text or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu import verdicts
from gpu.cells import records as read
from gpu.verdicts import MISSED, Record, first_token_s, percentile, rows_of

Table = list[list[str]]

# Columns of the table of first tokens: cell and kind of the rows.
COLUMNS = (
    ("recompute", "plain", "recompute"),
    ("in GPU", "plain", "hit in GPU"),
    ("CPU tier", "cpu-tier", "load"),
    ("pool", "direct-pool", "load"),
    ("pool, serve", "direct-serve", "load"),
    ("disk", "direct-disk", "load"),
    ("disk, serve", "direct-serve", "load from its disk"),
    ("tiered, serve", "tiered-serve", "load"),
    ("fs tier", "fs-tier", "load"),
)
WAYS = ("buffered", "registered", "tuned", "tuned, without a lease")


def first_tokens(records: Sequence[Record]) -> Table:
    """Returns seconds to the first token, by the length of the prompt."""
    lengths = sorted({row["n"] for row in rows_of(records, "engines")})
    if not lengths:
        return []
    rows = [["tokens", *(title for title, _, _ in COLUMNS)]]
    for n in lengths:
        times = [first_token_s(records, cell, kind, n) for _, cell, kind in COLUMNS]
        rows.append([str(n), *("" if one is None else f"{one:.4f}" for one in times)])
    return rows


def transfers(records: Sequence[Record]) -> Table:
    """Returns GB/s by the size of a piece, and CPU seconds for each GB of the fastest loads."""
    found = [one for one in records if one["part"] == "transfers" and one.get("rows")]
    if not found:
        return []
    saves = ("buffered", "tuned", "tuned, by layer")
    ways = [*(("load", way) for way in WAYS), *(("save", way) for way in saves)]
    titles = [f"{kind} {way.removeprefix('tuned, ')}" for kind, way in ways]
    rows = [["pool", "piece", *titles, "CPU s/GB", "kernel below"]]
    for one in sorted(found, key=lambda record: (record["cell"][:3], record["piece_bytes"])):
        by_way = {(row["kind"], row["way"]): row for row in one["rows"]}
        rates = [f"{by_way[way]['gb_per_s']:.2f}" if way in by_way else "" for way in ways]
        cpu = by_way["load", "tuned"]["cpu_s_per_gb"]
        name = one["cell"].partition("-")[0]
        piece, below = one["piece_bytes"] >> 10, one["kernel_below_bytes"]["tuned"]
        rows.append([name, f"{piece}k", *rates, f"{cpu:.3f}", str(below)])
    return rows


def registrations(records: Sequence[Record]) -> Table:
    """Returns how long the GPU took to register pools."""
    rows = [["pool", "GiB", "seconds", "s/GiB", "copied by the processor, bytes", "refusals"]]
    for one in records:
        if one["part"] == "facts" and "registration" in one:
            found = one["registration"]
            size = found["pool_bytes"] / (1 << 30)
            numbers = [f"{size:.2f}", f"{found['seconds']:.3f}", f"{found['s_per_gib']:.3f}"]
            refusals = "; ".join(found["refusals"]) or "none"
            rows.append([one["cell"], *numbers, str(one["buffered_bytes"]), refusals])
    return rows if len(rows) > 1 else []


def tuning(records: Sequence[Record]) -> Table:
    """Returns the GB/s of a kernel and of the copy engines, as `Gpu.tune` measured them."""
    rows = [["piece", "kernel", "copy engines", "taken"]]
    for one in records:
        for found in one.get("tuning", ()):
            rates = [f"{found[name]:.1f}" for name in ("kernel_gb_per_s", "engines_gb_per_s")]
            rows.append([f"{found['piece_bytes'] >> 10}k", *rates, found["way"]])
    return rows if len(rows) > 1 else []


def machine(records: Sequence[Record]) -> Table:
    """Returns facts of the GPU and of the machine."""
    rows: Table = []
    for one in records:
        if one["part"] == "facts" and "facts" in one:
            rows += [[name, str(value)] for name, value in one["facts"].items()]
        if one["part"] == "facts" and "disk" in one:
            rows += [[f"disk {name}", str(value)] for name, value in one["disk"].items()]
            rows += [[name, str(value)] for name, value in one["memory"].items()]
    return [["fact", "value"], *rows] if rows else []


def decoding(records: Sequence[Record]) -> Table:
    """Returns milliseconds between tokens of a request, alone and while others come."""
    rows = [["cell", "the others", "samples", "p50 ms", "p99 ms", "most ms", "their first token s"]]
    for one in records:
        if "loading" not in one:
            continue
        series: list[tuple[str, list[float], list[float]]] = [
            ("none", one["loading"]["alone_s"], []),
            ("load", one["loading"]["with_s"], one["loading"]["first_s"]),
            ("hit in GPU", one["in_gpu"]["with_s"], one["in_gpu"]["first_s"]),
        ]
        for name, gaps, firsts in series:
            if not gaps:
                continue
            times = [percentile(gaps, 0.5), percentile(gaps, 0.99), max(gaps)]
            first = f"{percentile(firsts, 0.5):.4f}" if firsts else ""
            numbers = [f"{1e3 * value:.2f}" for value in times]
            rows.append([one["cell"], name, str(len(gaps)), *numbers, first])
    return rows if len(rows) > 1 else []


def faults(records: Sequence[Record]) -> Table:
    """Returns what became of each planted fault."""
    rows = [["cell", "fault", "hits", "failed blocks", "step loads", "answer"]]
    for row in rows_of(records, "decode"):
        answer = verdicts.same_answer(row["right"], row)
        failed, steps = row.get("failed_blocks", 0), row.get("step_loads", 0)
        rows.append(
            [
                row["cell"],
                row["kind"],
                *(f"{one:.0f}" for one in (row["external"], failed, steps)),
                answer,
            ]
        )
    return rows if len(rows) > 1 else []


def text_of(title: str, rows: Table) -> str:
    """Returns a table as text; empty without rows."""
    if not rows:
        return ""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join([title, *(line.rstrip() for line in lines), ""])


def show(out: Path, *, as_json: bool) -> int:
    """Prints the report of a folder; returns 1 if a verdict is `MISSED`."""
    found = read(out)
    if not found:
        print(f"run: {out} has no records", file=sys.stderr)
        return 1
    tables: dict[str, Table] = {
        "Facts": machine(found),
        "Registration": registrations(found),
        "Kernel and copy engines, GB/s": tuning(found),
        "Transfers, GB/s": transfers(found),
        "Time to the first token, seconds": first_tokens(found),
        "Between tokens": decoding(found),
        "Faults": faults(found),
    }
    judged = verdicts.all_of(found)
    if as_json:
        report: dict[str, Any] = {"tables": tables, "verdicts": [one.plain() for one in judged]}
        print(json.dumps(report, indent=1))
    else:
        for title, rows in tables.items():
            if text := text_of(title, rows):
                print(text)
        rows = [[one.verdict, one.claim, one.target, one.found] for one in judged]
        print(text_of("Verdicts", [["", "claim", "target", "found"], *rows]))
    return 1 if any(one.verdict == MISSED for one in judged) else 0
