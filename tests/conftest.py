"""Which engine the tests of this run are about: each engine has an environment of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

ENGINES = ("vllm", "sglang", "lmcache")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--engine`."""
    parser.addoption(
        "--engine",
        choices=ENGINES,
        help="the engine of this environment: adds its tests and the checks of its route",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the tests of other engines, `test_NAME.py` and `test_NAME_*.py`."""
    stem = collection_path.stem + "_"
    chosen = config.getoption("--engine")
    others = any(stem.startswith(f"test_{name}_") for name in ENGINES if name != chosen)
    return True if others else None


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
