"""Everything that CI runs, a few make targets at a time (tools/suite.py)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.checkout import ROOT, load_tool

MAKEFILE = """
quick: ; @echo quick was here; touch other.txt
slow: ; @until test -e other.txt; do sleep 0.05; done; sleep 1; echo done > slow.txt
after: ; @cat slow.txt
shaky: ; @echo 'unstable: tests/a.py::test_b'
wrong: ; @touch other.txt; echo it went wrong; exit 3
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module over a Makefile of our own."""
    module = load_tool("suite")
    (tmp_path / "Makefile").write_text(MAKEFILE)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    # What make says to those below it is not for these.
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        monkeypatch.delenv(name, raising=False)
    return module


def steps(suite: Any, *rows: tuple[str, ...]) -> list[Any]:
    return [suite.Step(target, target, tuple(needs)) for target, *needs in rows]


def test_every_step_is_a_target_and_comes_after_what_it_needs() -> None:
    suite = load_tool("suite")
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+(?: [a-z-]+)*):", makefile, re.MULTILINE))
    known = {name for line in targets for name in line.split()}
    before: set[str] = set()
    for step in suite.STEPS:
        assert step.target in known
        assert before.issuperset(step.needs)
        before.add(step.target)


def test_a_step_waits_for_what_it_needs_and_others_run_meanwhile(
    suite: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = suite.run(steps(suite, ("slow",), ("after", "slow"), ("quick",)), 2)
    assert [cost.target for cost in costs] == ["quick", "slow", "after"]
    assert all(cost.passed for cost in costs)
    assert costs[1].wall_s >= 1
    assert "quick was here" in capsys.readouterr().out


def test_a_step_that_waits_takes_no_place_where_there_are_several(suite: Any) -> None:
    waits, computes = suite.Step("slow", "", waits=True), suite.Step("quick", "")
    assert suite.startable([waits], set(), [computes] * 2, 2) == waits
    assert suite.startable([computes], set(), [computes, waits], 2) == computes
    assert suite.startable([computes], set(), [computes] * 2, 2) is None
    for one, other in ((waits, computes), (computes, waits)):
        assert suite.startable([one], set(), [other], 1) is None
    # The first one ends only when the other one has run.
    costs = suite.run([waits, computes], 2)
    assert [cost.target for cost in costs] == ["quick", "slow"]


def test_no_step_starts_after_a_failure_and_running_steps_are_ended(
    suite: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = suite.run(steps(suite, ("slow",), ("wrong",), ("quick",)), 2)
    assert [(cost.target, cost.passed) for cost in costs] == [("wrong", False), ("slow", True)]
    shown = capsys.readouterr().out
    assert "it went wrong" in shown
    assert "quick was here" not in shown


def test_the_exit_code_says_whether_all_passed(
    suite: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite, "STEPS", steps(suite, ("wrong",), ("quick", "wrong")))
    monkeypatch.setattr("sys.argv", ["suite.py"])
    assert suite.main() == 1
    assert "FAILED wrong; not run: quick" in capsys.readouterr().out
    monkeypatch.setattr(suite, "STEPS", steps(suite, ("quick",)))
    assert suite.main() == 0
    assert re.search(r"^quick +\d+ +\d+  quick$", capsys.readouterr().out, re.MULTILINE)


def test_unstable_tests_are_listed_at_the_end_and_fail_nothing(
    suite: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite, "STEPS", steps(suite, ("shaky",), ("quick",)))
    monkeypatch.setattr("sys.argv", ["suite.py"])
    assert suite.main() == 0
    assert capsys.readouterr().out.endswith("suite: shaky: unstable: tests/a.py::test_b\n")


def test_naming_a_step_includes_the_steps_it_needs() -> None:
    suite = load_tool("suite")
    named = [step.target for step in suite.chosen(["run-python"])]
    needed = ["env-dev", "dev", "wheel", "build-rust-tests"]
    assert named == [*needed, "run-python"]
    with pytest.raises(SystemExit, match="no step nonsense; the steps are env-dev"):
        suite.chosen(["nonsense"])
