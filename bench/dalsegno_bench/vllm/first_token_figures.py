"""The figures of `dalsegno bench first-token`, from the answers of its engines."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dalsegno_bench.vllm.first_token_plan import Cell

__all__ = ["TARGETS", "Round", "after_step", "cell", "meeting", "missed", "noise", "overall"]

Answer = Mapping[str, Any]

# Figures and their bounds: the least value, or the most.
TARGETS = {
    "cells_within": (">=", 0.95),
    "worst": ("<=", 1.2),
    "gain": ("<=", 1.0),
    "after_step": ("<=", 2),
    "beside": ("<=", 1.05),
    "meeting": ("<=", 0.15),
}
# A first token that comes so many times later than with the better policy counts as worse.
WORSE = 1.3
# What `cells_within` allows, in addition to the noise.
ALLOWED = 1.05
# Rates whose cells count for `gain`.
GAIN_RATES = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Round:
    """The answers to one prompt.

    Attributes:
        never: Two, of the same engine.
        always: One.
        auto: One.
    """

    never: tuple[Answer, Answer]
    always: Answer
    auto: Answer

    @property
    def differs(self) -> bool:
        """Whether the policies answered different tokens."""
        tokens = [one["answers"] for one in (*self.never, self.always, self.auto)]
        return any(one != tokens[0] for one in tokens)


def seconds(answer: Answer) -> float:
    """Returns the seconds to the first token of the first prompt."""
    return float(answer["first_token_s"][0])


def cell(which: Cell, rounds: Sequence[Round]) -> dict[str, Any]:
    """Returns the figures of a cell: medians of its rounds."""
    never_s = statistics.median(seconds(one) for each in rounds for one in each.never)
    always_s = statistics.median(seconds(each.always) for each in rounds)
    auto_s = statistics.median(seconds(each.auto) for each in rounds)
    return {
        "rate": which.rate,
        "tokens": which.tokens,
        "hits": which.hits,
        "never_s": round(never_s, 3),
        "always_s": round(always_s, 3),
        "auto_s": round(auto_s, 3),
        "auto_vs_min": round(auto_s / min(never_s, always_s), 3),
        "auto_all_s": [round(seconds(each.auto), 3) for each in rounds],
        **_decided([each.auto for each in rounds]),
        "always_mib_per_s": _speed([each.always for each in rounds]),
        "auto_failed_blocks": sum(each.auto["load_failed_blocks"] for each in rounds),
        "always_failed_blocks": sum(each.always["load_failed_blocks"] for each in rounds),
        "from_memory": sum(
            tier == "dram"
            for each in rounds
            for one in (each.auto, each.always)
            for tier, *_ in one["loads"]
        ),
    }


def _speed(answers: Sequence[Answer]) -> float | None:
    """Returns how fast whole loads were, in MiB/s: the median; None without any."""
    speeds = [
        size / took_s
        for one in answers
        for _, size, _, took_s in one["loads"]
        if not one["load_failed_blocks"]
    ]
    return round(statistics.median(speeds) / 2**20, 1) if speeds else None


def _decided(answers: Sequence[Answer]) -> dict[str, Any]:
    """Returns what `auto` decided in each round, and the medians of what it predicted, in s."""
    choices = [one["choices"][-1] for one in answers if one["choices"]]
    if not choices:
        return {"decided": []}
    names = ("predicted_s", "computed_s", "loaded_s")
    predicted = {name: statistics.median(one[name] for one in choices) for name in names}
    return {
        "decided": [_short(one) for one in choices],
        **{name: round(value, 3) for name, value in predicted.items()},
    }


def _short(choice: Mapping[str, Any]) -> str:
    """Returns a choice such as `95/95 step`, or `95/95 from 40` if both ends should meet there."""
    way = "step" if choice["in_step"] else "ahead"
    if choice["front"]:
        way = f"from {choice['front']}"
    return f"{choice['blocks']}/{choice['of']} {way if choice['blocks'] else 'none'}"


def noise(rounds: Sequence[Round]) -> float:
    """Returns the 90th percentile of how much two recomputes of a prompt differ, as a share."""
    off = sorted(abs(seconds(one.never[0]) / seconds(one.never[1]) - 1) for one in rounds)
    return off[math.ceil(0.9 * len(off)) - 1]


def meeting(rounds: Sequence[Round]) -> float:
    """Returns by which part of the predicted blocks both ends met elsewhere: the median; or 0."""
    met = [one[:2] for each in rounds for one in each.auto["meetings"]]
    off = [abs(blocks / predicted - 1) for predicted, blocks in met]
    return statistics.median(off) if off else 0.0


def overall(cells: Sequence[Mapping[str, Any]], aa_p90: float) -> dict[str, float]:
    """Returns the figures over all cells.

    Args:
        cells: The figures of each.
        aa_p90: The noise.
    """
    ratios = [one["auto_vs_min"] for one in cells]
    near = [one["auto_vs_min"] for one in cells if one["rate"] in GAIN_RATES]
    return {
        "cells_within": round(sum(one <= ALLOWED + aa_p90 for one in ratios) / len(ratios), 3),
        "worst": max(ratios),
        "gain": round(statistics.geometric_mean(near), 3),
    }


def after_step(answers: Sequence[Answer], cell_of_rate: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how many requests came late after a change of the rate.

    Args:
        answers: Of `auto`, in their order.
        cell_of_rate: The figures of the cell with such prompts at the new rate.
    """
    best_s = min(cell_of_rate["never_s"], cell_of_rate["always_s"])
    ratios = [round(seconds(one) / best_s, 2) for one in answers]
    worse = [one > WORSE for one in ratios]
    return {
        "worse": sum(worse),
        "adapted_after": len(list(itertools.takewhile(bool, worse))),
        "requests": len(ratios),
        "ratios": ratios,
        "decided": [_short(one["choices"][-1]) for one in answers if one["choices"]],
    }


def missed(line: Mapping[str, Any]) -> list[str]:
    """Returns the targets that a result misses."""
    return [
        f"{name} is {line[name]}, the target is {sign} {bound}"
        for name, (sign, bound) in TARGETS.items()
        if (line[name] < bound if sign == ">=" else line[name] > bound)
    ]
