"""What the times of a file prove."""

from __future__ import annotations

import logging
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.checkout import ROOT

from dalsegno.integrations.common import file_times

SECOND_NS = 1_000_000_000
LIMIT_S = 60.0


def mounts(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """Has every file lie on one mount, as /proc/self/mountinfo describes it."""
    read = Path.read_text

    def instead(path: Path, **options: str) -> str:
        if str(path).startswith("/proc/self/fdinfo/"):
            return "pos:\t0\nflags:\t0100000\nmnt_id:\t77\n"
        if str(path) == "/proc/self/mountinfo":
            return f"7 1 8:1 / / rw - ext4 /dev/sda rw\n77 7 8:2 / /m {line}\n"
        return read(path, **options)

    monkeypatch.setattr(Path, "read_text", instead)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rw,relatime shared:1 - ext4 /dev/sdb rw,discard", True),
        ("rw - xfs /dev/sdb rw", True),
        ("rw - btrfs /dev/sdb rw", True),
        ("ro - ext4 /dev/sdb rw", False),
        ("rw - ext4 /dev/sdb ro", False),
        ("rw - overlay overlay rw", False),
        ("rw - fuse.s3fs s3fs rw", False),
        ("rw - fuse s3 rw", False),
        ("rw - nfs4 server:/x rw", False),
        ("rw - tmpfs tmpfs rw", False),
        ("ro - squashfs /dev/sdb ro", False),
        ("rw - ceph server:/x rw", False),
    ],
)
def test_times_are_trusted_on_writable_local_file_systems_only(
    line: str, *, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    mounts(monkeypatch, line)
    assert file_times.trusted(file) is expected


def test_times_are_not_trusted_in_an_image_or_without_a_run_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    mounts(monkeypatch, "rw - ext4 /dev/loop0 rw")
    assert file_times.trusted(file)
    with monkeypatch.context() as patch:
        patch.setattr(file_times, "boot_id", lambda: "")
        assert not file_times.trusted(file)
    image = SimpleNamespace(st_dev=os.makedev(7, 0))
    monkeypatch.setattr(Path, "stat", lambda _: image)
    assert not file_times.trusted(file)


def test_a_file_changed_since_a_time_if_its_content_or_its_place_did(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    changed_ns = file.stat().st_ctime_ns
    assert file_times.change_since(file, changed_ns)
    assert not file_times.change_since(file, changed_ns + 90 * SECOND_NS)
    os.utime(file, ns=(changed_ns + 100 * SECOND_NS,) * 2)
    assert file_times.change_since(file, changed_ns + 90 * SECOND_NS)


def test_the_clock_of_a_server_may_be_a_minute_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    soon_ns = file.stat().st_ctime_ns + 30 * SECOND_NS
    mounts(monkeypatch, "rw - xfs /dev/sdb rw")
    assert not file_times.change_since(file, soon_ns)
    mounts(monkeypatch, "rw - nfs4 server:/x rw")
    assert file_times.change_since(file, soon_ns)
    assert not file_times.change_since(file, soon_ns + 60 * SECOND_NS)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"x")
    link.symlink_to("nowhere")
    assert file_times.change_since(link, link.lstat().st_ctime_ns)


def test_the_engine_began_before_now_and_not_long_ago() -> None:
    began_ns = file_times.engine_start_ns()
    assert 0 < began_ns < time.time_ns()
    boot_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert began_ns > boot_ns


# A shell that makes a file and becomes the engine, as the entry point of a container.
ENTRY_POINT = """
sleep 0.1
echo weights > "$1"
sleep 0.1
exec "$2" -c "$3" "$1" "${@:4}"
"""
# The engine and a child of it print how the file changed since the engine began.
ENGINE = """
import os, sys
sys.path.insert(0, os.getcwd())
from tests.unit.integrations import started_engine
started_engine.main(*sys.argv[1:])
"""


def by_entry_point(file: Path, *announce: str) -> list[str]:
    """What an engine whose entry point makes a file says of it, and then its child."""
    shell = ["bash", "-c", ENTRY_POINT, "entry", str(file), sys.executable, ENGINE, *announce]
    done = subprocess.run(
        shell, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S
    )
    return done.stdout.splitlines()


def test_a_model_that_the_entry_point_downloaded_is_in_place_when_the_engine_begins(
    tmp_path: Path,
) -> None:
    assert by_entry_point(tmp_path / "one", "announce") == ["''"] * 2
    # Without the announcement a child knows only when the shell began.
    engine, child = by_entry_point(tmp_path / "two")
    assert engine == "''"
    assert "changed after the engine began to start" in child


def test_only_the_children_of_a_process_use_its_announcement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parent = SimpleNamespace(pid=os.getppid())
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: parent)
    began_ns = file_times.program_start_ns()
    assert began_ns is not None
    early = began_ns - SECOND_NS
    monkeypatch.setenv("DALSEGNO_ENGINE_START", f"{parent.pid} {early}")
    assert file_times.engine_start_ns() == early
    for other in (f"0 {early}", f"{parent.pid}", f"{parent.pid} x", ""):
        monkeypatch.setenv("DALSEGNO_ENGINE_START", other)
        assert file_times.engine_start_ns() != early
    # A program that ran for long before.
    monkeypatch.setenv("DALSEGNO_ENGINE_START", f"{parent.pid} {began_ns - 601 * SECOND_NS}")
    assert file_times.engine_start_ns() == began_ns


def test_what_a_process_announces_stays_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DALSEGNO_ENGINE_START", "")
    began_ns = file_times.engine_start_ns()
    file_times.announce_start()
    monkeypatch.setattr(file_times, "program_start_ns", lambda: 7)
    file_times.announce_start()
    assert file_times.engine_start_ns() == began_ns
    assert os.environ["DALSEGNO_ENGINE_START"] == f"{os.getpid()} {began_ns}"


def test_a_note_of_the_start_that_cannot_be_true_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = file_times._started(os.getpid())
    assert began is not None
    for noted in (None, 0.0, began - 100, time.time() + 100):
        monkeypatch.setattr(logging, "_startTime", noted)
        found = file_times.program_start_ns()
        assert found is not None
        assert abs(found / 1e9 - began) < 1
    noted_ns = int((began + 0.001) * 1e9)
    for noted in (noted_ns, noted_ns / 1e9):
        monkeypatch.setattr(logging, "_startTime", noted)
        assert abs((file_times.program_start_ns() or 0) - noted_ns) < 1000
    monkeypatch.setattr(file_times, "_started", lambda _: None)
    assert file_times.program_start_ns() is None
    assert file_times.engine_start_ns() == 0


def test_the_root_of_another_process_changes_when_that_process_begins() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        link = Path(f"/proc/{other.pid}/root")
        assert file_times.is_magic(link)
        assert file_times.change_since(link, time.time_ns() - 60 * SECOND_NS)
        assert not file_times.change_since(link, time.time_ns() + SECOND_NS)
        other.communicate(b"\n")
    with pytest.raises(OSError, match="proc"):
        file_times.change_since(link, 0)
    assert not file_times.is_magic(Path("/proc/self"))


def test_a_change_names_its_time_and_the_file_system_whose_clock_may_be_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    changed_ns = file.stat().st_ctime_ns
    assert "UTC, and the engine at" in file_times.change_since(file, changed_ns)
    mounts(monkeypatch, "rw - fuse.s3fs s3fs rw")
    said = file_times.change_since(file, changed_ns + 12 * SECOND_NS)
    assert "it changed 12 s before" in said
    assert "(fuse.s3fs), which may be a minute off" in said
