"""The result of `dalsegno bench log`: the keys that acceptance reads, from made-up samples."""

from __future__ import annotations

import json

import pytest

from dalsegno_bench.disk import log as bench
from dalsegno_bench.machine.speed import Sample

BEST = {"read": 2.0, "write": 4.0}
SPEEDS = {
    ("dalsegno", "512k"): {"read": 1.8, "write": 3.0},
    ("dalsegno", "8m"): {"read": 2.2, "write": 5.0},
    ("file_per_object", "512k"): {"read": 1.0, "write": 2.0},
    ("file_per_object", "8m"): {"read": 1.5, "write": 1.0},
}


def rounds(figures: bench.Figures, contender: str, measure: str, speed: float, cpu: float) -> None:
    """Three samples around a median."""
    for factor in (0.5, 1.0, 10.0):
        figures.add(contender, measure, Sample(speed * factor, cpu * factor))


@pytest.fixture
def figures() -> bench.Figures:
    made = bench.Figures()
    for direction, speed in BEST.items():
        rounds(made, f"{direction} slow", f"fio_{direction}", speed / 2, 0.5)
        rounds(made, f"{direction} fast", f"fio_{direction}", speed, 0.01)
    for (contender, size), speeds in SPEEDS.items():
        for direction, speed in speeds.items():
            # 8 MiB cost less here: the costlier size is reported.
            rounds(made, contender, f"{direction}_{size}", speed, 0.2 if size == "512k" else 0.1)
    return made


def test_the_result_has_every_ratio_against_the_best_fio_cell(figures: bench.Figures) -> None:
    result = bench.report(figures, [0.5, 1.5])
    assert json.loads(json.dumps(result)) == {
        "bench": "log",
        "fio_read": "read fast",
        "fio_write": "write fast",
        "fio_read_gb_per_s": 2.0,
        "fio_write_gb_per_s": 4.0,
        "read_ratio_512k": 0.9,
        "read_ratio_8m": 1.1,
        "write_ratio_512k": 0.75,
        "write_ratio_8m": 1.25,
        "cpu_s_per_gb_read": 0.2,
        "cpu_s_per_gb_write": 0.2,
        "file_per_object": {
            "read_ratio_512k": 0.5,
            "read_ratio_8m": 0.75,
            "write_ratio_512k": 0.5,
            "write_ratio_8m": 0.25,
            "cpu_s_per_gb_read": 0.2,
            "cpu_s_per_gb_write": 0.2,
        },
        "fio_cpu_s_per_gb": {"read": 0.01, "write": 0.01},
        "load": [0.5, 1.5],
    }


def test_a_slow_round_changes_no_figure(
    figures: bench.Figures, capsys: pytest.CaptureFixture[str]
) -> None:
    calm = bench.report(figures, [])
    printed = capsys.readouterr().out
    for contender, measure in list(figures.samples):
        figures.add(contender, measure, Sample(0.001, 100.0))
        figures.add(contender, measure, Sample(1000.0, 0.0))
    assert bench.report(figures, []) == calm
    assert capsys.readouterr().out == printed
    assert "dalsegno 8m                     2.20        5.00" in printed
