"""The tables of ``bench bubble``."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from dalsegno_bench.first_token.cells import Table

__all__ = ["print_all"]

# The length of prompts and the hit rates of the printed table; the result has all.
TOKENS = 65_536
COLUMNS = {
    "first_token_s": "mean s",
    "first_token_p99_s": "p99 s",
    "bubble_s": "bubble s",
    "decode_stall_s": "stall s",
    "disk_busy_s": "disk s",
    "compute_s": "compute s",
    "peak_blocks": "blocks",
    "loads": "loads",
    "loads_by_layer": "by layer",
}
HIT_RATES = (0.3, 0.5, 0.7, 0.9, 0.95, 0.98, 0.99, 0.999)


def print_all(
    tables: Sequence[Table],
    checks: Mapping[str, Mapping[str, Any]],
    arrivals: Mapping[str, Mapping[str, Mapping[str, Any]]],
) -> None:
    """Prints what people look at first.

    Args:
        tables: All cells.
        checks: From `checks.checked`, and how well measured loads are reproduced.
        arrivals: From `arrivals.served`, by source.
    """
    print(
        f"\nms to the first token of {TOKENS} tokens, by hit rate; fill and steady bubble after +"
    )
    heading = "".join(f"{rate:>16g}" for rate in HIT_RATES)
    print(f"{'GPU':6}{'source':10}{'policy':15}{heading}")
    for table in tables:
        if table.tokens == TOKENS:
            _print_cells(table)
    _print_worst(tables)
    for source, policies in arrivals.items():
        _print_arrivals(source, policies)
    print()
    for name, check in checks.items():
        print(f"{name}: {'holds' if check['holds'] else 'FAILS'}{_worst(check)}")


def _print_worst(tables: Sequence[Table]) -> None:
    heading = f"{'vs oracle':>10}{'vs best':>9}{'crossover':>11}{'ours':>8}"
    print(f"\n{'worst of all hit rates':40}{heading}")
    for table in tables:
        oracle = max(
            cell.worst_ratio(cell.served["oracle"].outcome.first_token_s) for cell in table.cells
        )
        best = max(cell.worst_ratio(cell.best_s) for cell in table.cells)
        predicted = statistics.median(table.predicted)
        print(
            f"{table.name:40}{oracle:>10.3f}{best:>9.3f}{table.crossover:>11.1%}{predicted:>8.1%}"
        )


def _worst(check: Mapping[str, Any]) -> str:
    if "worst" not in check:
        return ""
    return f", {check['worst']} of at most {check['limit']}, {check['cell']}"


def _print_cells(table: Table) -> None:
    cells = [cell for cell in table.cells if cell.hit_rate in HIT_RATES]
    for policy in cells[0].served:
        row = f"{table.gpu:6}{table.source:10}{policy:15}"
        for cell in cells:
            outcome = cell.served[policy].outcome
            bubbles = f"{1e3 * outcome.fill_s:.0f}+{1e3 * outcome.steady_s:.0f}"
            row += f"{1e3 * outcome.first_token_s:>8.0f} {bubbles:<7}"
        print(row)


def _print_arrivals(source: str, policies: Mapping[str, Mapping[str, Any]]) -> None:
    print(f"\n{'requests, ' + source:20}" + "".join(f"{name:>12}" for name in COLUMNS.values()))
    for policy, figures in policies.items():
        print(f"{policy:20}" + "".join(f"{figures[name]:>12}" for name in COLUMNS))
