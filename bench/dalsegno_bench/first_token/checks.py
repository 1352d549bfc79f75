"""What must hold of the cells, and by how much it does."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from dalsegno_bench.first_token.cells import Table

__all__ = ["checked", "still_right"]

# Our first token divided by that of the oracle, and by the best one of the other policies.
ORACLE_LIMIT, BEST_LIMIT = 1.10, 1.02
# The mean first token of requests, with our model learning from them divided by without.
LEARNING_LIMIT = 1.05
# Hit rates are compared as they are: two points.
CROSSOVER_LIMIT = 0.02


def checked(tables: Sequence[Table]) -> dict[str, dict[str, Any]]:
    """Returns for each check whether it ``holds``, its ``limit``, and its worst cell.

    Ratios are the worst ones over all histories. A predicted crossover, and what both ends need
    more than the best that they could do, is the median of those of the histories;
    ``worst_history`` is the largest one of a history.

    Args:
        tables: All cells.
    """
    cells = [(table, cell) for table in tables for cell in table.cells]
    oracle = [
        (cell.worst_ratio(cell.served["oracle"].outcome.first_token_s), _name(table, cell.hit_rate))
        for table, cell in cells
    ]
    best = [(cell.worst_ratio(cell.best_s), _name(table, cell.hit_rate)) for table, cell in cells]
    both = [
        (cell.ratios_of_both(cell.first_token_s("two_sided")), _name(table, cell.hit_rate))
        for table, cell in cells
    ]
    one_end = [(min(cell.best_s, cell.first_token_s("ours")), table, cell) for table, cell in cells]
    instead = [
        (max(cell.ratios_of_both(seconds)), _name(table, cell.hit_rate))
        for seconds, table, cell in one_end
    ]
    differences = [
        (abs(statistics.median(table.predicted) - table.crossover), table.name) for table in tables
    ]
    of_histories = [
        (abs(one - table.crossover), table.name) for table in tables for one in table.predicted
    ]
    beyond = sum(difference > CROSSOVER_LIMIT for difference, _ in of_histories)
    return {
        "ours_vs_oracle": _check(oracle, ORACLE_LIMIT),
        "ours_vs_best": _check(best, BEST_LIMIT),
        "both_ends_vs_two_sided": {
            **_check([(statistics.median(ratios), name) for ratios, name in both], ORACLE_LIMIT),
            "worst_history": round(max(max(ratios) for ratios, _ in both), 4),
        },
        "both_ends_vs_best": _check(instead, BEST_LIMIT),
        "crossover": {
            **_check(differences, CROSSOVER_LIMIT),
            "worst_history": round(max(of_histories)[0], 4),
            "worst_history_cell": max(of_histories)[1],
            "beyond_limit": f"{beyond} of {len(of_histories)}",
        },
    }


def still_right(arrivals: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Checks that what our model learns from requests does not make first tokens later.

    Args:
        arrivals: From `arrivals.served`, by source.
    """
    ratios = [
        (policies["ours"]["first_token_s"] / policies["ours_frozen"]["first_token_s"], source)
        for source, policies in arrivals.items()
    ]
    return _check(ratios, LEARNING_LIMIT)


def _name(table: Table, hit_rate: float) -> str:
    return f"{table.name}, hit rate {hit_rate:g}"


def _check(values: Sequence[tuple[float, str]], limit: float) -> dict[str, Any]:
    worst, cell = max(values)
    return {"holds": worst <= limit, "worst": round(worst, 4), "limit": limit, "cell": cell}
