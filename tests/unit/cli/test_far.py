"""The command over a far location that real stores wrote: contents, damage, removal."""

from __future__ import annotations

import os
import shutil
import struct
import time
from pathlib import Path

import pytest
from tests.outside import flip
from tests.unit.cli.test_commands import crc32c
from tests.unit.stores import Run, chain

import dalsegno

LAYERS, SLICE_BYTES = 2, 5000
BLOCK_BYTES = LAYERS * SLICE_BYTES
COUNT, OTHER_COUNT, REMOVED = 6, 4, 2
DAY_S = 86_400


def catalogs(far: Path) -> int:
    return len(list(far.glob("*/*.catalog")))


def publish(path: Path, far: Path, model: str, count: int, removed: int = 0) -> None:
    """A store that puts blocks, publishes them, removes the last ones, and is closed."""
    settings = {"capacity": "64MiB", "dram": 0, "staging": "16MiB", "far_flush_s": 0.1}
    with dalsegno.open(path, far=str(far), **settings) as store:
        fields = {"model": model}
        space = store.namespace(fields, layers=LAYERS, slice_bytes=SLICE_BYTES)
        blocks = chain(count, model)
        assert space.put_batch(blocks, [os.urandom(BLOCK_BYTES) for _ in blocks]).stored == count
        until = time.monotonic() + 60
        while removed and catalogs(far) == 0:
            assert time.monotonic() < until
            time.sleep(0.02)
        if removed:
            assert space.remove(blocks[-removed:], timeout_s=60) == removed


@pytest.fixture(scope="session")
def far_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("far")
    (home / "far").mkdir()
    publish(home / "a", home / "far", "one", COUNT, REMOVED)
    publish(home / "b", home / "far", "two", OTHER_COUNT)
    return home / "far"


@pytest.fixture
def far(far_template: Path, tmp_path: Path) -> Path:
    """A location with two writers that are closed."""
    return Path(shutil.copytree(far_template, tmp_path / "far"))


def folder_of(far: Path, model: str) -> Path:
    """The folder of the store that wrote this model."""
    names = {row["fields"]["model"]: row["id"] for row in dalsegno.far_survey(far)["namespaces"]}
    (found,) = far.glob(f"*/namespace-{names[model]}.meta")
    return found.parent


def name_of(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"


def make_old(folder: Path, seconds: float) -> None:
    then = time.time() - seconds
    for file in folder.iterdir():
        os.utime(file, (then, then))


# What is there.


def test_info_shows_writers_and_totals(far: Path, run: Run) -> None:
    answer = run("info", far)
    assert (answer.code, answer.err) == (0, "")
    present = COUNT + OTHER_COUNT - REMOVED
    for words in (
        "writers       2: 2 live",
        "namespaces    2",
        f"blocks        {present} (",
        f"and {REMOVED} that were removed",
        "removals      1 in 1 list",
        "none in catalogs",
    ):
        assert words in answer.out
    for folder in far.glob("*-*"):
        assert folder.name in answer.out


def test_info_json_has_exact_numbers(far: Path, run: Run) -> None:
    found = run("info", far, "--json").json()
    packs = list(far.glob("*/*.pack"))
    assert found["kind"] == "far"
    assert found["packs"] == len(packs)
    assert found["bytes"] == sum(file.stat().st_size for file in far.glob("*/*"))
    assert (found["blocks"], found["removed_blocks"]) == (COUNT + OTHER_COUNT - REMOVED, REMOVED)
    assert [row["state"] for row in found["writers"]] == ["live", "live"]
    assert all(0 <= row["silent_s"] < 600 for row in found["writers"])
    sizes = [row["bytes"] for row in found["namespaces"]]
    assert sorted(sizes) == [OTHER_COUNT * BLOCK_BYTES, (COUNT - REMOVED) * BLOCK_BYTES]


def test_a_writer_grows_silent_and_dies(far: Path, run: Run) -> None:
    one, two = folder_of(far, "one"), folder_of(far, "two")
    make_old(one, 3600)
    make_old(two, 3 * DAY_S)
    states = {row["writer"]: row["state"] for row in run("info", far, "--json").json()["writers"]}
    assert states == {one.name: "silent", two.name: "dead"}
    out = run("info", far).out
    assert "1 h ago" in out
    assert "3 d ago" in out


def reopen(folder: Path, seconds: float) -> Path:
    """Leaves a folder of that age as an open of this writer's store that was later or earlier."""
    store = folder.name.split("-")[0]
    other = Path(shutil.copytree(folder, folder.parent / f"{store}-{7:016x}"))
    make_old(other, seconds)
    return other


def test_an_earlier_open_of_a_store_that_lives_is_not_dead(far: Path, run: Run) -> None:
    one, two = folder_of(far, "one"), folder_of(far, "two")
    earlier, empty = reopen(one, 3 * DAY_S), reopen(two, 3 * DAY_S)
    for pack in empty.glob("*.pack"):
        pack.unlink()
    states = {row["writer"]: row["state"] for row in run("info", far, "--json").json()["writers"]}
    assert states == {
        one.name: "live",
        earlier.name: "earlier",
        two.name: "live",
        empty.name: "dead",
    }
    assert "4: 2 live, 1 earlier, 1 dead" in run("info", far).out
    report = run("prune", far, "--remove", "--json").json()
    assert [row["writer"] for row in report["writers"]] == [empty.name]
    report = run("prune", far, earlier.name, "--remove", "--json").json()
    assert [(row["writer"], row["state"]) for row in report["writers"]] == [
        (earlier.name, "earlier")
    ]
    assert not earlier.exists()
    # A store that is dead in all its opens.
    reopen(one, 2 * DAY_S)
    make_old(one, 3 * DAY_S)
    assert "removed 2 writers" in run("prune", far, "--remove").out
    assert two.is_dir()


def test_info_of_an_unreadable_catalog_says_what_to_do(far: Path, run: Run) -> None:
    catalog = min(folder_of(far, "two").glob("*.catalog"))
    rewrite_version(catalog, 4)
    answer = run("info", far)
    assert answer.code == 0
    assert "1 object cannot be used" in answer.out
    assert "format version 4 is newer than this build reads; upgrade Dalsegno here" in answer.out
    rewrite_version(catalog, 2)
    assert "format version 2 is older than this build reads" in run("info", far).out
    catalog.write_bytes(b"")
    assert "the bytes end too early" in run("info", far).out


def test_ls_lists_namespaces_of_all_writers(far: Path, run: Run) -> None:
    answer = run("ls", far)
    assert answer.code == 0
    for words in ("model=one", "model=two", "2 layers of 4.9 KiB", "writers"):
        assert words in answer.out
    assert "extents of namespace" not in answer.out


def test_ls_extents_names_packs_that_exist(far: Path, run: Run) -> None:
    rows = run("ls", far, "--extents", "--json").json()["namespaces"]
    assert sum(one["blocks"] for row in rows for one in row["extent_rows"]) == COUNT + OTHER_COUNT
    for row in rows:
        for one in row["extent_rows"]:
            assert (far / one["pack"]).is_file()
    out = run("ls", far, "--extents", "--namespace", rows[0]["id"][:6]).out
    assert rows[0]["extent_rows"][0]["pack"] in out
    assert rows[1]["extent_rows"][0]["pack"] not in out


def test_a_lost_description_is_shown(far: Path, run: Run) -> None:
    for file in folder_of(far, "one").glob("*.meta"):
        file.unlink()
    assert "(description lost)" in run("ls", far).out


# What is damaged.


def rewrite_version(catalog: Path, version: int) -> None:
    data = bytearray(catalog.read_bytes())
    data[8:12] = struct.pack("<I", version)
    data[4092:4096] = struct.pack("<I", crc32c(bytes(data[:4092])))
    catalog.write_bytes(data)


def test_verify_reads_every_byte_while_a_store_is_open(far: Path, run: Run, tmp_path: Path) -> None:
    with dalsegno.open(tmp_path / "c", capacity="64MiB", far=str(far)):
        report = run("verify", far, "--json").json()
    assert report["clean"]
    assert (report["writers"], report["blocks"]) == (2, COUNT + OTHER_COUNT)
    assert report["lists"] == 1
    assert report["slices"] == LAYERS * (COUNT + OTHER_COUNT)
    kinds = ("pack", "catalog", "meta", "removals")
    stored = sum(file.stat().st_size for kind in kinds for file in far.glob(f"*/*.{kind}"))
    assert report["bytes"] == stored
    answer = run("verify", far)
    assert (answer.code, answer.out.splitlines()[-1]) == (0, "clean")


def test_verify_finds_a_changed_byte_of_each_part(far: Path, run: Run) -> None:
    (pack,) = folder_of(far, "two").glob("*.pack")
    size = pack.stat().st_size
    before = pack.read_bytes()
    seen = set()
    for at in (100, 4096 + 10, size - 1):
        flip(pack, at)
        answer = run("verify", far)
        assert answer.code == 1
        assert name_of(pack) in answer.out
        seen.add(answer.out.splitlines()[-1].split("  ")[-1].strip())
        pack.write_bytes(before)
    assert seen == {
        "the record's header is not valid: the header's checksum does not match",
        "layer 0 of block 0: checksum differs",
        "padding is not zero",
    }
    assert run("verify", far).code == 0


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_verify_checks_compressed_blocks(far: Path, run: Run, tmp_path: Path, codec: str) -> None:
    with dalsegno.open(tmp_path / "c", capacity="64MiB", dram=0, far=str(far)) as store:
        space = store.namespace(
            {"model": "three"},
            layers=LAYERS,
            slice_bytes=65_536,
            codec=codec,
        )
        space.put_batch(chain(3, "c"), [bytes(LAYERS * 65_536)] * 3)
    assert run("verify", far).code == 0
    (pack,) = folder_of(far, "three").glob("*.pack")
    assert (pack.stat().st_size < 65_536) == (codec == "zstd")
    # Behind the header, which has one sector.
    flip(pack, 4096 + 5)
    answer = run("verify", far)
    assert answer.code == 1
    assert "checksum differs" in answer.out


def test_verify_names_what_is_missing(far: Path, run: Run) -> None:
    (pack,) = folder_of(far, "two").glob("*.pack")
    copy = pack.read_bytes()
    pack.unlink()
    answer = run("verify", far)
    assert answer.code == 1
    assert f"the pack is missing, with {OTHER_COUNT} blocks" in answer.out
    pack.write_bytes(copy[:-4096])
    out = run("verify", far).out
    assert f"the pack has {len(copy) - 4096} bytes; its catalog says {len(copy)}" in out
    assert "the pack ends before this record does" in out
    pack.write_bytes(copy)
    (meta,) = pack.parent.glob("*.meta")
    meta.unlink()
    assert "the description of a namespace is missing" in run("verify", far).out


def test_a_pack_without_a_catalog_is_named_and_is_no_damage(far: Path, run: Run) -> None:
    folder = folder_of(far, "two")
    pack = folder / "00000000000000ff.pack"
    pack.write_bytes(bytes(4096))
    answer = run("verify", far)
    assert answer.code == 0
    assert "1 pack without a catalog" in answer.out
    assert name_of(pack) in answer.out
    assert "and 1 without a catalog" in run("info", far).out


def test_verify_finds_swapped_and_newer_catalogs(far: Path, run: Run) -> None:
    one = max(folder_of(far, "one").glob("*.catalog"))
    (two,) = folder_of(far, "two").glob("*.catalog")
    shutil.copy(two, one)
    rewrite_version(two, 9)
    answer = run("verify", far)
    assert answer.code == 1
    assert "it belongs to another writer or number than its name says" in answer.out
    assert "format version 9 is newer than this build reads; upgrade Dalsegno" in answer.out


def test_a_far_location_has_no_repair(far: Path, run: Run) -> None:
    answer = run("verify", far, "--repair")
    assert answer.code == 2
    assert "--repair is for stores" in answer.err
    assert "dalsegno prune" in answer.err


# The bytes.


def test_inspect_shows_catalogs_packs_and_records(far: Path, run: Run) -> None:
    (pack,) = folder_of(far, "two").glob("*.pack")
    (catalog,) = folder_of(far, "two").glob("*.catalog")
    found = run("inspect", far, name_of(catalog), "--json").json()
    fields = {one["name"]: one["says"] for one in found["fields"]}
    assert fields["magic"] == "DSGNCATL"
    assert fields["pack_bytes"] == str(pack.stat().st_size)
    assert fields["crc"] == "right"
    assert sum(row["blocks"] for row in found["records"]) == OTHER_COUNT
    of_pack = run("inspect", far, name_of(pack), "--json").json()
    assert of_pack["records"] == found["records"]
    record = run("inspect", far, name_of(pack), 4096, "--json").json()
    assert len(record["parts"]) == LAYERS * OTHER_COUNT
    assert all(part["right"] for part in record["parts"])
    flip(pack, 4096)
    answer = run("inspect", far, name_of(pack), 4096)
    assert answer.code == 1
    assert "1 of them damaged" in answer.out
    flip(pack, 0)
    answer = run("inspect", far, name_of(pack))
    assert answer.code == 1
    assert "damaged" in answer.out


def test_inspect_shows_removals(far: Path, run: Run) -> None:
    (listed,) = (far / "removals").iterdir()
    found = run("inspect", far, name_of(listed), "--json").json()
    fields = {one["name"]: one["says"] for one in found["fields"]}
    assert (fields["magic"], fields["crc"]) == ("DSGNREMV", "right")
    rows = [(row["kind"], row["blocks"], row["sequence"]) for row in found["records"]]
    assert rows == [("removed blocks", REMOVED, 1)]
    assert found["problem"] == ""
    flip(listed, 4100)
    assert "1 finding" in run("verify", far).out


@pytest.mark.parametrize("file", ["x", "../x", "a/b", "store.meta"])
def test_inspect_of_something_else_says_what_is_expected(far: Path, run: Run, file: str) -> None:
    answer = run("inspect", far, file)
    assert answer.code == 2
    assert "give a folder and a name in it" in answer.err


# What is removed.


def test_prune_removes_dead_writers_only_on_request(far: Path, run: Run) -> None:
    one, two = folder_of(far, "one"), folder_of(far, "two")
    assert "no dead writer; 2 writers kept" in run("prune", far).out
    make_old(two, 2 * DAY_S)
    make_old(one, 7200)
    answer = run("prune", far)
    assert answer.code == 0
    assert two.name in answer.out
    assert one.name not in answer.out
    assert "would remove 1 writer" in answer.out
    assert two.is_dir()
    answer = run("prune", far, "--remove")
    assert "removed 1 writer" in answer.out
    assert {folder.name for folder in far.iterdir()} == {one.name, "removals"}
    assert run("verify", far).code == 0


def test_prune_of_a_named_writer_needs_no_day_but_silence(far: Path, run: Run) -> None:
    two = folder_of(far, "two")
    answer = run("prune", far, two.name[:8], "--remove")
    assert answer.code == 2
    assert f"{two.name} gave a sign of life" in answer.err
    assert "close the store first" in answer.err
    assert two.is_dir()
    make_old(two, 3600)
    report = run("prune", far, two.name[:8], "--remove", "--json").json()
    assert [row["writer"] for row in report["writers"]] == [two.name]
    assert not two.exists()


def test_a_named_live_writer_stops_the_removal_of_others(far: Path, run: Run) -> None:
    one, two = folder_of(far, "one"), folder_of(far, "two")
    make_old(two, 2 * DAY_S)
    assert run("prune", far, one.name, "--remove").code == 2
    assert two.is_dir()


@pytest.mark.parametrize("name", ["ffffffffffffffffffff", "", "0"])
def test_an_unknown_writer_is_refused(far: Path, run: Run, name: str) -> None:
    answer = run("prune", far, name)
    assert answer.code == 2
    assert f'no writer\'s folder begins with "{name}"' in answer.err


def test_looking_at_a_far_location_leaves_no_file_in_it(far: Path, run: Run) -> None:
    before = sorted(far.rglob("*"))
    for command in ("info", "ls", "verify", "prune"):
        assert run(command, far).code == 0
    assert sorted(far.rglob("*")) == before
