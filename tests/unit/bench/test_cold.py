"""`dalsegno bench cold`: its ratios, from made-up runs, and a tiny run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dalsegno_bench.pool import cold


def test_a_cold_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    figures = cold.Figures()
    for contender, speeds in (
        ("in_process", (2.0, 0.1, 4.0)),
        ("serve_4k", (1.0, 0.1, 3.0)),
        ("serve_2m", (2.0, 0.1, 3.0)),
    ):
        for readers in (1, 8):
            for speed in speeds:
                figures.runs[contender, readers].append(cold.Run(speed, 0.5, 1.0))
    result = figures.result()
    assert result["cold_ratio_4k_1"] == result["cold_ratio_4k_8"] == 0.75
    assert result["cold_ratio_2m_1"] == 1.0
    assert result["cold_ratio_2m_8_range"] == [0.75, 1.0]
    assert {row["cpu_s_per_gb"] for row in result["contenders"]} == {0.5}


def test_readers_share_the_blocks_of_a_prompt() -> None:
    assert cold.parts(512, 1) == [(0, 512)]
    assert cold.parts(20, 8)[:2] == [(0, 2), (2, 4)]
    assert cold.parts(20, 8)[-1] == (14, 16)


@pytest.mark.slow
def test_a_tiny_cold_run_reads_all_blocks_from_the_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--mib", "32", "--pool-mib", "32", "--block-kib", "512"]
    assert cold.main(["--rounds", "1", "--dir", str(tmp_path), *sizes]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {row["cold"] for row in result["contenders"] if row["contender"] == "in_process"} == {1}
    assert result["cold_ratio_2m_1"] > 0
    assert list(tmp_path.iterdir()) == []
