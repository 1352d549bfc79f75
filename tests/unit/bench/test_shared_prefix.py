"""`dalsegno bench shared-prefix`: what fits, which sample counts, and a small run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from dalsegno_bench.eviction import conversations, prefixes
from dalsegno_bench.eviction import shared_prefix as bench
from dalsegno_bench.eviction.prefixes import Geometry

GEOMETRY = Geometry(segments=31, segment_prompts=20)


def result(shares: dict[int, float], **changed: int) -> bench.Result:
    usual = {"max_loss_blocks": 6, "put_bytes": 1000, "relocated_bytes": 20}
    return bench.Result(GEOMETRY, shares, **(usual | changed))


def test_the_prompts_that_fit_leave_two_segments_free() -> None:
    assert GEOMETRY.capacity_prompts == 620
    assert (GEOMETRY.fit_prompts, GEOMETRY.fit_blocks, GEOMETRY.segment_blocks) == (580, 3480, 120)


def test_samples_cover_the_last_two_capacities_and_the_one_after_reopening() -> None:
    points = bench.sample_points(GEOMETRY, 20)
    before, after = points[:20], points[20:]
    assert (len(before), len(after)) == (20, 10)
    assert (before[0], before[-1]) == (2 * 620 + 62, 4 * 620)
    assert (after[0], after[-1]) == (4 * 620 + 62, 5 * 620)
    # The newest prompts that fit were put by then, so a share of 1 is possible.
    assert min(points) >= GEOMETRY.fit_prompts
    assert len(bench.sample_points(GEOMETRY, 1)) == 2


def test_the_least_sample_counts_apart_for_the_time_after_reopening() -> None:
    end = 4 * GEOMETRY.capacity_prompts
    cells = {
        bench.Cell("memory", "whole", "get"): result({end - 9: 0.9, end: 0.95, end + 9: 0.97}),
        bench.Cell("lsm", "first", "nothing"): result(
            {end: 1.0, end + 1: 0.5}, max_loss_blocks=300, relocated_bytes=250
        ),
    }
    lost = conversations.Outcome(max_loss_blocks=40)
    lost.judge(3, 0, fits=True)
    lost.judge(3, 7, fits=True)
    lost.judge(4, 36, fits=False)
    output = json.loads(json.dumps(bench.report(cells, {"memory get": lost}, [0.5, 1.5])))
    assert output == {
        "bench": "shared-prefix",
        "reachable_share": {"memory whole get": 0.9, "lsm first nothing": 1.0},
        "reachable_share_reopened": {"memory whole get": 0.97, "lsm first nothing": 0.5},
        "min_reachable_share": 0.5,
        "max_loss_blocks": 300,
        "loss_blocks": {"memory whole get": 6, "lsm first nothing": 300},
        "bytes_relocated_per_put_byte": {"memory whole get": 0.02, "lsm first nothing": 0.25},
        "fit_blocks": {"memory": 3480, "lsm": 3480},
        "segment_blocks": {"memory": 120, "lsm": 120},
        "conversations_lost": 1,
        "conversations": {
            "memory get": {"fit": 1, "lost": 1, "most_blocks_lost": 7, "max_loss_blocks": 40}
        },
        "load": [0.5, 1.5],
    }


def test_conversations_fit_with_a_third_to_spare() -> None:
    pause = conversations.pause_of(GEOMETRY)
    others = conversations.CONVERSATIONS * pause * prefixes.PROMPT_BLOCKS
    turns = conversations.CONVERSATIONS * conversations.TURNS * prefixes.PROMPT_BLOCKS
    assert pause > 0
    assert len(prefixes.ROOT) + turns + others <= GEOMETRY.fit_blocks * 2 / 3
    assert conversations.pause_of(Geometry(4, 10)) == 0


@pytest.mark.parametrize("index", ["memory", "lsm"])
def test_a_segment_holds_as_many_prompts_as_its_bytes(index: str, tmp_path: Path) -> None:
    # A prompt is a header of 4 KiB and 6 blocks of 16 KiB.
    found = prefixes.calibrate(prefixes.Setup(tmp_path, index, 12 << 20, 16 << 10))
    assert found.segment_prompts == (1 << 20) // (100 << 10)
    assert 4 <= found.segments <= 12
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_too_small_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--capacity-mib", "2", "--dir", str(tmp_path)]) == 2
    assert "capacity" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_small_run_has_every_cell_and_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--capacity-mib", "8", "--samples", "2", "--index", "memory"]
    assert bench.main([*arguments, "--dir", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    cells = {f"memory {puts} {touch}" for puts in bench.PUTS for touch in get_args(bench.Touch)}
    assert result["reachable_share"].keys() == result["reachable_share_reopened"].keys() == cells
    assert 0 <= result["min_reachable_share"] <= 1
    assert result["min_reachable_share"] > 0.5
    assert result["bytes_relocated_per_put_byte"].keys() == cells
    assert result["max_loss_blocks"] >= max(result["loss_blocks"].values())
    assert result["conversations"].keys() == {"memory get", "memory put"}
    assert list(tmp_path.iterdir()) == []
