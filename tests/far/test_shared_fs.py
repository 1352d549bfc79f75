"""What shared file systems promise, on which the far tier relies, and what they do not promise.

A test of what is not promised looks for one breach and skips if it finds none: a breach is a
matter of time, and its absence proves nothing.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from tests.far.files import in_background, race, read_direct, sync_folder, write
from tests.far.shared_fs import mounted

from dalsegno_bench.shared_fs.kinds import KINDS, MORE_KINDS
from dalsegno_bench.shared_fs.mounts import SharedFs
from dalsegno_bench.shared_fs.processes import paused, until

pytestmark = pytest.mark.slow

# Within this time another node sees a new name.
SEEN_S = 30.0
RECORD_BYTES = 64
# Within this time the end of one node fails its calls, and lets those of another one go on. CephFS
# keeps what a node held for 60 s, as it may only have lost its network.
ENDED_S = {"seaweed": 60, "juicefs": 60, "cephfs": 150}


@dataclass(frozen=True)
class Places:
    """A folder of a test, seen through both mounts."""

    a: Path
    b: Path


def places(fs: SharedFs, name: str) -> Places:
    """Makes a folder in A that B sees."""
    found = Places(fs.a / name, fs.b / name)
    found.a.mkdir()
    until("B sees the folder", found.b.is_dir)
    return found


@pytest.fixture(params=list(KINDS))
def fs(request: pytest.FixtureRequest) -> SharedFs:
    """Each of the file systems."""
    found: SharedFs = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def at(fs: SharedFs, request: pytest.FixtureRequest) -> Places:
    """A folder of the test's own on each of the file systems."""
    return places(fs, request.node.originalname)


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_new_name_is_seen_by_the_other_node(at: Places) -> None:
    write(at.a / "new", b"bytes", sync=True)
    until("B sees the name", (at.b / "new").exists, SEEN_S)
    assert (at.b / "new").read_bytes() == b"bytes"
    assert names(at.b) == ["new"]


def test_a_new_name_is_seen_where_it_was_missed_before(at: Places) -> None:
    assert not (at.b / "new").exists()
    assert names(at.b) == []
    write(at.a / "new", b"bytes", sync=True)
    until("B sees the name", (at.b / "new").exists, SEEN_S)
    until("B lists the name", lambda: names(at.b) == ["new"], SEEN_S)
    assert (at.b / "new").read_bytes() == b"bytes"


def test_a_file_renamed_to_a_new_name_is_seen_whole(at: Places) -> None:
    content = os.urandom(1 << 20)
    write(at.a / "pack.tmp", content, sync=True)
    assert not (at.b / "pack").exists()
    (at.a / "pack.tmp").rename(at.a / "pack")
    sync_folder(at.a)
    until("B sees the name", (at.b / "pack").exists, SEEN_S)
    assert (at.b / "pack").read_bytes() == content


def test_direct_io_moves_the_same_bytes_from_one_node_to_the_other(at: Places) -> None:
    content = os.urandom(3 << 20)
    write(at.a / "pack", content, direct=True, sync=True)
    until("B sees the name", (at.b / "pack").exists, SEEN_S)
    assert read_direct(at.b / "pack") == content


def test_a_reader_of_a_removed_file_gets_its_bytes_or_an_error(at: Places) -> None:
    content = os.urandom(4 << 20)
    write(at.a / "pack", content, sync=True)
    with (at.b / "pack").open("rb") as reader:
        read = reader.read(4096)
        (at.a / "pack").unlink()
        try:
            read += reader.read()
        except OSError:
            return
    assert content.startswith(read)


def test_a_removed_name_is_missed_by_the_other_node(at: Places) -> None:
    write(at.a / "pack", b"bytes", sync=True)
    until("B sees the name", (at.b / "pack").exists, SEEN_S)
    (at.a / "pack").unlink()
    # Caches may show it for longer than a new one: a reader that believes them gets an error.
    until("B misses the name", lambda: not (at.b / "pack").exists(), 10)


def test_files_and_folders_can_be_synced(at: Places) -> None:
    (at.a / "folder").mkdir()
    sync_folder(at.a)
    write(at.a / "folder" / "file", b"bytes", sync=True)


def test_free_space_is_reported_to_both_nodes(at: Places) -> None:
    for place in (at.a, at.b):
        space = os.statvfs(place)
        assert space.f_bavail * space.f_frsize > 1 << 20


def test_a_paused_server_blocks_a_read_and_a_resumed_one_completes_it(
    fs: SharedFs, at: Places
) -> None:
    content = os.urandom(1 << 20)
    write(at.a / "pack", content, direct=True, sync=True)
    until("B sees the name", (at.b / "pack").exists, SEEN_S)
    with paused(*fs.storage):
        reading = in_background(lambda: read_direct(at.b / "pack"))
        with pytest.raises(TimeoutError):
            reading.result(timeout=1)
    assert reading.result(timeout=30) == content


def test_killed_servers_of_gluster_fail_what_only_they_serve() -> None:
    with mounted("gluster_default") as fs:
        at, content = places(fs, "killed"), os.urandom(1 << 20)

        def read(place: Path) -> bytes:
            return in_background(lambda: read_direct(place / "pack")).result(timeout=60)

        write(at.a / "pack", content, sync=True)
        fs.clients[0].kill()
        with pytest.raises(OSError, match=r"not connected|aborted"):
            read(at.a)
        assert read(at.b) == content
        fs.storage[0].kill()
        assert read(at.b) == content
        fs.storage[1].kill()
        with pytest.raises(OSError, match="not connected"):
            read(at.b)


@pytest.mark.parametrize("kind", list(ENDED_S))
def test_a_killed_client_fails_its_mount_and_no_other(kind: str) -> None:
    with mounted(kind) as fs:
        at = places(fs, "killed")
        write(at.a / "pack", b"bytes", sync=True)
        fs.clients[0].kill()
        with pytest.raises(OSError, match=r"not connected|aborted"):
            in_background((at.a / "pack").read_bytes).result(timeout=ENDED_S[kind])
        assert in_background((at.b / "pack").read_bytes).result(timeout=ENDED_S[kind]) == b"bytes"


# What is not promised.


def double_winners(at: Places, create: Callable[[Path], None]) -> int:
    """Returns in how many of 300 rounds both nodes made the same name."""
    a, b = race(300, (lambda number: create(at.a / str(number)), lambda n: create(at.b / str(n))))
    assert a | b == set(range(300))
    return len(a & b)


def create_exclusively(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def test_both_nodes_of_seaweedfs_can_create_a_file_exclusively(seaweed: SharedFs) -> None:
    for attempt in range(5):
        if double_winners(places(seaweed, f"exclusive-{attempt}"), create_exclusively):
            return
    pytest.skip("1500 races had one winner each; SeaweedFS does not promise that")


def test_both_nodes_of_seaweedfs_can_lock_a_file(seaweed: SharedFs) -> None:
    at = places(seaweed, "lock")
    write(at.a / "lock", b"")
    with (at.a / "lock").open("rb") as a, (at.b / "lock").open("rb") as b:
        fcntl.flock(a, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pytest.skip("the lock excluded the other node; SeaweedFS does not promise that")


def stale_reads(at: Places, attempts: int) -> int:
    """Returns how many of B's reads, each after A overwrote the file, had old bytes."""
    stale = 0
    for number in range(attempts):
        content = b"%08d" % number * 1024
        write(at.a / "same", content)
        try:
            stale += (at.b / "same").read_bytes() != content
        except FileNotFoundError:
            stale += 1
    return stale


def test_an_overwritten_file_may_be_read_stale_on_gluster(gluster_default: SharedFs) -> None:
    if not stale_reads(places(gluster_default, "stale"), 100):
        pytest.skip("no read of 100 was stale; GlusterFS promises that only if it is tuned")


def test_tuned_gluster_reads_what_another_node_has_overwritten(gluster_tuned: SharedFs) -> None:
    assert stale_reads(places(gluster_tuned, "stale"), 100) == 0


@pytest.mark.parametrize("kind", list(MORE_KINDS))
def test_other_file_systems_have_one_content_one_creator_and_one_lock(
    kind: str, request: pytest.FixtureRequest
) -> None:
    fs: SharedFs = request.getfixturevalue(kind)
    assert stale_reads(places(fs, "stale"), 100) == 0
    assert double_winners(places(fs, "exclusive"), create_exclusively) == 0
    at = places(fs, "lock")
    write(at.a / "lock", b"")
    with (at.a / "lock").open("rb") as a, (at.b / "lock").open("rb") as b:
        fcntl.flock(a, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)


def read_during_renames(at: Places, count: int) -> tuple[int, int]:
    """Reads a name on B while A renames other files over it.

    Each read must have all bytes of one of the files.

    Returns:
        How many reads there were, and how many of them found no file.
    """
    contents = {b"%08d" % number * 512 for number in range(count)}
    write(at.a / "same", min(contents), sync=True)
    until("B sees the name", (at.b / "same").exists, SEEN_S)
    renamed = threading.Event()

    def read() -> tuple[int, int]:
        reads = missed = 0
        while not renamed.is_set():
            reads += 1
            try:
                assert (at.b / "same").read_bytes() in contents
            except FileNotFoundError:
                missed += 1
        return reads, missed

    reading = in_background(read)
    try:
        for content in sorted(contents):
            write(at.a / "new", content, sync=True)
            (at.a / "new").rename(at.a / "same")
    finally:
        renamed.set()
    return reading.result(timeout=60)


def test_a_name_may_be_missed_while_files_are_renamed_over_it_on_juicefs(juicefs: SharedFs) -> None:
    if not read_during_renames(places(juicefs, "renamed"), 200)[1]:
        pytest.skip("no read missed the name; JuiceFS does not promise that")


def test_a_name_is_never_missed_while_files_are_renamed_over_it_on_cephfs(cephfs: SharedFs) -> None:
    reads, missed = read_during_renames(places(cephfs, "renamed"), 100)
    assert reads > 0
    assert missed == 0


@pytest.mark.parametrize("kind", list(MORE_KINDS))
def test_records_that_both_nodes_append_may_be_lost(
    kind: str, request: pytest.FixtureRequest
) -> None:
    fs: SharedFs = request.getfixturevalue(kind)
    for attempt in range(5):
        at = places(fs, f"appended-{attempt}")
        write(at.a / "log", b"", sync=True)
        race(200, (partial(append, at.a / "log"), partial(append, at.b / "log")))
        if (at.a / "log").stat().st_size < 400 * RECORD_BYTES:
            return
    pytest.skip("all records of 5 times 400 were there; no file system of these promises that")


def append(path: Path, number: int) -> None:
    """Appends a record."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, b"%08d" % number * (RECORD_BYTES // 8))
    finally:
        os.close(file)
