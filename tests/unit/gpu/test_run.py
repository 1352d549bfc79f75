"""The programs for a GPU machine, run to their end on `FakeCuda` with small sizes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.checkout import ROOT, load_tool
from tests.integration.fake_gpu import library_path
from tests.skipping import skip_if_missing

RUN = ROOT / "tools" / "gpu" / "run.py"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the program; copies of the fake are not as late as they may be."""
    return subprocess.run(
        [sys.executable, str(RUN), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "FAKE_CUDA": "seed=1,delay=20"},
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the records of the parts `facts` and `transfers`."""
    has_extension = importlib.util.find_spec("dalsegno._native") is not None
    missing = None if has_extension else "the extension is missing: run make dev"
    skip_if_missing(missing, "extension")
    folder = tmp_path_factory.mktemp("measured")
    for part, only in (("facts", ""), ("transfers", "64k")):
        common = ("--quick", "--library", library_path(), "--scratch", folder / "scratch")
        done = run(part, "--out", folder / "out", "--only", only, *common)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out"


def record(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return found


def test_each_cell_leaves_a_record(measured: Path) -> None:
    names = {path.stem for path in measured.glob("*.json")}
    assert names == {
        *(f"facts-{name}" for name in ("driver", "own", "served", "machine")),
        *(f"transfers-{name}-64k" for name in ("own", "served")),
    }
    assert all(record(measured, name)["ok"] for name in names)
    assert not any(record(measured, name)["left_in_shared_memory"] for name in names)


def test_the_measured_ways_to_copy_are_recorded(measured: Path) -> None:
    found = record(measured, "facts-driver")
    assert found["facts"]["name"] == "FakeCuda"
    tuned = {one["piece_bytes"]: one["way"] for one in found["tuning"]}
    assert tuned.keys() == {4096, 16_384, 32_768, 65_536, 131_072, 524_288}
    assert set(tuned.values()) <= {"kernel", "copy engines"}


@pytest.mark.parametrize("pool", ["own", "served"])
def test_pools_are_registered_and_bytes_are_right(measured: Path, pool: str) -> None:
    found = record(measured, f"facts-{pool}")
    registration = found["registration"]
    assert registration["registered_bytes"] >= registration["pool_bytes"]
    ways = ("lease", "ordered", "load", "save by layer", "save")
    assert found["wrong_pages"] == dict.fromkeys(ways, 0)
    assert found["violations"] == ""


@pytest.mark.parametrize("pool", ["own", "served"])
def test_transfers_are_measured_before_and_after_registration(measured: Path, pool: str) -> None:
    rows = record(measured, f"transfers-{pool}-64k")["rows"]
    loads = {row["way"]: row for row in rows if row["kind"] == "load"}
    assert loads["buffered"]["buffered_bytes"] > 0
    assert loads["tuned"]["buffered_bytes"] == 0
    assert all(row["gb_per_s"] > 0 for row in rows)
    assert all(row["wrong_pages"] == 0 for row in loads.values())


def test_cells_with_a_record_are_skipped_and_time_is_kept(measured: Path, tmp_path: Path) -> None:
    done = run("facts", "--out", measured, "--quick", "--library", library_path())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    late = run("facts", "--out", tmp_path, "--quick", "--limit-s", "1")
    assert late.returncode == 0
    assert "facts: served needs 40 s, 1 s are left" in late.stderr
    assert not list(tmp_path.glob("*.json"))


def test_the_report_has_tables_and_verdicts(measured: Path) -> None:
    done = run("report", measured)
    assert done.returncode == 0, done.stdout
    for title in ("Facts", "Registration", "Transfers, GB/s", "Verdicts"):
        assert f"\n{title}\n" in f"\n{done.stdout}"
    as_json = json.loads(run("report", measured, "--json").stdout)
    verdicts = {one["claim"]: one["verdict"] for one in as_json["verdicts"]}
    assert verdicts["pages with wrong bytes"] == "met"
    assert verdicts["pools that the GPU did not register"] == "met"
    assert verdicts["prompts that were loaded in part"] == "not measured"


def test_a_cell_that_fails_is_recorded_and_the_next_one_runs(tmp_path: Path) -> None:
    cells = load_tool("gpu/cells")

    def fail(session: Any) -> dict[str, Any]:
        raise RuntimeError("a planted failure")

    def stop(session: Any) -> dict[str, Any]:
        raise cells.TimeUpError

    session = cells.Session(tmp_path / "out", tmp_path / "scratch", cells.time.monotonic() + 60)
    every = [
        cells.Cell("bad", fail, 1),
        cells.Cell("good", lambda _: {"rows": []}, 1),
        cells.Cell("late", stop, 1),
        cells.Cell("never", fail, 1),
    ]
    done = cells.run_part("part", every, session)
    assert [one["ok"] for one in done] == [False, True]
    assert done[0]["error"] == "RuntimeError: a planted failure"
    assert sorted(path.name for path in session.out.iterdir()) == [
        "part-bad.json",
        "part-good.json",
    ]


def test_what_was_packed_is_checked_and_installed(tmp_path: Path) -> None:
    pieces, packed = load_tool("gpu/pieces"), tmp_path / "packed" / "scripts"
    packed.mkdir(parents=True)
    (packed / "readme").write_text("text", encoding="utf-8")
    pieces.write_manifest(packed, part="scripts")
    done = run("--site", tmp_path / "site", "unpack", tmp_path / "packed")
    assert done.returncode == 0, done.stderr
    (packed / "readme").write_text("texT", encoding="utf-8")
    done = run("--site", tmp_path / "site", "unpack", tmp_path / "packed")
    assert done.returncode == 1
    assert "has other bytes than were packed" in done.stderr
