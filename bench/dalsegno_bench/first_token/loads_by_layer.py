"""Loads by layer that were measured on an H200, and how well the simulator reproduces them.

The model is Llama-3-8B, with chunks of 8,192 tokens. Blocks come from pinned memory. All times are
milliseconds. The compute and the transfer of each row are inputs of the simulator, and the other
columns are compared with what it says. The compute is also compared with the table of layer times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dalsegno_bench.first_token.layers import H200, LAYERS
from dalsegno_bench.first_token.pipeline import Outcome, Plan, Rest, Source, outcome

__all__ = ["MEASURED", "Measured", "reproduced"]

# What was loaded were whole blocks of so many tokens.
BLOCK_TOKENS = 256
# Largest relative errors.
LIMITS = {
    "recompute": 0.06,
    "load_then_compute": 0.05,
    "layer_by_layer": 0.05,
    "compute_of_the_rest": 0.12,
}
# The compute of the rest is checked at this hit rate: behind others, rests are short.
CHECKED_HIT_RATE = 0.90


@dataclass(frozen=True)
class Measured:
    """One row; milliseconds.

    Attributes:
        tokens: Of the prompt.
        hit_rate: Part of them that was loaded.
        recompute: The whole prompt is computed.
        rest: The rest is computed.
        transfer: The blocks are loaded.
        ahead: The blocks are loaded, then the rest is computed.
        by_layer: The rest is computed while its layers arrive.
        bubble: How long the compute waits for layers.
    """

    tokens: int
    hit_rate: float
    recompute: float
    rest: float
    transfer: float
    ahead: float
    by_layer: float
    bubble: float

    @property
    def loaded(self) -> int:
        """Tokens that were loaded."""
        return int(self.tokens * self.hit_rate) // BLOCK_TOKENS * BLOCK_TOKENS

    def simulated(self, *, by_layer: bool) -> Outcome:
        """Serves the row from its compute and its transfer."""
        # One byte for each second of the transfer makes that the load.
        source = Source("pinned memory", 1.0, 0.0)
        # A rest of at most a chunk is one step.
        rest = Rest(self.rest / 1e3 / LAYERS, 0.0)
        return outcome(source, Plan(1, by_layer), rest, LAYERS, self.transfer / 1e3)


MEASURED = (
    Measured(16_384, 0.90, 605, 87, 35, 121, 87, 1),
    Measured(16_384, 0.98, 605, 28, 38, 66, 39, 11),
    Measured(32_768, 0.90, 1611, 245, 70, 316, 248, 3),
    Measured(32_768, 0.95, 1611, 133, 74, 207, 135, 3),
    Measured(32_768, 0.98, 1611, 66, 76, 142, 78, 12),
    Measured(32_768, 0.99, 1611, 43, 77, 119, 78, 35),
    Measured(65_536, 0.90, 4861, 766, 140, 906, 771, 5),
    Measured(65_536, 0.98, 4861, 223, 152, 375, 228, 5),
    Measured(65_536, 0.99, 4861, 114, 154, 268, 157, 43),
)


def reproduced() -> dict[str, Any]:
    """Compares the simulator with what was measured.

    Returns:
        ``holds``; for each column its ``worst`` relative error and the ``limit``; and ``rows`` with
        the simulated milliseconds.
    """
    rows = [_row(measured) for measured in MEASURED]
    checked = {name: [abs(row["errors"][name]) for row in rows] for name in LIMITS}
    checked["compute_of_the_rest"] = [
        abs(row["errors"]["compute_of_the_rest"])
        for row in rows
        if row["hit_rate"] == CHECKED_HIT_RATE
    ]
    worst = {name: max(errors) for name, errors in checked.items()}
    columns = {name: {"worst": worst[name], "limit": limit} for name, limit in LIMITS.items()}
    holds = all(worst[name] <= limit for name, limit in LIMITS.items())
    return {"holds": holds, **columns, "rows": rows}


def _row(measured: Measured) -> dict[str, Any]:
    by_layer = measured.simulated(by_layer=True)
    pairs = {
        "recompute": (1e3 * H200.request_s(0, measured.tokens), measured.recompute),
        "load_then_compute": (
            1e3 * measured.simulated(by_layer=False).first_token_s,
            measured.ahead,
        ),
        "layer_by_layer": (1e3 * by_layer.first_token_s, measured.by_layer),
        "compute_of_the_rest": (
            1e3 * H200.request_s(measured.loaded, measured.tokens),
            measured.rest,
        ),
    }
    return {
        "tokens": measured.tokens,
        "hit_rate": measured.hit_rate,
        "simulated_ms": {name: round(ms, 1) for name, (ms, _) in pairs.items()},
        "errors": {name: round(ms / real - 1, 4) for name, (ms, real) in pairs.items()},
        "bubble_ms": round(1e3 * by_layer.bubble_s, 1),
        "measured_bubble_ms": measured.bubble,
    }
