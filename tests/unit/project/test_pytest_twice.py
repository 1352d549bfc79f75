"""Tests that fail run once more, and are reported as unstable if they pass then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.checkout import ROOT, load_tool

# `test_once` fails unless it ran before.
TESTS = """
from pathlib import Path

def test_once():
    ran = Path(__file__).with_name("ran")
    before = ran.exists()
    ran.touch()
    assert before

def test_never():
    assert {never}

def test_other():
    with Path(__file__).with_name("others").open("a") as file:
        file.write("other ")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with tools/pytest_twice.py and no settings of pytest."""
    (tmp_path / "tools").mkdir()
    tool = ROOT / "tools" / "pytest_twice.py"
    (tmp_path / "tools" / tool.name).write_text(tool.read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def ran(folder: Path, never: str = "True", **environment: str) -> tuple[int, str]:
    """Runs the tests of a project; returns the exit code and what was printed."""
    (folder / "test_it.py").write_text(TESTS.format(never=never))
    names = ("DALSEGNO_DOSE", "PYTEST_ONCE", "PYTEST_ADDOPTS")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "tools/pytest_twice.py", "name", sys.executable, "test_it.py"],
        cwd=folder,
        env={**kept, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_test_that_passes_the_second_time_is_unstable_and_fails_nothing(folder: Path) -> None:
    code, shown = ran(folder)
    assert code == 0
    assert shown.endswith("unstable: test_it.py::test_once\n")
    assert (folder / "others").read_text() == "other ", "what passed does not run again"


def test_a_second_failure_fails_the_run(folder: Path) -> None:
    code, shown = ran(folder, never="False")
    assert code == 1
    assert shown.endswith("unstable: test_it.py::test_once\n")
    assert ran(folder, never="False")[1].count("unstable: ") == 0, "it failed in an earlier run"


@pytest.mark.parametrize("environment", [{"DALSEGNO_DOSE": "long"}, {"PYTEST_ONCE": "1"}])
def test_runs_that_look_for_unstable_tests_have_no_second_run(
    environment: dict[str, str], folder: Path
) -> None:
    code, shown = ran(folder, **environment)
    assert code == 1
    assert "unstable: " not in shown


def test_a_file_that_cannot_be_read_is_no_failure_of_a_test(folder: Path) -> None:
    code, shown = ran(folder, never="(")
    assert code == 2
    assert "running again" not in shown


def test_the_suite_knows_how_the_line_of_an_unstable_test_begins() -> None:
    assert load_tool("suite").UNSTABLE == load_tool("pytest_twice").UNSTABLE
