"""Which engine the tests are about, as each has an environment of its own; and a bad disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.checkout import ROOT

if TYPE_CHECKING:
    from dalsegno.bench.faulty import Faulty

ENGINES = ("vllm", "sglang", "lmcache")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--engine`."""
    parser.addoption(
        "--engine",
        choices=ENGINES,
        help="the engine of this environment: adds its tests and the checks of its route",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the tests of the other engines, in `tests/integration/NAME/`."""
    chosen = config.getoption("--engine")
    others = [ROOT / "tests" / "integration" / name for name in ENGINES if name != chosen]
    return True if any(map(collection_path.is_relative_to, others)) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps, of an engine, its tests and the checks of its route; else all that need none."""
    chosen = bool(config.getoption("--engine"))

    def wanted(item: pytest.Item) -> bool:
        needs_engine = item.get_closest_marker("engine") is not None
        if chosen:
            return needs_engine or "route" in getattr(item, "fixturenames", ())
        return not needs_engine

    dropped = [item for item in items if not wanted(item)]
    items[:] = [item for item in items if wanted(item)]
    config.hook.pytest_deselected(items=dropped)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Faulty]:
    """A disk that hangs and fails on command."""
    from dalsegno.bench import faulty

    if (what := faulty.missing()) is not None:
        if os.environ.get("CI") and "fuse" not in os.environ.get("DALSEGNO_MAY_SKIP", ""):
            pytest.fail(f"{what}; let it be skipped with DALSEGNO_MAY_SKIP=fuse")
        pytest.skip(what)
    with faulty.mounted(tmp_path, ROOT) as mounted:
        yield mounted
        mounted.tell("clear")
