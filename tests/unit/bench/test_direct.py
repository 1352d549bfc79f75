"""`dalsegno bench direct`: what acceptance reads, and loads without an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from dalsegno_bench.index import program
from dalsegno_bench.vllm import direct as bench


def answer(ttft_s: float, cpu_s: float) -> dict[str, float]:
    return {"ttft_s": ttft_s, "cpu_s": cpu_s, "loaded_bytes": float(1 << 20), "step_loads": 1.0}


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    # A slow round of both changes no ratio.
    spent = {
        "direct": [answer(0.1, 0.2), answer(5.0, 0.2), answer(0.1, 0.2)],
        "tiered": [answer(0.2, 0.4), answer(10.0, 0.4), answer(0.1, 0.4)],
    }
    figures, ratios = bench._figures("pool", spent, 10**9)
    assert ratios == [0.5, 0.5, 1.0]
    assert figures["ttft_pool_vs_tiered"] == 0.5
    assert figures["pool_direct"] == {
        "ttft_ms": 100.0,
        "cpu_s_per_gb": 0.2,
        "loaded_mib": 1.0,
        "step_loads": 1.0,
    }


def test_a_byte_from_the_pool_is_copied_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "PIECES", (10, 100))
    figures = bench.pieces(tmp_path)
    assert figures["copies_per_byte"] == 1.0
    assert set(figures["load_us_per_piece"]) == {"10", "100"}


def test_how_loads_are_planned_is_what_the_program_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = tmp_path / "program"
    binary.write_text("#!/bin/sh\necho '{\"100\": 0.123456}'\n", encoding="utf-8")
    binary.chmod(0o755)
    monkeypatch.setattr(program, "build", lambda _: binary)
    assert bench.plan() == {"plan_us_per_piece": {"100": 0.1235}}
    monkeypatch.setattr(program, "build", lambda _: None)
    assert bench.plan() == {"plan_us_per_piece": None}
