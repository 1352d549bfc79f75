"""The stripper of CUDA libraries, on libraries that are made here."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.checkout import load_tool

PTX, CODE = 1, 2


@pytest.fixture(scope="module")
def fatbin() -> Any:
    return load_tool("gpu/fatbin")


def entry(kind: int, architecture: int, payload: bytes, header: int = 64) -> bytes:
    """Code for one architecture."""
    start = struct.pack("<HHIQ", kind, 0x101, header, len(payload))
    return start.ljust(28, b"\x01") + struct.pack("<I", architecture).ljust(header - 28) + payload


def fat(*entries: bytes) -> bytes:
    """A fat binary."""
    content = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(content)) + content


def library(sections: Sequence[tuple[bytes, bytes]]) -> bytes:
    """An ELF file of 64 bits with sections, given by their names and contents."""
    names, at, contents = b"\0", 64, b""
    headers = [struct.pack("<IIQQQQIIQQ", *[0] * 10)]
    for name, content in [*sections, (b".shstrtab", b"")]:
        here, names = len(names), names + name + b"\0"
        body = content or names
        headers.append(struct.pack("<IIQQQQIIQQ", here, 1, 0, 0, at, len(body), 0, 0, 8, 0))
        contents += body
        at += len(body)
    start = b"\x7fELF\x02\x01".ljust(0x28, b"\0") + struct.pack("<Q", at)
    counts = struct.pack("<HHH", 64, len(headers), len(headers) - 1)
    return (start.ljust(0x3A, b"\0") + counts).ljust(64, b"\0") + contents + b"".join(headers)


def test_code_of_other_gpus_is_zeroed_and_nothing_else_changes(fatbin: Any) -> None:
    first = fat(
        entry(CODE, 80, b"a" * 40),
        entry(CODE, 90, b"b" * 24),
        entry(PTX, 90, b"c" * 16, 80),
        entry(CODE, 120, b"d" * 8, 112),
    )
    # Padding, and a second fat binary behind it.
    second = b"\0" * 8 + fat(entry(CODE, 90, b"e" * 16))
    before = library([(b".text", b"code"), (b".nv_fatbin", first + second), (b".data", b"data")])
    after = bytearray(before)

    done = fatbin.strip(after, 90)

    assert (done.kept, done.zeroed) == (40, 64)
    expected = before
    for letter, count in ((b"a", 40), (b"c", 16), (b"d", 8)):
        expected = expected.replace(letter * count, b"\0" * count)
    assert bytes(after) == expected


@pytest.mark.parametrize(
    ("keep_ptx", "kept"), [(True, b"new"), (False, b"")], ids=["ptx", "no ptx"]
)
def test_ptx_stays_where_there_is_no_code_for_the_gpu(
    fatbin: Any, kept: bytes, *, keep_ptx: bool
) -> None:
    content = fat(
        entry(PTX, 80, b"old" * 8),
        entry(PTX, 89, b"new" * 8),
        entry(PTX, 100, b"far" * 8),
        entry(CODE, 80, b"bin" * 8),
    )
    after = bytearray(library([(b"__nv_relfatbin", content)]))
    fatbin.strip(after, 90, keep_ptx=keep_ptx)
    found = {word for word in (b"old", b"new", b"far", b"bin") if word * 8 in after}
    assert found == ({kept} if kept else set())


def test_a_library_without_code_for_gpus_is_unchanged(fatbin: Any) -> None:
    before = library([(b".text", b"code" * 8)])
    after = bytearray(before)
    done = fatbin.strip(after, 90)
    assert (done.kept, done.zeroed, bytes(after)) == (0, 0, before)


def damaged() -> list[Any]:
    whole = fat(entry(CODE, 80, b"a" * 40))
    long = bytearray(whole)
    long[16 + 8 : 16 + 16] = struct.pack("<Q", 1 << 40)
    return [
        pytest.param(b"text", id="not an ELF file"),
        pytest.param(library([(b".nv_fatbin", b"\x01" * 64)]), id="no magic"),
        pytest.param(library([(b".nv_fatbin", bytes(long))]), id="long entry"),
        pytest.param(library([(b".nv_fatbin", whole[:60])]), id="cut off"),
        pytest.param(library([(b".nv_fatbin", whole)])[:200], id="no section headers"),
    ]


@pytest.mark.parametrize("before", damaged())
def test_what_does_not_parse_is_refused_and_unchanged(fatbin: Any, before: bytes) -> None:
    after = bytearray(before)
    with pytest.raises(fatbin.FatbinError):
        fatbin.strip(after, 90)
    assert bytes(after) == before


def test_the_command_writes_the_stripped_library(
    fatbin: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "in.so", tmp_path / "out.so"
    source.write_bytes(library([(b".nv_fatbin", fat(entry(CODE, 80, b"a" * 40)))]))
    assert fatbin.main([str(source), str(out)]) == 0
    assert b"aa" not in out.read_bytes()
    assert len(out.read_bytes()) == len(source.read_bytes())
    assert "kept 0.0 MB" in capsys.readouterr().out
    source.write_bytes(b"text")
    assert fatbin.main([str(source), str(out)]) == 1
    assert "expected an ELF file" in capsys.readouterr().err
