"""The picture of ``bench dynamic``: hit rate and time to the first token, stage by stage."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def missing() -> str | None:
    """Says what is missing to draw; ``None`` if nothing is."""
    if importlib.util.find_spec("matplotlib") is None:
        return "matplotlib is not installed: pip install 'dalsegno-bench[plot]'"
    return None


def draw(parts: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws one column of two pictures for each part of the result.

    Args:
        parts: Results of ``report.result_of``.
        path: Where to write; the ending chooses the format.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(parts), 7), layout="constrained")
    grid = figure.subplots(2, len(parts), squeeze=False, sharex=True)
    for part, (above, below) in zip(parts, grid.T, strict=True):
        stages = range(1, len(next(iter(part["systems"].values()))["stages"]))
        for system, found in part["systems"].items():
            rows = found["stages"][1:]
            above.plot(stages, [row["hit_rate"] * 100 for row in rows], marker="o", label=system)
            below.plot(stages, [row["ttft_ms"]["mean"] for row in rows], marker="o", label=system)
        # The ideal is the same for all.
        ideal = [row["ideal_hit_rate"] * 100 for row in rows]
        above.plot(stages, ideal, color="black", linestyle=":", label="ideal")
        above.set_title(
            f"{part['prompt_tokens']} tokens, blocks of {part['block_bytes'] >> 10} KiB"
        )
        above.set_ylabel("hit rate, % of tokens")
        above.set_ylim(0, 100)
        below.set_ylabel("mean TTFT, ms (prefill modelled)")
        below.set_ylim(bottom=0)
        below.set_xlabel("stage")
        # Times stay far from zero: there is space below them.
        below.legend(*above.get_legend_handles_labels(), loc="lower left")
    figure.savefig(path)
