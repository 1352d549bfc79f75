"""The socket on which the processes of an engine report doors to its scheduler.

1. The socket is in a folder of this user with mode 0700, in the folder for temporary files. So no
   other user can send to it or fill its queue, and every datagram in it is a door.
2. The folder's name has a hash of vLLM's engine id and a random part, so no other user can take it
   first. A sender uses each such folder that belongs to this user, and ignores all others.
3. A sender is done when the datagram is queued. It never waits. If the queue is full, then it holds
   datagrams that are not read yet. The receiver reads one before each use, and each is a door.
4. A read ends after a bounded number of datagrams. The first of them has opened a door.
5. A killed process leaves its folder. The next engine of the same user removes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "dalsegno-doors-"
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
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            with _inside(self.folder) as (_, path):
                self._socket.bind(path)
        except OSError:
            self.close()
            raise

    def read(self) -> list[str]:
        """Returns the doors that were reported since the last call, at most `MOST_READ`."""
        found: list[str] = []
        while len(found) < MOST_READ:
            try:
                found.append(self._socket.recv(_REASON_BYTES).decode(errors="replace"))
            except OSError:
                # It is empty, or it was closed meanwhile: then its tiers are gone.
                break
        return found

    def close(self) -> None:
        """Stops to listen, and removes the folder."""
        self._socket.close()
        with contextlib.suppress(OSError), _inside(self.folder) as (handle, _):
            _remove(self.folder, handle)
