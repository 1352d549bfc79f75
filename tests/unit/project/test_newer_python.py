"""The Python side of a newer wheel over an older compiled side (tools/newer_python.py)."""

from __future__ import annotations

import hashlib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from tests.checkout import ROOT, load_tool

FILES = {
    "engine/core.py": "VERSION = 2\n",
    "engine/new.json": "{}",
    "engine/_gpu.so": "compiled for a GPU",
    "engine/io.so": "compiled for any machine",
    "engine/kernels/tile.hpp": "for a GPU",
    "engine-2.0.dist-info/METADATA": (
        "Metadata-Version: 2.1\nName: engine\nVersion: 2.0\nRequires-Dist: gpu-library\n"
    ),
    "engine-2.0.dist-info/entry_points.txt": "[console_scripts]\nengine = engine.core:main\n",
}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return load_tool("newer_python")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel of version 2.0 for GPUs."""
    path = tmp_path / "engine-2.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """An environment with version 1.0 for processors, under both of its names."""
    folder = tmp_path / "site-packages"
    for name, text in {
        "engine/core.py": "VERSION = 1\n",
        "engine/old.py": "",
        "engine/_cpu.so": "compiled for a processor",
        "engine_cpu-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: engine-cpu\n",
        "engine-1.0+cpu.dist-info/METADATA": "Metadata-Version: 2.1\nName: engine\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_the_python_side_is_new_and_the_compiled_side_stays(
    tool: Any, wheel: Path, packages: Path
) -> None:
    assert tool.put_over(packages, wheel, "engine-cpu", ("engine/io.so",)) == "2.0+cpu"
    module = packages / "engine"
    found = {str(one.relative_to(module)) for one in module.rglob("*") if one.is_file()}
    assert found == {"core.py", "new.json", "_cpu.so", "io.so"}
    assert (module / "core.py").read_text() == "VERSION = 2\n"


def test_the_package_has_one_name_one_version_and_no_requirement(
    tool: Any, wheel: Path, packages: Path
) -> None:
    tool.put_over(packages, wheel, "engine-cpu", ())
    (one,) = metadata.distributions(path=[str(packages)])
    assert (one.metadata["Name"], one.version) == ("engine", "2.0+cpu")
    assert not one.requires
    assert [entry.name for entry in one.entry_points] == ["engine"]


@pytest.mark.parametrize("is_pinned", [True, False])
def test_only_the_wheel_that_was_pinned_is_used(
    *, tool: Any, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_pinned: bool
) -> None:
    content = wheel.read_bytes() if is_pinned else b"another wheel"
    pin = tmp_path / "engine.txt"
    pin.write_text(f"engine==2.0 \\\n    --hash=sha256:{hashlib.sha256(content).hexdigest()}\n")
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "index.html").write_text(f'<a href="../{wheel.name}#sha256=0">')
    monkeypatch.setenv("UV_INDEX_URL", tmp_path.as_uri())
    # A folder has no page of its own.
    read, page = tool.source_tests._read, f"{tmp_path.as_uri()}/engine/"
    monkeypatch.setattr(
        tool.source_tests, "_read", lambda url: read(url + "index.html" if url == page else url)
    )
    if is_pinned:
        with tool.fetched(pin, "engine", "py3-none-any.whl") as copy:
            assert copy.read_bytes() == content
        assert not copy.exists()
        return
    with (
        pytest.raises(tool.source_tests.FetchError, match="does not name"),
        tool.fetched(pin, "engine", "py3-none-any.whl"),
    ):
        pytest.fail("a wheel that was not pinned was used")
