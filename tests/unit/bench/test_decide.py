"""`dalsegno bench decide`: what it asks, and which bounds a run misses."""

from __future__ import annotations

import pytest

from dalsegno_bench.first_token import decide as bench

LOCATED = [{"tier": ("dram", "log")[at % 2], "blocks": 500} for at in range(8)]


def test_only_a_99th_percentile_above_its_bound_is_missed() -> None:
    figures = {name: {"p50_us": most, "p99_us": most} for name, most in bench.BOUNDS_US.items()}
    assert bench.missed(figures) == []
    figures["locate"]["p99_us"] += 1
    assert bench.missed(figures) == ["locate"]


def test_the_runs_of_other_ranks_end_elsewhere() -> None:
    answers = bench.runs_of_ranks(LOCATED, 8)
    assert answers[0] == LOCATED
    assert len({answer[0]["blocks"] for answer in answers}) == 8
    assert {sum(run["blocks"] for run in answer) for answer in answers} == {4000}


@pytest.mark.parametrize("ranks", [1, 8])
def test_the_measured_decision_is_not_trivial(ranks: int) -> None:
    answers = bench.runs_of_ranks(LOCATED, ranks)
    assert bench.decide(bench.decider(), answers, 4000).blocks > 0


def test_a_figure_is_of_the_measured_calls() -> None:
    times = bench.Times()
    times.measure("nothing", lambda: None, 200)
    figure = times.figures()["nothing"]
    assert figure["calls"] == 200
    assert figure["p50_us"] <= figure["p99_us"]
