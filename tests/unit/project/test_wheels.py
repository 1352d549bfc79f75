"""The two distributions: one version, and nothing of tests and benches in the product's wheel."""

from __future__ import annotations

import os
import tomllib
import zipfile
from pathlib import Path

import pytest
from tests.checkout import ROOT

HARNESS = ("bench", "faultbench", "rig", "faults", "workload")


def sources(folder: str, package: str) -> set[str]:
    """The modules of a package, as a wheel names them."""
    root = ROOT / folder
    return {path.relative_to(root).as_posix() for path in (root / package).rglob("*.py")}


def wheel(pattern: str) -> zipfile.ZipFile:
    """The wheel that `make wheel` built from these sources."""
    built = sorted((ROOT / "dist").glob(pattern))
    newest = max(path.stat().st_mtime for path in (ROOT / "python").rglob("*.py"))
    if not os.environ.get("CI") and (not built or built[0].stat().st_mtime < newest):
        pytest.skip("needs the wheels of these sources: make wheel")
    (path,) = built
    return zipfile.ZipFile(path)


def project(path: Path) -> dict[str, object]:
    facts: dict[str, object] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    return facts


def test_both_distributions_have_one_version() -> None:
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    version = cargo["workspace"]["package"]["version"]
    bench = project(ROOT / "bench" / "pyproject.toml")
    assert (bench["version"], bench["dependencies"]) == (version, [f"dalsegno=={version}"])


def test_no_module_of_the_product_is_harness() -> None:
    parts = {part for name in sources("python", "dalsegno") for part in Path(name).parts}
    assert not {*HARNESS, *(f"{name}.py" for name in HARNESS)} & parts


def test_the_wheel_of_the_product_holds_the_product_alone() -> None:
    with wheel("dalsegno-*.whl") as built:
        modules = {name for name in built.namelist() if name.endswith(".py")}
    assert modules == sources("python", "dalsegno")


def test_the_wheel_of_the_benches_holds_them_and_offers_both_commands() -> None:
    with wheel("dalsegno_bench-*.whl") as built:
        names = set(built.namelist())
        (entries,) = [name for name in names if name.endswith("entry_points.txt")]
        text = built.read(entries).decode()
    assert {name for name in names if name.endswith(".py")} == sources("bench", "dalsegno_bench")
    assert "[dalsegno.commands]" in text
    assert "faultbench = " in text
