"""`dalsegno bench first-token`: its plan, its figures, and how it limits a disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from dalsegno_bench.vllm import first_token as bench
from dalsegno_bench.vllm import first_token_figures as figures
from dalsegno_bench.vllm import throttle
from dalsegno_bench.vllm.first_token_figures import Round
from dalsegno_bench.vllm.first_token_plan import FULL, QUICK, Cell, Plan

CELL = Cell(1.0, 3072, 0.5)


def answer(first_token_s: float, token: int = 7, **changes: Any) -> dict[str, Any]:
    usual = {"first_token_s": [first_token_s], "answers": [[token]], "load_failed_blocks": 0}
    return {**usual, "choices": [], "loads": [], "meetings": [], **changes}


def choice(blocks: int, *, in_step: bool = False) -> dict[str, Any]:
    predicted = {"predicted_s": 1.0, "computed_s": 2.0, "loaded_s": 1.5}
    return {"blocks": blocks, "of": 48, "in_step": in_step, "front": 0, **predicted}


def asked(never: tuple[float, float], always: float, auto: float) -> Round:
    return Round((answer(never[0]), answer(never[1])), answer(always), answer(auto))


def test_a_cell_compares_the_median_of_auto_with_the_better_policy() -> None:
    # One slow round changes no median.
    rounds = [asked((2.0, 2.2), 3.0, 2.0), asked((9.0, 9.0), 9.0, 9.0), asked((2.0, 2.0), 3.0, 2.2)]
    result = figures.cell(CELL, rounds)
    assert (result["never_s"], result["always_s"], result["auto_s"]) == (2.1, 3.0, 2.2)
    assert result["auto_vs_min"] == 1.048
    assert result["decided"] == []


def test_a_cell_reports_decisions_and_loads_that_failed_or_came_from_memory() -> None:
    auto = [
        answer(1.0, choices=[choice(0), choice(48, in_step=True)], load_failed_blocks=48),
        answer(1.0, choices=[choice(0)]),
        answer(1.0, choices=[choice(1)], loads=[["dram", 1, 0.1, 0.1]]),
    ]
    two = (answer(1.0), answer(1.0))
    always = answer(1.0, loads=[["log", 3 << 20, 0.1, 0.5]])
    result = figures.cell(CELL, [Round(two, always, one) for one in auto])
    assert result["decided"] == ["48/48 step", "0/48 none", "1/48 ahead"]
    assert result["auto_failed_blocks"] == 48
    assert result["always_failed_blocks"] == 0
    assert result["from_memory"] == 1
    assert result["computed_s"] == 2.0
    assert result["always_mib_per_s"] == 6.0


def test_noise_is_how_much_two_recomputes_of_a_prompt_differ() -> None:
    rounds = [asked((1.0, 1.0), 1.0, 1.0) for _ in range(8)]
    rounds += [asked((1.1, 1.0), 1.0, 1.0), asked((3.0, 1.0), 1.0, 1.0)]
    assert figures.noise(rounds) == pytest.approx(0.1)


def test_noise_widens_what_counts_as_within_but_not_the_worst() -> None:
    cells = [{"rate": rate, "auto_vs_min": ratio} for rate, ratio in ((4.0, 1.08), (1.0, 0.5))]
    assert figures.overall(cells, 0.0) == {"cells_within": 0.5, "worst": 1.08, "gain": 0.5}
    assert figures.overall(cells, 0.05)["cells_within"] == 1.0


def test_requests_after_a_step_count_until_the_last_late_one() -> None:
    cell = {"never_s": 2.0, "always_s": 1.0}
    answers = [answer(2.0), answer(1.9), answer(1.2), answer(1.4), answer(1.0)]
    result = figures.after_step(answers, cell)
    assert (result["worse"], result["adapted_after"], result["requests"]) == (3, 2, 5)


def test_the_meeting_is_off_by_a_part_of_the_predicted_blocks() -> None:
    two = (answer(1.0), answer(1.0))
    met = [[[10, 11.0, 5]], [[10, 8.0, 8], [40, 40.0, 2]], []]
    rounds = [Round(two, answer(1.0), answer(1.0, meetings=one)) for one in met]
    assert figures.meeting(rounds) == pytest.approx(0.1)
    assert figures.meeting(rounds[2:]) == 0.0


def test_missed_targets_are_named_with_their_bounds() -> None:
    good = {"cells_within": 1.0, "worst": 1.1, "gain": 0.9}
    good |= {"after_step": 2, "beside": 0.3, "meeting": 0.1}
    assert figures.missed(good) == []
    bad = {**good, "cells_within": 0.9, "after_step": 6}
    assert figures.missed(bad) == [
        "cells_within is 0.9, the target is >= 0.95",
        "after_step is 6, the target is <= 2",
    ]


def test_answers_differ_if_one_policy_has_other_tokens() -> None:
    same = (answer(1.0), answer(2.0))
    assert not Round(same, answer(1.0), answer(3.0)).differs
    assert Round(same, answer(1.0, token=8), answer(3.0)).differs


def test_the_full_form_has_every_rate_length_and_hit_rate() -> None:
    assert len(FULL.cells) == len(set(FULL.cells)) == 22
    assert FULL.rounds >= 5
    assert FULL.rates == [4.0, 2.0, 1.0, 0.5, 0.25]
    assert len(QUICK.cells) == 6
    assert QUICK.rounds >= 3
    # The changes of the rate are compared with these.
    for form in (FULL, QUICK):
        assert {Cell(4.0, 1024, 1.0), Cell(0.25, 1024, 1.0)} <= set(form.cells)


def test_a_plan_stores_each_document_once() -> None:
    plan = Plan(QUICK)
    stored = plan.stored
    assert len({tuple(one[:32]) for one in stored}) == len(stored)
    assert sum(map(len, stored)) < plan.tokens
    assert len(plan.rounds[QUICK.cells[0]]) == QUICK.rounds
    halves = plan.rounds[Cell(1.0, 1024, 0.5)]
    assert {one.stored for one in halves} == {512}
    assert Plan(QUICK).stored == stored


def test_a_machine_without_the_controller_is_reported_with_exit_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(throttle, "ROOT", tmp_path / "blkio")
    assert bench.main(["--dir", str(tmp_path)]) == 2
    assert "blkio" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_limit_names_the_disk_of_a_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices, disk = tmp_path / "devices", tmp_path / "disk"
    (disk / "part").mkdir(parents=True)
    (disk / "dev").write_text("8:0\n", encoding="ascii")
    devices.mkdir()
    monkeypatch.setattr(throttle, "DEVICES", devices)
    name = throttle.device(tmp_path)
    assert ":" in name
    (disk / "part" / "partition").write_text("1\n", encoding="ascii")
    (devices / name).symlink_to(disk / "part")
    assert throttle.device(tmp_path) == "8:0"


def test_each_process_has_the_limit_for_itself_and_groups_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "ROOT", tmp_path)
    # The files of a group go with its folder.
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)
    with throttle.Throttle(tmp_path) as group:
        group.add(12)
        group.limit(4096)
        group.add(13)
        for number in ("12", "13"):
            folder = tmp_path / f"dalsegno-first-token-{number}"
            assert (folder / "cgroup.procs").read_text(encoding="ascii") == number
            limit = (folder / throttle.LIMIT).read_text(encoding="ascii")
            assert limit == f"{throttle.device(tmp_path)} 4096\n"
    # What was left in the groups is in the root group again.
    assert [one.name for one in tmp_path.iterdir()] == ["cgroup.procs"]
    assert (tmp_path / "cgroup.procs").read_text(encoding="ascii") == "13"
