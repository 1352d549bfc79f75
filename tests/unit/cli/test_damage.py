"""What `dalsegno verify` and `dalsegno info` say of damage that was planted at a known place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import compress
from pathlib import Path

import pytest
from tests.outside import another_process, flip, overwrite, segment_of
from tests.unit.stores import (
    BLOCKS,
    NAMESPACES,
    SECTOR,
    SLICE_BYTES,
    Run,
    chain,
    extents,
    fill,
    open_store,
)

import dalsegno

# Planted faults.


def plant_in_payload(path: Path) -> tuple[str, int, str]:
    extent = extents(path)[0]
    file = segment_of(path, extent)
    header_bytes = int.from_bytes(file.read_bytes()[extent["offset"] + 12 :][:4], "little")
    stride = -(-BLOCKS * SLICE_BYTES // SECTOR) * SECTOR
    slice_at = extent["offset"] + header_bytes + stride + 2 * SLICE_BYTES
    flip(file, slice_at + 77)
    return file.name, slice_at, "layer 1 of block 2: checksum differs"


def plant_in_padding(path: Path) -> tuple[str, int, str]:
    extent = extents(path)[0]
    at = extent["offset"] + extent["bytes"] - 1
    flip(segment_of(path, extent), at)
    return segment_of(path, extent).name, at // SECTOR * SECTOR, "padding is not zero"


def plant_in_record_header(path: Path) -> tuple[str, int, str]:
    extent = extents(path)[0]
    flip(segment_of(path, extent), extent["offset"] + 130)
    return segment_of(path, extent).name, extent["offset"], ""


def plant_in_segment_header(path: Path) -> tuple[str, int, str]:
    file = segment_of(path, extents(path)[0])
    flip(file, 20)
    return file.name, 0, ""


def plant_in_store_meta(path: Path) -> tuple[str, int, str]:
    flip(path / "store.meta", 33)
    return "store.meta", 0, ""


def plant_in_namespace(path: Path) -> tuple[str, int, str]:
    file = min(path.glob("namespace-*.meta"))
    flip(file, 40)
    return file.name, 0, ""


def zero_record_header(path: Path) -> tuple[str, int, str]:
    extent = extents(path)[0]
    overwrite(segment_of(path, extent), extent["offset"], bytes(SECTOR))
    what = f"1 record of {BLOCKS} blocks lost"
    return segment_of(path, extent).name, extent["offset"], what


def remove_a_segment(path: Path) -> tuple[str, int, str]:
    file = segment_of(path, extents(path)[0])
    file.unlink()
    return file.name, 0, "the file is missing, with 3 records of 8 blocks"


def cut_a_segment(path: Path) -> tuple[str, int, str]:
    extent = extents(path)[0]
    file = segment_of(path, extent)
    cut = extent["offset"] + SECTOR
    os.truncate(file, cut)
    return file.name, cut, "bytes, expected 1048576"


def cut_store_meta(path: Path) -> tuple[str, int, str]:
    os.truncate(path / "store.meta", 100)
    return "store.meta", 0, ""


FAULTS = [
    plant_in_payload,
    plant_in_padding,
    plant_in_record_header,
    plant_in_segment_header,
    plant_in_store_meta,
    plant_in_namespace,
    zero_record_header,
    remove_a_segment,
    cut_a_segment,
    cut_store_meta,
]


# Blocks that each costs for good; whose header cannot be read goes as a whole.
LOST: dict[Callable[[Path], tuple[str, int, str]], int] = {
    plant_in_payload: 1,
    plant_in_record_header: BLOCKS,
    plant_in_segment_header: BLOCKS + 1 + 4,
    zero_record_header: BLOCKS,
    remove_a_segment: BLOCKS + 1 + 4,
    cut_a_segment: BLOCKS + 1 + 4,
}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_verify_finds_a_planted_fault_and_names_its_place(
    plant: Callable[[Path], tuple[str, int, str]], path: Path, run: Run
) -> None:
    file, offset, words = plant(path)
    answer = run("verify", path)
    assert answer.code == 1
    assert file in answer.out
    result = run("verify", path, "--json")
    assert result.code == 1
    found = result.json()
    assert found["clean"] is False
    same_file = [one for one in found["findings"] if one["file"] == file]
    assert [one for one in same_file if offset <= one["offset"] < offset + SECTOR], found
    assert any(words in one["what"] for one in same_file)


def held(path: Path) -> dict[tuple[str, bytes], bytes]:
    """All blocks of a store that come back, by model and hash."""
    found = {}
    with open_store(path) as store:
        for fields, layers, slice_bytes in NAMESPACES:
            space = store.namespace(fields, layers=layers, slice_bytes=slice_bytes)
            hashes = [*chain(4), *chain(1, "b")]
            out = [bytearray(space.block_bytes) for _ in hashes]
            there = space.get_each(hashes, out)
            for name, block in compress(zip(hashes, out, strict=True), there):
                found[fields["model"], name] = bytes(block)
    return found


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_repair_drops_damaged_blocks_and_keeps_the_rest(
    plant: Callable[[Path], tuple[str, int, str]], template: Path, path: Path, run: Run
) -> None:
    intact = held(Path(shutil.copytree(template, path.with_name("intact"))))
    assert len(intact) == BLOCKS + 1 + 4
    plant(path)
    answer = run("verify", path, "--repair", "--json")
    result = answer.json()
    assert result["before"]["findings"]
    assert result["after"]["findings"] == []
    assert (answer.code, result["clean"]) == (0, True)
    left = held(path)
    assert left.items() <= intact.items()
    assert len(intact) - len(left) == LOST.get(plant, 0)
    again = run("verify", path, "--repair")
    assert again.code == 0
    assert "repaired" not in again.out


def test_repair_prints_what_it_did(path: Path, run: Run) -> None:
    plant_in_payload(path)
    answer = run("verify", path, "--repair")
    assert answer.code == 0
    assert "repaired: 1 segment rewritten, 1 block dropped" in answer.out
    assert answer.out.endswith("clean\n")


def test_repair_of_a_store_that_is_open_is_refused(path: Path, run: Run) -> None:
    with another_process(path) as (_, result):
        assert result == "opened\n"
        answer = run("verify", path, "--repair")
    assert answer.code == 2
    assert "is in use by" in answer.err


def test_verify_finds_a_fault_in_an_on_disk_index_and_states_its_cost(
    tmp_path: Path, run: Run
) -> None:
    path = tmp_path / "store"
    hashes = [bytes([at]) * 32 for at in range(1, 9)]
    with dalsegno.open(path, capacity="64MiB", index="lsm") as store:
        space = store.namespace({"model": "m"}, layers=1, slice_bytes=64)
        space.put_batch(hashes, [bytes(64)] * 8)
    assert "1 index table" in run("verify", path).out
    table = min(path.glob("index-*.table"))
    flip(table, 20)
    answer = run("verify", path, "--json")
    assert answer.code == 1
    (finding,) = answer.json()["findings"]
    assert (finding["file"], finding["offset"]) == (table.name, 0)
    assert "no block is lost" in finding["what"]


@pytest.mark.parametrize("index", ["memory", "lsm"])
@pytest.mark.parametrize("lost", [zero_record_header, remove_a_segment])
def test_regression_records_that_vanished_are_found_with_either_index(
    index: str, lost: Callable[[Path], tuple[str, int, str]], tmp_path: Path, run: Run
) -> None:
    path = tmp_path / "store"
    fill(path, index=index)
    assert run("verify", path).code == 0
    file, offset, words = lost(path)
    answer = run("verify", path, "--json")
    assert answer.code == 1
    (finding,) = answer.json()["findings"]
    assert (finding["file"], finding["offset"]) == (file, offset)
    assert words in finding["what"]
    repaired = run("verify", path, "--repair")
    assert (repaired.code, repaired.out.endswith("clean\n")) == (0, True)
    assert run("verify", path).code == 0


def test_info_reports_damaged_headers(path: Path, run: Run) -> None:
    file, offset, _ = plant_in_record_header(path)
    answer = run("info", path)
    assert answer.code == 0
    assert "1 place in headers" in answer.out
    assert run("info", path, "--json").json()["faults"][0]["file"] == file
    assert run("info", path, "--json").json()["faults"][0]["offset"] == offset
