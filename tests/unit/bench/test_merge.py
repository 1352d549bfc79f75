"""The result of `dalsegno bench merge`: what acceptance reads, made up and of a tiny run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dalsegno_bench.disk import merge as bench


def figures(p99_ms: list[float]) -> bench.Figures:
    return bench.Figures(p99_ms=p99_ms, p50_ms=[1.0, 2.0, 3.0], put_s=4.0, cpu_s=5.0)


def test_a_ratio_compares_parts_that_ran_next_to_each_other() -> None:
    counts = {
        "on": {"lineages": 2, "extents": 5, "most_extents": 4},
        "off": {"lineages": 2, "extents": 400, "most_extents": 200},
    }
    facts = {"merged_bytes": 110, "put_bytes": 100, "merges": 7, "files": 9}
    # A slow part of both changes no ratio.
    both = {"on": figures([1.0, 60.0, 3.0]), "off": figures([2.0, 50.0, 3.0])}
    result = bench.report(both, counts, facts, [0.5, 1.5])
    output = json.loads(json.dumps(result))
    wanted = {
        "extents_per_lineage_max": 4,
        "extents_per_lineage_mean": 2.5,
        "rewritten_ratio": 1.1,
        "get_p99_ratio": 1.0,
        "cpu_s": 5.0,
        "files": 9,
        "load": [0.5, 1.5],
    }
    assert {name: output[name] for name in wanted} == wanted
    assert output["off"]["extents_per_lineage_max"] == 200


def test_the_percentile_is_a_sample_that_the_share_does_not_exceed() -> None:
    samples = [float(number) for number in range(100, 0, -1)]
    assert bench.percentile(samples, 0.99) == 100.0
    assert bench.percentile(samples, 0.5) == 51.0
    assert bench.percentile([7.0], 0.99) == 7.0


@pytest.mark.slow
def test_a_tiny_run_ends_in_few_extents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--blocks", "600", "--lineages", "4", "--parts", "2", "--index", "lsm"]
    assert bench.main([*arguments, "--dir", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["extents_per_lineage_max"] <= 4, result
    assert result["rewritten_ratio"] <= 1.3, result
    assert list(tmp_path.iterdir()) == []
