"""The figures of a soak, and what is wrong with them."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping
from typing import Any, Protocol

__all__ = ["complaints", "figures_of"]

DAY_REQUESTS = 288_744
# A run of this length shows slow growth, and meets every kind of event.
WHOLE_MINUTES = 5.0
# Most growth of resident memory, last quarter / second quarter: with what malloc keeps, and
# without. The latter hardly varies.
RATIOS = {"rss_mib": 1.2, "held_mib": 1.1}
# Blocks that were not kept, of those to be put: on a full disk the store first reclaims space.
FAILED_SHARE = 0.01
# What is added up over all lives.
SUMMED = (
    "requests",
    "put_blocks",
    "hit_blocks",
    "wrong_blocks",
    "failed_blocks",
    "evicted_blocks",
    "merges",
    "refused_segments",
    "returned_segments",
    "quarantined_blocks",
)


class Rows(Protocol):
    """What one process noted.

    Attributes:
        rows: A row for each life of its store, and for each problem that it reported.
        problems: How it ended unexpectedly.
    """

    rows: list[dict[str, Any]]
    problems: list[str]


def figures_of(steady: Rows, killed: Rows, kills: int, fills: int) -> dict[str, Any]:
    """Puts together what two processes noted.

    Args:
        steady: Of the process that lives to the end.
        killed: Of the one that is killed.
        kills: How often it was.
        fills: How often the disk was filled.
    """
    lives = [row for row in steady.rows if "life" in row]
    # The first lives warm up: imports, allocator, both kinds of index.
    lives = lives[2:] if len(lives) > 6 else lives
    quarter = max(1, len(lives) // 4)
    every = [row for row in steady.rows + killed.rows if "life" in row]

    def growth(name: str) -> float:
        first, last = lives[:quarter], lives[-quarter:]
        before, after = (statistics.median(row[name] for row in rows) for rows in (first, last))
        return float(after - before)

    figures: dict[str, Any] = {name: sum(row[name] for row in every) for name in SUMMED}
    reported = sum("wrong" in row for row in steady.rows + killed.rows)
    figures["wrong_blocks"] = max(reported, figures["wrong_blocks"])
    figures |= {"kills": kills, "fills": fills, "reopenings": len(every) + kills}
    figures["refused_openings"] = sum("refused" in row for row in steady.rows + killed.rows)
    for name in ("fds", "threads", "rss_mib", "held_mib", "heap_mib"):
        figures[f"{name}_first"] = statistics.median(row[name] for row in lives[:quarter])
        figures[f"{name}_growth"] = growth(name)
    # Flat or not is seen from the whole way, not from its ends.
    eighths = [lives[len(lives) * at // 8 : len(lives) * (at + 1) // 8] for at in range(8)]
    for name in (*RATIOS, "heap_mib"):
        figures[f"{name}_by_eighth"] = [
            round(statistics.median(row[name] for row in rows), 1) for rows in eighths if rows
        ]
    figures["poisoned_lives"] = sum(bool(row["poisoned"]) for row in every)
    errors: dict[str, int] = {}
    for row in every:
        for kind, count in row["errors"].items():
            errors[kind] = errors.get(kind, 0) + count
    figures |= {"errors": errors, "crashes": steady.problems + killed.problems}
    figures["days"] = figures["requests"] / DAY_REQUESTS
    figures["load"] = os.getloadavg()[0]
    return figures


def complaints(figures: Mapping[str, Any], minutes: float) -> list[str]:
    """Returns what was wrong, what grew, and what never happened."""
    found = [
        f"{name}: {figures[name]}"
        for name in ("wrong_blocks", "poisoned_lives", "errors", "crashes")
        if figures[name]
    ]
    wanted = figures["put_blocks"] + figures["failed_blocks"]
    if figures["failed_blocks"] > FAILED_SHARE * wanted:
        found.append(f"{figures['failed_blocks']} of {wanted} blocks were not kept")
    found += [f"{name} grew" for name in ("fds", "threads") if figures[f"{name}_growth"] > 0]
    if figures["heap_mib_growth"] > figures["heap_mib_first"] / 10:
        found.append("the heap grew")
    if minutes < WHOLE_MINUTES:
        return found
    # The first quarter fills the pools. Memory outside of the heap is seen only here.
    for name, ratio in RATIOS.items():
        mib = figures[f"{name}_by_eighth"]
        if max(mib[-2:]) > ratio * max(mib[2:4]):
            found.append(f"{name} grew: {mib}")
    events = ("kills", "fills", "refused_segments", "evicted_blocks", "merges", "hit_blocks")
    return found + [f"no {name}: the run shows nothing" for name in events if not figures[name]]
