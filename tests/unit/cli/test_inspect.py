"""What `dalsegno inspect` shows: every byte with the name that the format's document gives it."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.checkout import ROOT
from tests.outside import flip, segment_of
from tests.unit.stores import BLOCKS, LAYERS, SECTOR, SLICE_BYTES, Run, chain, extents

import dalsegno

FORMAT = ROOT / "docs" / "formats" / "log.md"
FIRST = "segment-0000000000000001.log"
# A line of the worked example: offset, bytes, and what stands beside.
LINE = re.compile(r"^    ([0-9a-f]{6})  ((?:[0-9a-f]{2} )*[0-9a-f]{2}) {2,}(\S.*)$")


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """The store of the document's worked example."""
    path = Path(shutil.copytree(ROOT / "tests" / "golden" / "log-v1", tmp_path / "golden"))
    # Kept without the zeros behind its record.
    os.truncate(path / FIRST, 1 << 20)
    return path


def test_inspect_prints_the_worked_example_of_the_format(golden: Path, run: Run) -> None:
    shown: dict[int, dict[str, Any]] = {}
    for offset in ((), (SECTOR,)):
        answer = run("inspect", golden, FIRST, *offset, "--json")
        assert answer.code == 0
        shown |= {one["offset"]: one for one in answer.json()["fields"]}
        shown |= {one["offset"]: one for one in answer.json()["parts"]}
    example = FORMAT.read_text(encoding="utf-8").split("<!-- worked example", 1)[1]
    lines = [LINE.match(line) for line in example.splitlines()]
    compared = 0
    for place, text, beside in (line.groups() for line in lines if line is not None):
        field = shown[int(place, 16)]
        compared += 1
        assert beside.startswith(field["name"]), beside
        assert (field.get("hex") or field["first"]).startswith(text.replace(" ", "")), beside
        if field.get("says", "").isdecimal():
            assert field["says"] in beside.split(), beside
    assert compared == 9 + 1 + 24 + 4 + 4


def test_a_segment_is_its_header_and_its_records(path: Path, run: Run) -> None:
    extent = extents(path)[0]
    answer = run("inspect", path, segment_of(path, extent).name, "--json")
    assert answer.code == 0
    found = answer.json()
    assert found["title"] == "segment header"
    (row,) = [one for one in found["records"] if one["offset"] == extent["offset"]]
    wanted = ("extent", BLOCKS, extent["bytes"], extent["sequence"])
    assert (row["kind"], row["blocks"], row["bytes"], row["sequence"]) == wanted
    result = run("inspect", path, segment_of(path, extent).name).out
    assert "segment header: valid" in result
    assert re.search(rf"{extent['offset']} +extent +.* {BLOCKS} ", result)


@pytest.mark.parametrize("into", [0, 77, SECTOR, SECTOR + 3 * SLICE_BYTES])
def test_inspect_finds_a_record_from_any_of_its_bytes(path: Path, run: Run, into: int) -> None:
    extent = extents(path)[0]
    answer = run("inspect", path, segment_of(path, extent).name, extent["offset"] + into, "--json")
    assert answer.code == 0
    found = answer.json()
    fields = {one["name"]: one for one in found["fields"]}
    assert fields["block_count"]["says"] == str(BLOCKS)
    assert fields["hashes[1]"]["hex"] == chain(2)[1].hex()
    assert len(found["parts"]) == LAYERS * BLOCKS
    assert all(one["right"] and one["bytes"] == SLICE_BYTES for one in found["parts"])
    # Nothing between the first and the last byte of the header is left out.
    end = extent["offset"]
    for one in found["fields"]:
        assert one["offset"] == end
        end += len(one["hex"]) // 2
    assert end == extent["offset"] + SECTOR


def test_a_flipped_byte_of_a_block_is_shown_where_it_is(path: Path, run: Run) -> None:
    extent = extents(path)[0]
    file, at = segment_of(path, extent), extent["offset"] + SECTOR + SLICE_BYTES
    flip(file, at + 9)
    answer = run("inspect", path, file.name, extent["offset"], "--json")
    assert answer.code == 1
    wrong = [one["name"] for one in answer.json()["parts"] if not one["right"]]
    assert wrong == ["slice (0, 1)"]
    result = run("inspect", path, file.name, extent["offset"]).out
    assert "1 of them damaged" in result


def test_a_damaged_header_is_shown_with_its_fault(path: Path, run: Run) -> None:
    extent = extents(path)[0]
    file = segment_of(path, extent)
    flip(file, extent["offset"] + 130)
    answer = run("inspect", path, file.name, extent["offset"], "--json")
    assert answer.code == 1
    found = answer.json()
    assert "checksum" in found["problem"]
    assert {one["name"] for one in found["fields"]} >= {"parent", "not decoded"}
    listed = run("inspect", path, file.name, "--json")
    assert listed.code == 1
    (row,) = [one for one in listed.json()["records"] if one["offset"] == extent["offset"]]
    assert row["kind"] == "damaged"
    flip(file, 40)
    answer = run("inspect", path, file.name, "--json")
    assert (answer.code, answer.json()["fields"][-1]["says"]) == (1, "wrong")


def test_small_files_and_units_of_compressed_extents(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "store"
    with dalsegno.open(path, capacity="64MiB", segment="1MiB") as store:
        space = store.namespace({"model": "m"}, layers=2, slice_bytes=8192, codec="zstd")
        space.put_batch(chain(2), [bytes(16384), os.urandom(2) * 8192])
    answer = run("inspect", path, "store.meta", "--json")
    assert answer.code == 0
    fields = {one["name"]: one["says"] for one in answer.json()["fields"]}
    assert (fields["magic"], fields["version"], fields["crc"]) == ("DSGNSTOR", "2", "right")
    descriptor = min(path.glob("namespace-*.meta"))
    answer = run("inspect", path, descriptor.name)
    assert answer.code == 0
    assert "dalsegno namespace 1" in answer.out
    answer = run("inspect", path, FIRST, SECTOR, "--json")
    assert answer.code == 0
    found = answer.json()
    assert [one["name"] for one in found["parts"]] == ["unit 0", "unit 1"]
    assert found["fields"][-2]["name"] == "units[1]"
    flip(descriptor, 30)
    assert run("inspect", path, descriptor.name).code == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("LOCK",), "is not a file of the log"),
        (("../../etc/passwd",), "is not a file of the log"),
        (("segment-00000000000000ff.log",), "is not a file of the log"),
        ((FIRST, 900_000), "has no record at offset 900000"),
        ((FIRST, 1 << 63), "has no record at offset"),
        (("store.meta", 5000), "has no record"),
    ],
)
def test_a_missing_file_or_record_is_an_error(
    path: Path, run: Run, arguments: tuple[object, ...], words: str
) -> None:
    answer = run("inspect", path, *arguments)
    assert answer.code == 2
    assert words in answer.err
