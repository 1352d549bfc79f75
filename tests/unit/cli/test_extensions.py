"""Commands of other distributions: `bench` and `faultbench` with and without `dalsegno-bench`."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import pytest
from tests.unit.stores import Run

from dalsegno.cli import commands

NAMES = ["bench", "faultbench"]


@pytest.fixture
def without_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the second distribution: its entry points and its package."""
    monkeypatch.setattr(commands, "entry_points", lambda group: ())
    monkeypatch.setitem(sys.modules, "dalsegno_bench", None)


def install(monkeypatch: pytest.MonkeyPatch, name: str, target: str) -> None:
    """Lets one more distribution offer a command."""
    entry = EntryPoint(name, target, commands.GROUP)
    monkeypatch.setattr(commands, "entry_points", lambda group: (entry,))


@pytest.mark.parametrize(("name", "option"), [("bench", "[NAME]"), ("faultbench", "--probe")])
def test_with_the_second_distribution_a_command_explains_itself(
    name: str, option: str, run: Run
) -> None:
    answer = run(name, "--help")
    assert answer.code == 0
    assert option in answer.out
    assert "dalsegno-bench" not in answer.out


@pytest.mark.usefixtures("without_bench")
@pytest.mark.parametrize("name", NAMES)
def test_without_the_second_distribution_help_says_what_to_install(name: str, run: Run) -> None:
    answer = run(name, "--help")
    assert answer.code == 0
    assert "dalsegno-bench, which is not installed" in " ".join(answer.out.split())


@pytest.mark.usefixtures("without_bench")
@pytest.mark.parametrize("words", [["bench"], ["bench", "log", "--help"], ["faultbench", "--list"]])
def test_without_the_second_distribution_a_command_fails_with_what_to_install(
    words: list[str], run: Run
) -> None:
    answer = run(*words)
    assert (answer.code, answer.out) == (2, "")
    assert "dalsegno-bench, which is not installed here" in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.usefixtures("without_bench")
def test_both_commands_are_listed_without_the_second_distribution(run: Run) -> None:
    listed = run("--help").out
    assert [name for name in NAMES if f"\n  {name}  " not in listed] == []


def test_a_command_that_cannot_be_imported_fails_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "bench", "no_such_module:bench")
    broken = run("bench", "log")
    assert broken.code == 2
    assert "cannot be loaded from no_such_module:bench: ModuleNotFoundError" in broken.err
    assert run("--help").code == 0
    assert run("info", "--help").code == 0


def test_another_distribution_may_offer_a_command_but_not_replace_one_of_ours(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "more", "dalsegno_bench.command:bench")
    assert run("more").code == 0
    install(monkeypatch, "info", "no_such_module:info")
    assert "directory" in run("info", "--help").out
