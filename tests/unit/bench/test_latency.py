"""`dalsegno bench latency`: what acceptance reads, from made-up samples, and a tiny run."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest

from dalsegno_bench.disk import latency as bench

WAYS = ("put", "get")


def figures(ours_us: list[int], file_us: list[int]) -> bench.Figures:
    """Rounds of 100 calls of which the slowest takes ten times as long; a timeout doubles all."""
    made = bench.Figures()
    contenders = {"dalsegno": ours_us, "dalsegno_timeout": [2 * one for one in ours_us]}
    for contender, rounds in (contenders | {"file": file_us}).items():
        for way, size in itertools.product(WAYS, bench.SIZES):
            for spent in rounds:
                made.rounds[contender, f"{way} {size}"].append(
                    [spent * 1000] * 99 + [spent * 10_000]
                )
    return made


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    # A slow round of both changes no ratio.
    result = json.loads(json.dumps(bench.report(figures([30, 900, 45], [20, 600, 15]), [0.5, 1.5])))
    for way, size in itertools.product(WAYS, bench.SIZES):
        assert result[f"{way}_p50_{size}"] == result[f"{way}_p99_{size}"] == 1.5
        assert result[f"{way}_p50_{size}_timeout"] == result[f"{way}_p99_{size}_timeout"] == 3.0
        assert result["us"]["dalsegno"][f"{way}_p50_{size}"] == 45.0
        assert result["us"]["file"][f"{way}_p99_{size}"] == 200.0
    assert (result["rounds"], result["load"]) == (3, [0.5, 1.5])


def test_every_call_of_every_contender_is_timed_once() -> None:
    seen: dict[str, list[int]] = {"one": [], "two": []}
    calls = {name: numbers.append for name, numbers in seen.items()}
    spent = bench.take_turns(calls, range(37))
    assert seen == {"one": list(range(37)), "two": list(range(37))}
    assert {name: len(samples) for name, samples in spent.items()} == {"one": 37, "two": 37}


@pytest.mark.parametrize("more", [[], ["--reuse-files", "--index", "lsm"]])
def test_a_tiny_run_has_every_figure_and_leaves_no_file(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        os.close(os.open(tmp_path / "direct", os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
    except OSError:
        pytest.skip("no direct I/O here")
    (tmp_path / "direct").unlink()
    arguments = ["--rounds", "2", "--calls", "10", "--large-calls", "2", *more]
    assert bench.main([*arguments, "--dir", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    keys = {
        f"{way}_{name}_{size}"
        for way, name, size in itertools.product(WAYS, bench.PERCENTILES, bench.SIZES)
    }
    assert {key for key in result if key.startswith(WAYS) and not key.endswith("timeout")} == keys
    assert result["us"].keys() == {"dalsegno", "dalsegno_timeout", "file"}
    assert min(min(one.values()) for one in result["us"].values()) > 0
    assert list(tmp_path.iterdir()) == []
