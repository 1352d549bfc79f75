"""`dalsegno bench vllm-tier`: what acceptance reads, from made-up samples."""

from __future__ import annotations

import json

import pytest

from dalsegno_bench.vllm import vllm_tier as bench


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    # A slow round of both changes no ratio; the slowest call of a hundred takes ten times as long.
    rounds = {"off": [20, 600, 15], "on": [30, 900, 45]}
    samples: bench.Samples = {
        name: {call: [[us * 1000] * 98 + [us * 10_000] * 2 for us in spent] for call in ("step",)}
        for name, spent in rounds.items()
    }
    line = json.loads(json.dumps(bench.report(samples, [0.5, 1.5])))
    assert line["ratio"] == {"step_p50": 1.5, "step_p99": 1.5}
    assert line["us"]["off"] == {"step_p50": 20.0, "step_p99": 200.0}
    assert line["us"]["on"] == {"step_p50": 45.0, "step_p99": 450.0}
    assert (line["rounds"], line["load"]) == (3, [0.5, 1.5])


def test_without_vllm_the_bench_says_how_to_run_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)
    assert bench.main([]) == 1
    assert "make bench" in capsys.readouterr().err
