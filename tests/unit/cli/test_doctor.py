"""``dalsegno far doctor`` over real directories."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest
from tests.unit.stores import Run, start

import dalsegno

PROMISES = 7
WAIT_S = 60.0


@pytest.fixture
def far(tmp_path: Path) -> Path:
    (tmp_path / "far").mkdir()
    return tmp_path / "far"


def test_a_local_directory_is_safe_and_stays_empty(far: Path, run: Run) -> None:
    answer = run("far", "doctor", far, "--seconds", 2, "--json")
    assert answer.code == 0
    found = answer.json()
    assert found["is_safe"]
    assert [row["verdict"] for row in found["promises"]] == ["holds"] * PROMISES
    assert [row["far_workers"] for row in found["bandwidth"]] == [1, 2, 4, 8, 16, 32, 64]
    for row in found["bandwidth"]:
        assert row["read_bytes_per_s"] > 0
        assert row["publish_bytes_per_s"] > 0
    assert [row["bytes"] for row in found["latency"]] == [4096, 1 << 20]
    assert all(0 < row["p50_us"] <= row["p99_us"] for row in found["latency"])
    assert 0 < found["written_bytes"] <= 2 << 30
    assert found["left_behind"] == 0
    assert any("--other" in one["action"] for one in found["advice"])
    assert list(far.iterdir()) == []


def test_tables_say_what_was_seen(far: Path, run: Run) -> None:
    answer = run("far", "doctor", far, "--other", far, "--seconds", 2)
    assert answer.code == 0
    for words in ("direct I/O", "a new object becomes visible", "far_workers", "p99"):
        assert words in answer.out
    assert answer.out.splitlines()[-1] == "safe"
    assert "--other" not in answer.out


def test_two_different_directories_are_unsafe(far: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    started = time.monotonic()
    answer = run("far", "doctor", far, "--other", tmp_path / "other", "--seconds", 2)
    assert time.monotonic() - started < WAIT_S
    assert answer.code == 1
    assert "a catalog was not visible" in answer.out
    assert "check that both directories are the same one" in answer.out
    assert answer.out.splitlines()[-1] == "unsafe"
    assert list(far.iterdir()) == []


def test_ctrl_c_removes_what_was_written(far: Path) -> None:
    # A shell starts what runs in its background with SIGINT ignored, and children inherit that.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with start("far", "doctor", far, "--seconds", 60, preexec_fn=heard) as process:
        until = time.monotonic() + WAIT_S
        while not list(far.glob("*/*")):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert list(far.iterdir()) == []


def test_objects_that_cannot_be_read_are_listed_with_what_to_do(
    far: Path, run: Run, tmp_path: Path
) -> None:
    settings = {"capacity": "64MiB", "dram": 0, "staging": "16MiB", "far_flush_s": 0.1}
    with dalsegno.open(tmp_path / "kv", far=str(far), **settings) as store:
        space = store.namespace({"model": "m"}, layers=1, slice_bytes=4096)
        space.put_batch([bytes(32)], [bytes(4096)])
    (mine,) = far.iterdir()
    (catalog,) = mine.glob("*.catalog")
    number = int(catalog.name.removesuffix(".catalog"), 16)
    damaged = mine / "00000000000000aa.catalog"
    damaged.write_bytes(bytes(8192))
    large = mine / "00000000000000ab.catalog"
    with large.open("wb") as file:
        file.truncate(17 << 20)
    (mine / "00000000000000ac.catalog").mkdir()
    folder = far / f"{'0' * 32}-0000000000000001"
    folder.symlink_to(mine)
    found = run("far", "doctor", far, "--seconds", 2, "--json").json()
    assert found["is_safe"]
    rows = {one["file"]: one for one in found["unreadable"]["objects"]}
    assert set(rows) == {f"{mine.name}/00000000000000a{end}.catalog" for end in "abc"}
    assert "larger than any" in rows[f"{mine.name}/{large.name}"]["why"]
    assert "dalsegno prune" in rows[f"{mine.name}/{damaged.name}"]["action"]
    assert "directory" in rows[f"{mine.name}/00000000000000ac.catalog"]["why"]
    assert any("3 objects" in one["what"] for one in found["advice"])
    answer = run("far", "doctor", far, "--seconds", 2)
    assert answer.code == 0
    assert "objects that cannot be read; stores skip them" in answer.out
    assert f"{number:016x}.catalog" not in answer.out


# It prints what the commands show of a location to a user who may not list all of its folders.
AS_USER = """
import json, os, sys
import dalsegno
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
far = sys.argv[1]
found = [
    dalsegno.far_survey(far)["faults"],
    dalsegno.far_verify(far)["findings"],
    dalsegno.far_doctor(far, seconds=2)["unreadable"]["objects"],
]
print(json.dumps(found))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs a program as another user")
def test_a_folder_of_another_user_is_named_and_the_others_are_looked_at() -> None:
    # Others may enter this folder; the folder of a test is private.
    with tempfile.TemporaryDirectory(prefix="dalsegno-") as home:
        Path(home).chmod(0o755)
        far = Path(home, "far")
        far.mkdir()
        far.chmod(0o777)
        strangers = far / f"{'1' * 32}-0000000000000001"
        strangers.mkdir(mode=0o700)
        (far / f"{'2' * 32}-0000000000000002").mkdir(mode=0o755)
        command = [sys.executable, "-c", AS_USER, str(far)]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, timeout=WAIT_S
        )
        survey, verify, doctor = json.loads(done.stdout)
        for rows in (survey, verify):
            assert [row["file"] for row in rows] == [strangers.name]
            assert "Permission denied" in rows[0]["what"]
        (row,) = doctor
        assert row["file"] == strangers.name
        assert "run the stores of all hosts as one user" in row["action"]


@pytest.mark.parametrize(
    ("options", "words"),
    [(("--seconds", 1), "it must be 2 to 600"), (("--other", "/no/such"), "/no/such")],
)
def test_a_wrong_argument_is_refused(
    far: Path, run: Run, options: tuple[object, ...], words: str
) -> None:
    answer = run("far", "doctor", far, *options)
    assert answer.code == 2
    assert words in answer.err


def test_a_store_is_refused_and_untouched(path: Path, run: Run) -> None:
    before = sorted(path.rglob("*"))
    answer = run("far", "doctor", path)
    assert answer.code == 2
    assert "holds a store" in answer.err
    assert sorted(path.rglob("*")) == before
