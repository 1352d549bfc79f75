"""`dalsegno bench far`: what acceptance reads, from made-up samples, and a tiny run."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from tests.dose import compiles_a_bench

from dalsegno_bench.far import far as bench
from dalsegno_bench.far import metadata, scale, stopped
from dalsegno_bench.far.fresh import quantile
from dalsegno_bench.far.transfer import Figures
from dalsegno_bench.machine.speed import Sample

# The figures that acceptance reads, by part.
KEYS = {
    "raw": {"read_vs_raw", "write_vs_raw", "cpu_over_raw_s_per_gb", "raw_cells", "pilot"},
    "workers": {"workers", "raw_workers"},
    "metadata": {"metadata", "metadata_absent"},
    "stopped": {"log_p99_stopped_vs_working", "put_max_ms_stopped", "put_max_ms_working"},
    "fresh": {"fresh_p50_s", "fresh_p99_s", "fresh_samples"},
    "scale": {"scale", "scale_x10"},
}


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    figures = Figures()
    # A slow round of both changes no ratio.
    for ours, raw in ((0.9, 1.0), (0.09, 0.1), (0.8, 1.0)):
        figures.add("ours", "read", Sample(ours, 0.3))
        figures.add("raw", "read", Sample(raw, 0.2))
        figures.add("raw", "write", Sample(raw, 0.1))
        figures.add("ours", "write", Sample(2 * raw, 0.05))
    result = json.loads(json.dumps(figures.result()))
    assert (result["read_vs_raw"], result["write_vs_raw"]) == (0.9, 2.0)
    assert result["cpu_over_raw"] == {"read": 0.1, "write": -0.05}
    assert result["cpu_over_raw_s_per_gb"] == 0.1, "the costlier direction counts"
    assert result["ours_read_rounds"] == [0.9, 0.09, 0.8]


def test_operations_are_counted_per_gigabyte_of_their_direction() -> None:
    counted = {
        "put": Counter({"WRITE": 100, "LOOKUP": 6, "CREATE": 4}),
        "get": Counter({"READ": 50, "OPEN": 5}),
    }
    row = metadata.row("one", 3, {"put": 2_000_000_000, "get": 1_000_000_000}, counted)
    assert row["files_per_gb"] == 1.5
    assert (row["put_metadata_per_gb"], row["put_data_per_gb"]) == (5, 50)
    assert (row["get_metadata_per_gb"], row["get_data_per_gb"]) == (5, 50)
    assert row["put_operations"] == {"LOOKUP": 3, "CREATE": 2}


def test_a_stopped_directory_is_compared_round_by_round() -> None:
    phases: dict[str, list[stopped.Phase]] = {name: [] for name in stopped.PHASES}
    for seconds in (0.001, 0.1, 0.002):
        for name, factor in (("working", 1.0), ("stopped", 1.05), ("none", 1.0)):
            phase = stopped.Phase()
            phase.gets = {"log": [seconds * factor], "dram": [seconds]}
            phase.puts = [seconds, 2 * seconds]
            phases[name].append(phase)
    result = stopped.summary(phases)
    assert result["log_p99_stopped_vs_working"] == 1.05
    assert result["dram_p99_stopped_vs_none"] == 1.0
    assert (result["put_max_ms_stopped"], result["puts_stopped"]) == (200.0, 6)
    assert result["stopped_misses"] == 0


def test_a_quantile_is_one_of_the_values() -> None:
    values = [float(number) for number in range(1, 41)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 0.01)) == (20, 40, 1)


def test_only_what_grows_with_the_blocks_is_extrapolated() -> None:
    found = dict.fromkeys(scale.LINEAR, 2.5) | {"probe512_p99_us": 100}
    assert scale.extrapolated(found) == dict.fromkeys(scale.LINEAR, 25.0)


def test_a_directory_that_is_not_ours_has_no_servers_to_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--quick", "--only", "stopped", "--dir", str(tmp_path), "--local", str(tmp_path)]
    assert bench.main(words) == 1
    assert "leave out --dir" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@compiles_a_bench
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("cargo") is None, reason="the bench compiles two programs")
def test_a_tiny_run_on_a_directory_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = ("raw", "workers", "fresh", "scale")
    words = [word for part in parts for word in ("--only", part)]
    place = ["--dir", str(tmp_path), "--local", str(tmp_path)]
    assert bench.main(["--quick", "--rounds", "1", *words, *place]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set().union(*(KEYS[part] for part in parts)) <= result.keys()
    assert result["read_vs_raw"] > 0
    assert result["scale"]["blocks"] >= 100_000
    assert list(tmp_path.iterdir()) == []
