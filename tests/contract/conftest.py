"""A store of each subject or route, and a check of its files after the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.places import Place
from tests.contract.routes import Route, routes
from tests.contract.subjects import SUBJECTS, Box, Subject

import dalsegno


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a check on every subject, or on every one with files of its own."""
    if "subject" in metafunc.fixturenames:
        needs_files = "filed" in metafunc.fixturenames
        fitting = [subject for subject in SUBJECTS if subject.files or not needs_files]
        names = [subject.name for subject in fitting]
        metafunc.parametrize("subject", fitting, ids=names, scope="session")
    if "route" in metafunc.fixturenames:
        found = routes(metafunc.config.getoption("--engine") or "")
        if metafunc.definition.get_closest_marker("starts_engine"):
            found = [one for one in found if not one.variant]
        metafunc.parametrize("route", found, ids=[one.name for one in found], scope="session")


@pytest.fixture
def box(subject: Subject, tmp_path: Path) -> Iterator[Box]:
    """A directory. After the test, its store is clean unless the test damaged it."""
    made = Box(subject, tmp_path / "store")
    yield made
    if made.path.exists() and not made.damaged:
        assert subject.verify(made.path) == []


@pytest.fixture
def filed(box: Box) -> Box:
    """The box of a store with files; a test that uses it runs only on such stores."""
    return box


@pytest.fixture
def place(
    route: Route, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """A directory that a route opens. After the test, it is clean unless the test damaged it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Place(route, tmp_path / "store", request.config.getoption("--engine") or "")
    yield made
    if made.directory.exists() and not made.damaged:
        assert dalsegno.verify(str(made.directory))["findings"] == []
