"""Directories that the commands over far locations do not take for one."""

from __future__ import annotations

from pathlib import Path

from tests.unit.stores import Run


def test_an_empty_directory_and_a_store_are_refused_with_what_is_expected(
    tmp_path: Path, path: Path, run: Run
) -> None:
    (tmp_path / "empty").mkdir()
    for command in ("info", "ls", "verify"):
        answer = run(command, tmp_path / "empty")
        assert answer.code == 2
        assert "no Dalsegno store" in answer.err
    answer = run("prune", tmp_path / "empty")
    assert answer.code == 2
    assert "has no folder <store id>-<number> of a writer" in answer.err
    answer = run("prune", path)
    assert answer.code == 2
    assert "holds a store and is no far location" in answer.err
    answer = run("prune", tmp_path / "missing")
    assert answer.code == 2
    assert "missing" in answer.err


def test_looking_at_a_store_leaves_no_file_in_it(path: Path, run: Run) -> None:
    before = sorted(path.rglob("*"))
    for command in ("info", "ls", "verify"):
        assert run(command, path).code == 0
    assert sorted(path.rglob("*")) == before
