"""The socket on which the processes of an engine report doors to its scheduler.

1. The socket is in a folder of this user with mode 0700, in the folder for temporary files. So no
   other user can send to it or fill its queue, and every datagram in it is a door.
2. The folder's name has a hash of vLLM's engine id and a random part, so no other user can take it
   first. A sender uses each such folder that belongs to this user, and ignores all others.
3. A sender is done when the datagram is queued. It never waits. If the queue is full, then it holds
   datagrams that are not read yet. The receiver reads one before each use, and each is a door.
4. A read ends after a bounded number of datagrams. The first of them has opened a door.
5. A killed process leaves its folder. The next engine of the same user removes it. The name says in
   which run of which kernel the socket is: whether another host has it cannot be found out.
6. A socket that somebody removed reports a door at each read, as real ones would no longer arrive.
   Programs that clean up respect the lock that the receiver holds on the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from dalsegno.integrations.common.file_times import boot_id

PREFIX = f"dalsegno-doors-{hashlib.sha256(boot_id().encode()).hexdigest()[:8]}-"
# More than the queue of a socket holds (`net.unix.max_dgram_qlen`).
MOST_READ = 1024
# A folder is older than this before it counts as left: its process has bound the socket by then.
YOUNG_S = 60.0
_REASON_BYTES = 200
_NAME = "socket"


def prefix_of(engine_id: str) -> str:
    """Returns how the names of an engine's folders begin."""
    return f"{PREFIX}{hashlib.sha256(engine_id.encode()).hexdigest()[:32]}-"


def _folders(prefix: str) -> list[Path]:
    """Returns the folders whose names begin like this, of any user."""
    with os.scandir(tempfile.gettempdir()) as entries:
        return [Path(one.path) for one in entries if one.name.startswith(prefix)]


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[tuple[int, str]]:
    """Opens a folder of this user; yields its descriptor and the path of its socket.

    The path leads through the descriptor: it cannot be moved away, and is never too long.

    Raises:
        OSError: It is no folder, or others may use it.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        facts = os.fstat(handle)
        if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o077:
            raise PermissionError(f"{folder} is not this user's alone")
        yield handle, f"/proc/self/fd/{handle}/{_NAME}"
    finally:
        os.close(handle)


def _send(folder: Path, data: bytes) -> bool:
    """Sends a datagram; returns whether somebody will read it, or earlier ones, before a use."""
    try:
        with (
            _inside(folder) as (_, path),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line,
        ):
            line.setblocking(False)
            line.sendto(data, path)
    except BlockingIOError:
        # Only this user's datagrams are in the queue, and each that is read from now on is a door.
        return True
    except OSError:
        return False
    return True


def send(engine_id: str, door: str) -> bool:
    """Reports a door to the engine of another process; returns whether it will see it.

    Never raises and never waits.
    """
    try:
        folders = _folders(prefix_of(engine_id))
    except OSError:
        return False
    data = door.encode()[:_REASON_BYTES]
    # Each of them gets the report.
    seen = [_send(folder, data) for folder in folders]
    return any(seen)


def _remove(folder: Path, handle: int) -> None:
    """Removes a folder with its socket; never raises."""
    with contextlib.suppress(OSError):
        os.unlink(_NAME, dir_fd=handle)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _is_left(handle: int, path: str) -> bool:
    """Returns whether no process has the socket of a folder."""
    if time.time() - os.fstat(handle).st_mtime < YOUNG_S:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        try:
            line.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return True
    return False


def remove_left() -> None:
    """Removes what killed engines of this user left. Never raises."""
    with contextlib.suppress(OSError):
        for folder in _folders(PREFIX):
            with contextlib.suppress(OSError), _inside(folder) as (handle, path):
                if _is_left(handle, path):
                    _remove(folder, handle)


class Line:
    """The receiving end, one for each engine in a process."""

    def __init__(self, engine_id: str) -> None:
        """Makes the folder and binds the socket.

        Raises:
            OSError: There is no place for temporary files.
        """
        remove_left()
        self.folder = Path(tempfile.mkdtemp(prefix=prefix_of(engine_id)))
        self._held = contextlib.ExitStack()
        self._socket = self._held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        try:
            self._socket.setblocking(False)
            handle, path = self._held.enter_context(_inside(self.folder))
            # Some file systems have no locks.
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._socket.bind(path)
            self._number = self._number_there()
        except OSError:
            self.close()
            raise

    def _number_there(self) -> int:
        """Returns the inode where senders look for the socket, 0 if there is nothing."""
        try:
            return (self.folder / _NAME).lstat().st_ino
        except OSError:
            return 0

    def read(self) -> list[str]:
        """Returns the doors that were reported since the last call, at most `MOST_READ`.

        If the socket is no longer where senders look, that is one of them.
        """
        found: list[str] = []
        while len(found) < MOST_READ:
            try:
                found.append(self._socket.recv(_REASON_BYTES).decode(errors="replace"))
            except OSError:
                # It is empty, or it was closed meanwhile: then its tiers are gone.
                break
        if self._number_there() != self._number:
            found.append(f"a call that is no longer reported, as somebody removed {self.folder},")
        return found

    def close(self) -> None:
        """Stops to listen, and removes the folder."""
        self._held.close()
        with contextlib.suppress(OSError), _inside(self.folder) as (handle, _):
            _remove(self.folder, handle)
