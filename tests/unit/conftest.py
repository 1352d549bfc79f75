"""A small store on disk, and the command to look at it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.unit.stores import Answer, Run, fill

from dalsegno.cli import main


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process."""

    def call(*arguments: object) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(one) for one in arguments])
        result = capsys.readouterr()
        return Answer(int(stopped.value.code or 0), result.out, result.err)

    return call


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "store"
    fill(path)
    return path


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    """The directory of a store that is the test's own."""
    return Path(shutil.copytree(template, tmp_path / "store"))
