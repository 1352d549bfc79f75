"""The socket on which the processes of an engine of vLLM report doors."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dalsegno.integrations.vllm import door_line
from dalsegno.integrations.vllm.door_line import Line
from dalsegno.integrations.vllm.epoch import Epoch, State

LIMIT_S = 60.0
STRANGER = 65_534
# A program of another user: it tries to feed and to fill the socket, then takes names of its own.
AS_STRANGER = """
import os, socket, sys
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
folder, prefix = sys.argv[2:]
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
    line.setblocking(False)
    for path in (f"{folder}/socket", "\\0" + os.path.basename(folder)):
        for _ in range(5000):
            try:
                line.sendto(b"a door", path)
                print("sent")
            except OSError:
                break
    for name, mode in (("theirs", 0o700), ("open", 0o777)):
        os.mkdir(f"{prefix}{name}", mode)
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).bind(f"{prefix}theirs/socket")
"""
ENGINE = """
import sys
from dalsegno.integrations.vllm.epoch import Epoch
one = Epoch(sys.argv[1], lambda: None)
for _ in sys.stdin:
    print(one.state.name, flush=True)
"""


@pytest.fixture
def engine_id(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The id of an engine whose folder for temporary files is the test's own, and open to all."""
    # Pytest chooses its own folder before.
    tmp_path_factory.getbasetemp()
    with tempfile.TemporaryDirectory(prefix="dalsegno-test-") as folder:
        Path(folder).chmod(0o1777)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield f"test-{secrets.token_hex(4)}"


@pytest.fixture
def line(engine_id: str) -> Iterator[Line]:
    made = Line(engine_id)
    yield made
    made.close()


def test_reports_come_in_order_and_once(line: Line, engine_id: str) -> None:
    assert line.read() == []
    assert all(door_line.send(engine_id, door) for door in ("one", "two"))
    assert line.read() == ["one", "two"]
    assert line.read() == []


def test_only_this_user_can_reach_the_socket(line: Line) -> None:
    assert line.folder.stat().st_mode & 0o777 == 0o700
    assert line.folder.stat().st_uid == os.geteuid()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs programs of other users")
def test_another_user_can_neither_feed_nor_fill_nor_replace_the_socket(engine_id: str) -> None:
    one = Epoch(engine_id, lambda: None)
    prefix = Path(tempfile.gettempdir(), door_line.prefix_of(engine_id))
    (folder,) = prefix.parent.iterdir()
    command = [sys.executable, "-c", AS_STRANGER, str(STRANGER), str(folder), str(prefix)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert done.stdout == ""
    states = [one.state]
    assert door_line.send(engine_id, "load_weights")
    assert [*states, one.state] == [State.LOADED, State.MIXED]
    one.close()
    assert not door_line.send(engine_id, "load_weights"), "a stranger's folder counts"


def test_a_folder_that_others_may_use_is_ignored(line: Line, engine_id: str) -> None:
    line.folder.chmod(0o755)
    assert not door_line.send(engine_id, "load_weights")
    line.folder.chmod(0o700)
    assert door_line.send(engine_id, "load_weights")


def test_a_link_in_the_place_of_the_folder_is_ignored(line: Line, engine_id: str) -> None:
    moved = line.folder.rename(line.folder.with_name("moved"))
    line.folder.symlink_to(moved)
    assert not door_line.send(engine_id, "load_weights")


def test_a_read_is_bounded_and_a_full_queue_still_opens_a_door(
    line: Line, engine_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(door_line.send(engine_id, str(number)) for number in range(5000))
    monkeypatch.setattr(door_line, "MOST_READ", 4)
    assert line.read() == ["0", "1", "2", "3"]
    assert line.read()[0] == "4"


def test_a_long_path_of_the_folder_for_temporary_files_is_no_obstacle(
    engine_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    line = Line(engine_id)
    assert door_line.send(engine_id, "load_weights")
    assert line.read() == ["load_weights"]
    line.close()
    assert not list(deep.iterdir())


def test_without_a_place_for_the_socket_an_epoch_begins_mixed(
    engine_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert not door_line.send(engine_id, "load_weights")
    one = Epoch(engine_id, lambda: None)
    assert one.state is State.MIXED
    one.close()


def test_engines_of_two_processes_with_one_id_both_see_a_door(engine_id: str) -> None:
    one = Epoch(engine_id, lambda: None)
    with subprocess.Popen(
        [sys.executable, "-c", ENGINE, engine_id],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        states = []
        for door in ("", "load_weights"):
            assert not door or door_line.send(engine_id, door)
            other.stdin.write("\n")
            other.stdin.flush()
            states.append(other.stdout.readline().strip())
        other.stdin.close()
    assert states == ["LOADED", "MIXED"]
    assert one.state is State.MIXED
    one.close()


def test_what_killed_engines_left_is_removed_by_the_next(
    line: Line, engine_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(tempfile.gettempdir())
    dead, empty = (Path(tempfile.mkdtemp(prefix=door_line.PREFIX)) for _ in range(2))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as gone:
        gone.bind(str(dead / "socket"))
    door_line.remove_left()
    assert set(place.iterdir()) == {dead, empty, line.folder}, "they are young"
    long_ago = time.time() - 2 * door_line.YOUNG_S
    for folder in (dead, empty, line.folder):
        os.utime(folder, (long_ago, long_ago))
    other = Line(f"{engine_id}-other")
    assert set(place.iterdir()) == {line.folder, other.folder}
    assert door_line.send(engine_id, "load_weights")
    other.close()


def test_the_sockets_of_other_hosts_stay(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual machines may share the folder, and cannot see who has a socket there."""
    foreign = Path(tempfile.gettempdir(), "dalsegno-doors-01234567-aa-bb")
    foreign.mkdir(0o700)
    monkeypatch.setattr(door_line, "YOUNG_S", 0.0)
    door_line.remove_left()
    assert foreign.exists()
    assert door_line.PREFIX not in foreign.name
    assert line.folder.name.startswith(door_line.PREFIX)


@pytest.mark.parametrize("what", ["socket", "folder", "moved", "replaced"])
def test_a_socket_that_was_removed_opens_a_door_for_good(what: str, engine_id: str) -> None:
    one = Epoch(engine_id, lambda: None)
    states = [one.state]
    (folder,) = Path(tempfile.gettempdir()).iterdir()
    if what == "moved":
        folder.rename(folder.with_name("moved"))
    else:
        (folder / "socket").unlink()
    if what == "folder":
        folder.rmdir()
    if what == "replaced":
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            # The file system may use the inode again at once.
            (folder / "in the way").touch()
            other.bind(str(folder / "socket"))
    states.append(one.state)
    one.note_reset()
    one.note_use()
    assert [*states, one.state] == [State.LOADED, State.MIXED, State.MIXED]
    one.close()


def test_programs_that_clean_up_find_the_folder_locked(line: Line) -> None:
    handle = os.open(line.folder, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(handle)
