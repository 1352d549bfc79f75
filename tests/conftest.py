"""Which engine the tests are about, as each has an environment of its own; and a bad disk."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.checkout import ROOT
from tests.skipping import skip_if_missing

if TYPE_CHECKING:
    from dalsegno_bench.machine.faulty import Faulty

ENGINES = ("vllm", "sglang", "lmcache")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--engine` and `--far-all`."""
    parser.addoption(
        "--engine",
        choices=ENGINES,
        help="the engine of this environment: adds its tests and the checks of its route",
    )
    parser.addoption(
        "--far-all",
        action="store_true",
        help="test the far tier on all that it runs on (make test-far-all)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Takes the benches from this checkout if the product is this checkout's, installed or not."""
    product = importlib.util.find_spec("dalsegno")
    if product is None or not Path(product.origin or "/").is_relative_to(ROOT / "python"):
        return
    folders = [str(ROOT / "bench")]
    try:
        importlib.metadata.distribution("dalsegno-bench")
    except importlib.metadata.PackageNotFoundError:
        made = tempfile.TemporaryDirectory(prefix="dalsegno-tests-")
        config.add_cleanup(made.cleanup)
        declare_commands(Path(made.name))
        folders.append(made.name)
    sys.path[:0] = folders
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *inherited])


def declare_commands(folder: Path) -> None:
    """Writes what an installation says of the commands of `dalsegno-bench`."""
    project = tomllib.loads((ROOT / "bench" / "pyproject.toml").read_text())["project"]
    facts = folder / f"dalsegno_bench-{project['version']}.dist-info"
    facts.mkdir()
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (facts / "METADATA").write_text(head)
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
    (facts / "entry_points.txt").write_text("\n".join(lines) + "\n")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the tests of the other engines, in `tests/integration/NAME/`."""
    chosen = config.getoption("--engine")
    others = [ROOT / "tests" / "integration" / name for name in ENGINES if name != chosen]
    return True if any(map(collection_path.is_relative_to, others)) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps, of an engine, its tests and the checks of its route; else all that need none.

    Tests on a disk that hangs are slow: they wait for it, and a program is compiled for them.
    """
    for item in items:
        if "disk" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
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
    from dalsegno_bench.machine import faulty

    skip_if_missing(faulty.missing(), "fuse")
    with faulty.mounted(tmp_path, ROOT) as mounted:
        yield mounted
        mounted.send("clear")
