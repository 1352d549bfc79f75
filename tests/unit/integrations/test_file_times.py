"""What the times of a file prove."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dalsegno.integrations.common import file_times

SECOND_NS = 1_000_000_000


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
    assert file_times.changed_since(file, changed_ns)
    assert not file_times.changed_since(file, changed_ns + 90 * SECOND_NS)
    os.utime(file, ns=(changed_ns + 100 * SECOND_NS,) * 2)
    assert file_times.changed_since(file, changed_ns + 90 * SECOND_NS)


def test_the_clock_of_a_server_may_be_a_minute_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    soon_ns = file.stat().st_ctime_ns + 30 * SECOND_NS
    mounts(monkeypatch, "rw - xfs /dev/sdb rw")
    assert not file_times.changed_since(file, soon_ns)
    mounts(monkeypatch, "rw - nfs4 server:/x rw")
    assert file_times.changed_since(file, soon_ns)
    assert not file_times.changed_since(file, soon_ns + 60 * SECOND_NS)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"x")
    link.symlink_to("nowhere")
    assert file_times.changed_since(link, link.lstat().st_ctime_ns)


def test_the_engine_began_before_now_and_not_long_ago() -> None:
    began_ns = file_times.engine_start_ns()
    assert 0 < began_ns < time.time_ns()
    boot_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert began_ns > boot_ns
