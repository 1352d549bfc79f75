"""`dalsegno faultbench`: our stores are clean, and a broken one is caught, whatever is broken."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.checkout import ROOT
from tests.unit.stores import Run

from dalsegno_bench.faultbench import cell, filling, living, remote, stores, suite

FAULTY = "tests.unit.faultbench.faulty_stores"

Probed = Callable[[str, str], cell.Outcome]


@pytest.fixture
def probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Probed]:
    """Runs one probe on one store."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    origins: list[remote.Origin] = []

    def probe(store: str, name: str) -> cell.Outcome:
        adapter = stores.find(store).adapter
        origins.append(remote.Origin(sys.executable, adapter, tmp_path / "messages"))
        directory = tmp_path / "cell"
        directory.mkdir()
        return cell.run(suite.probe_named(name), origins[-1], directory, seed=3)

    yield probe
    for origin in origins:
        origin.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", [probe.name for probe in suite.PROBES])
def test_our_store_is_clean(name: str, probed: Probed) -> None:
    outcome = probed("dalsegno", name)
    if outcome.skipped and name == "no-space":
        pytest.skip(outcome.skipped)
    assert outcome.correct, outcome


@pytest.mark.parametrize("name", ["kill", "bit-flip"])
def test_our_store_with_an_on_disk_index_is_clean(name: str, probed: Probed) -> None:
    assert probed("dalsegno-lsm", name).correct


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "name", "count"),
    [
        ("Wrong", "kill", "wrong"),
        ("Forgetful", "kill", "lost"),
        ("Hanging", "kill", "hung"),
        ("Refusing", "pinned", "hung"),
        ("Leaking", "kill", "leaked"),
        ("Unbounded", "overrun", "leaked"),
        ("Sound", "bit-flip", "wrong"),
        ("Sound", "swapped", "wrong"),
        ("Sound", "truncation", "wrong"),
        ("Sound", "zero-length", "wrong"),
        ("Jammed", "staging", "hung"),
        ("Sulking", "no-space", "lost"),
        ("Slow", "full-cost", "hung"),
        ("Unaware", "forgotten", "leaked"),
    ],
)
def test_a_broken_store_is_caught(
    store: str, name: str, count: str, probed: Probed, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store == "Hanging":
        monkeypatch.setattr(cell, "CALL_S", 2.0)
    monkeypatch.setattr(living, "STAGED_LIMIT_S", 3.0)
    monkeypatch.setattr(filling, "SLOW_PUT_S", 1.0)
    outcome = probed(f"{FAULTY}:{store}", name)
    if outcome.skipped and name == "no-space":
        pytest.skip(outcome.skipped)
    assert getattr(outcome, count) > 0, outcome
    assert not outcome.correct
    assert outcome.notes


def test_a_store_whose_files_hide_its_blocks_is_not_reported_as_correct(probed: Probed) -> None:
    outcome = probed(f"{FAULTY}:Hidden", "bit-flip")
    assert "nothing was damaged" in outcome.skipped
    assert not outcome.correct


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kill", "forgotten"])
def test_a_sound_store_passes(name: str, probed: Probed) -> None:
    assert probed(f"{FAULTY}:Sound", name).correct


def test_a_crash_is_reported_with_its_signal(probed: Probed) -> None:
    assert "the process died in exists: SIGSEGV" in probed(f"{FAULTY}:Crashing", "pinned").notes


def test_the_json_has_every_count_by_store_and_probe(run: Run) -> None:
    result = run(
        "faultbench", "--store", "file-per-object", "--store", "vllm-fs", "--probe", "bit-flip",
        "--json",
    )  # fmt: skip
    assert result.code == 0, "what others do is no failure of ours"
    found = json.loads(result.out)
    assert found["file-per-object"]["bit-flip"]["wrong"] == 6
    assert {"wrong", "lost", "hung", "leaked", "correct"} <= found["file-per-object"][
        "bit-flip"
    ].keys()
    if "absent" in found["vllm-fs"]:
        assert "vllm is not installed" in found["vllm-fs"]["absent"]


def test_a_failing_cell_names_the_command_that_reproduces_it(run: Run) -> None:
    result = run("faultbench", "--store", "file-per-object", "--probe", "swapped", "--seed", "7")
    command = next(line for line in result.out.splitlines() if line.startswith("  $ dalsegno "))
    again = run(*command.split()[2:])
    assert again.out == result.out
    assert "6 wrong" in result.out


def test_an_error_about_an_unknown_name_lists_the_known_ones(run: Run) -> None:
    for option, words in (("--store", "there are"), ("--probe", "there are"), ("--python", "no ")):
        result = run("faultbench", option, "nothing")
        assert result.code == 2
        assert words in result.err


def test_a_finding_in_our_store_sets_the_exit_code() -> None:
    placed = stores.Placed(stores.STORES["dalsegno"], sys.executable)
    clean = suite.Column(placed, outcomes={"kill": cell.Outcome(), "x": cell.Outcome(skipped="?")})
    assert not suite.failed([clean])
    assert suite.failed([suite.Column(placed, outcomes={"kill": cell.Outcome(lost=1)})])
    other = stores.Placed(stores.STORES["vllm-fs"], sys.executable)
    assert not suite.failed([suite.Column(other, outcomes={"kill": cell.Outcome(lost=1)})])
