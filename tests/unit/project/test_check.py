"""What `make check` runs for a change (tools/check.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.checkout import ROOT, load_tool

HOUSE = [
    "tests/unit/test_house.py",
    "tests/unit/test_mutations.py",
    "tests/unit/project/test_language.py",
    "tests/unit/project/test_structure.py",
]


@pytest.fixture
def check() -> Any:
    return load_tool("check")


def planned(check: Any, *changed: str) -> dict[str, list[str]]:
    """Name of each job -> its command."""
    return {job.name: list(job.command) for job in check.plan(changed, changed)}


def python_tests(check: Any, *changed: str) -> list[str]:
    command = planned(check, *changed)["tests of Python"]
    return command[command.index("--no-header") + 1 :]


def test_no_change_runs_nothing(check: Any) -> None:
    assert check.plan([]) == []


def test_a_change_in_rust_runs_lints_and_the_unit_tests_of_its_crate(check: Any) -> None:
    jobs = planned(check, "crates/log/src/segment.rs", "crates/io/Cargo.toml")
    assert [*jobs] == [
        "format of Rust",
        "lints of Rust",
        "unit tests of io",
        "unit tests of log",
        "tests of Python",
    ]
    assert jobs["unit tests of log"][-3:] == ["-p", "dalsegno-log", "--lib"]
    assert jobs["tests of Python"][-len(HOUSE) :] == HOUSE


def test_a_changed_test_of_rust_runs_itself(check: Any) -> None:
    jobs = planned(check, "crates/log/tests/torn.rs", "crates/log/tests/common/mod.rs")
    assert jobs["test torn of log"][-2:] == ["--test", "torn"]
    assert not any("common" in name or "mod" in name for name in jobs)
    jobs = planned(check, "crates/log/tests/all/recovery.rs", "crates/log/tests/all/main.rs")
    assert jobs["test recovery of log"][-3:] == ["--test", "all", "recovery::"]
    assert not any("main" in name for name in jobs)


def test_the_crate_under_python_is_linted_and_not_tested(check: Any) -> None:
    jobs = planned(check, "crates/py/src/lib.rs")
    assert [*jobs] == ["format of Rust", "lints of Rust", "tests of Python"]


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("python/dalsegno/cli/show.py", ["tests/unit/cli"]),
        ("python/dalsegno/integrations/vllm/tier.py", ["tests/unit/integrations"]),
        ("python/dalsegno/_native.pyi", ["tests/unit/api"]),
        ("python/dalsegno/stats.py", ["tests/unit/api"]),
        ("bench/dalsegno_bench/disk/log.py", ["tests/unit/bench"]),
        ("bench/dalsegno_bench/faultbench/cell.py", ["tests/unit/bench", "tests/unit/faultbench"]),
        ("tools/env.py", ["tests/unit/project"]),
        ("docs/guides/vllm.md", ["tests/unit/project"]),
        ("tests/unit/cli/test_output.py", ["tests/unit/cli/test_output.py"]),
        ("tests/unit/bench/helper.py", ["tests/unit/bench"]),
        ("tests/far/gluster.py", ["tests/far"]),
        ("README.md", []),
    ],
)
def test_a_changed_file_runs_the_tests_of_what_it_is(
    check: Any, path: str, tests: list[str]
) -> None:
    assert python_tests(check, path) == [*HOUSE, *tests]


def test_a_folder_stands_for_the_tests_in_it(check: Any) -> None:
    changed = ("python/dalsegno/cli/show.py", "tests/unit/cli/test_output.py")
    assert python_tests(check, *changed) == [*HOUSE, "tests/unit/cli"]


def test_a_removed_test_is_not_run(check: Any) -> None:
    removed = "tests/unit/cli/test_output.py"
    (job,) = [job for job in check.plan([removed], []) if job.name == "tests of Python"]
    assert list(job.command[-len(HOUSE) :]) == HOUSE


@pytest.mark.parametrize("path", ["tools/env.py", "bench/pyproject.toml", "python/x/_y.pyi"])
def test_python_is_linted_and_type_checked_if_any_of_it_changed(check: Any, path: str) -> None:
    names = ["lints of Python", "format of Python", "types of Python", "tests of Python"]
    assert [*planned(check, path)] == names
    assert [*planned(check, "README.md")] == names[-1:]


def test_all_tests_that_the_table_names_are_there(check: Any) -> None:
    for _, tests in check.TESTS:
        assert (ROOT / tests).exists()


def test_untracked_and_uncommitted_files_are_changes(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "ROOT", tmp_path)
    (tmp_path / "kept").write_text("1")
    (tmp_path / "edited").write_text("1")
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], [*who, "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    (tmp_path / "edited").write_text("2")
    (tmp_path / "new").write_text("1")
    assert check.changed_files("main") == ["edited", "new"]
    with pytest.raises(SystemExit, match="git merge-base nowhere HEAD"):
        check.changed_files("nowhere")


def test_the_first_failure_ends_the_run(check: Any, capsys: pytest.CaptureFixture[str]) -> None:
    good = check.Job("good", (sys.executable, "-c", "print('quiet')"))
    bad = check.Job("bad", (sys.executable, "-c", "print('why'); exit(3)"))
    never = check.Job("never", (sys.executable, "-c", ""))
    assert check.run([good, bad, never]) == 1
    shown = capsys.readouterr().out
    assert "check: good: passed after" in shown
    assert "check: bad: FAILED after" in shown
    assert "why" in shown
    assert "quiet" not in shown
    assert "never" not in shown
    assert check.run([good]) == 0
