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


def test_a_step_starts_where_it_and_those_that_run_keep_the_cores_busy(suite: Any) -> None:
    part, whole = suite.Step("slow", "", cores=0.7), suite.Step("quick", "")
    most = suite.Step("after", "", cores=3)
    assert suite.startable([whole, part], set(), [whole, suite.Step("", "", cores=0.3)], 2) == part
    assert suite.startable([whole], set(), [part], 2) == whole
    assert suite.startable([whole, part], set(), [whole] * 2, 2) is None
    assert suite.startable([most], set(), [], 2) == most, "alone every step starts"
    for one, other in ((part, whole), (part, part)):
        assert suite.startable([one], set(), [other], 1) is None
    # The first one ends only when the other one has run.
    costs = suite.run([part, whole], 2)
    assert [cost.target for cost in costs] == ["quick", "slow"]


def test_no_step_keeps_more_cores_busy_than_there_are() -> None:
    suite = load_tool("suite")
    assert all(0 < step.cores <= suite.JOBS for step in suite.STEPS)


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
