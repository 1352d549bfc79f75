"""The picture of ``bench bubble``: first tokens and bubbles by hit rate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dalsegno_bench.dynamic.plot import missing
from dalsegno_bench.first_token.cells import Table
from dalsegno_bench.first_token.layers import LayerTimes

__all__ = ["draw", "missing"]

STYLES: dict[str, dict[str, Any]] = {
    "ours": {"linewidth": 2.5},
    "oracle": {"color": "black", "linestyle": ":"},
    "both_ends": {"linewidth": 2.5},
    "two_sided": {"color": "gray", "linestyle": ":"},
}


def draw(tables: Sequence[Table], gpus: Sequence[LayerTimes], tokens: int, path: Path) -> None:
    """Draws two rows of pictures for each GPU, with one column for each source.

    Args:
        tables: All cells.
        gpus: The GPUs.
        tokens: The length of prompts that is drawn.
        path: Where to write; the ending chooses the format.
    """
    from matplotlib.figure import Figure

    rows = [[one for one in tables if one.gpu == gpu.gpu and one.tokens == tokens] for gpu in gpus]
    columns = len(rows[0])
    figure = Figure(figsize=(4.5 * columns, 6 * len(rows)), layout="constrained")
    grid = figure.subplots(2 * len(rows), columns, squeeze=False, sharex=True)
    for number, (gpu, row) in enumerate(zip(gpus, rows, strict=True)):
        for column, table in enumerate(row):
            above, below = grid[2 * number][column], grid[2 * number + 1][column]
            rates = [cell.hit_rate for cell in table.cells]
            for policy in table.cells[0].served:
                outcomes = [cell.served[policy].outcome for cell in table.cells]
                style = {"label": policy, "marker": ".", **STYLES.get(policy, {})}
                above.plot(rates, [1e3 * one.first_token_s for one in outcomes], **style)
                below.plot(rates, [1e3 * one.bubble_s for one in outcomes], **style)
            above.set_title(f"{gpu.gpu} ({gpu.origin}), {table.source}, {tokens} tokens")
            above.set_ylabel("first token, ms")
            below.set_ylabel("bubble, ms")
            for picture in (above, below):
                picture.set_ylim(bottom=0)
            below.set_xlabel("hit rate")
    grid[0][0].legend()
    figure.savefig(path)
