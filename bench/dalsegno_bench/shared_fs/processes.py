"""Processes and mounts that belong to a folder, and their end.

1. A process belongs to a folder if its environment has `MARK=folder`. Its children inherit that,
   also those that detach. Nothing is ended by its name.
2. A signal goes through a pidfd, so it never reaches another process that got the same id.
3. Every wait has a limit.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = "DALSEGNO_SHARED_FS"
# A file in the folder that lists sockets elsewhere, to be removed too.
OUTSIDE = "outside"
# What a wait takes at most. A server starts within seconds, also on a busy machine.
LIMIT_S = 60.0


def until(what: str, ready: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Waits for a condition.

    Args:
        what: What is waited for, in a few words.
        ready: The condition.
        limit_s: The limit.

    Raises:
        TimeoutError: The condition does not hold within the limit.
    """
    deadline = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {limit_s:.0f} s")
        time.sleep(0.02)


class Server:
    """A process that a test pauses, resumes and kills.

    Attributes:
        name: Its name in the cluster, such as `brick-1`.
        pid: Its id.
    """

    def __init__(self, name: str, pid: int) -> None:
        """Refers to a running process."""
        self.name, self.pid = name, pid
        self._pidfd = os.pidfd_open(pid)

    def is_running(self) -> bool:
        """Reports whether it has not ended; a paused server is running."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    def pause(self) -> None:
        """Stops it with SIGSTOP, and waits until all its threads have stopped."""
        signal.pidfd_send_signal(self._pidfd, signal.SIGSTOP)
        until(f"{self.name} stops", lambda: set(_thread_states(self.pid)) <= {"T"})

    def resume(self) -> None:
        """Continues it with SIGCONT."""
        signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)

    def kill(self) -> None:
        """Kills it with SIGKILL, and waits for its end. Killing it again does nothing."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        until(f"{self.name} ends", lambda: not self.is_running())

    def close(self) -> None:
        """Drops the reference; the process goes on."""
        os.close(self._pidfd)


@contextmanager
def paused(*servers: Server) -> Iterator[None]:
    """Pauses servers, and resumes them at the end of the block."""
    try:
        for server in servers:
            server.pause()
        yield
    finally:
        for server in servers:
            with contextlib.suppress(ProcessLookupError):
                server.resume()


def _thread_states(pid: int) -> Iterator[str]:
    for status in Path(f"/proc/{pid}/task").glob("*/stat"):
        # A thread may end meanwhile.
        with contextlib.suppress(OSError):
            # The name before the state may hold spaces and parentheses.
            yield status.read_text().rpartition(")")[2].split()[0]


def belongs(pid: int, folder: Path) -> bool:
    """Reports whether a process belongs to a folder."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{MARK}={folder}".encode() in variables


def processes_of(folder: Path) -> list[int]:
    """Returns the ids of the processes that belong to a folder."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if belongs(pid, folder)]


def mounts_in(folder: Path) -> list[Path]:
    """Returns the mount points in a folder, the last mounted first."""
    points = [
        # The kernel writes a space as \040.
        re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split(" ")[4])
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
    ]
    return [Path(point) for point in reversed(points) if Path(point).is_relative_to(folder)]


def _none_is_left(folder: Path) -> bool:
    """Kills the processes of a folder; returns whether there were none."""
    left = processes_of(folder)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            try:
                # Asked again: the id may have been given to another process before the pidfd.
                if belongs(pid, folder):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)
    return not left


def _nothing_is_mounted(folder: Path) -> bool:
    """Unmounts what is mounted in a folder; returns whether there was nothing."""
    left = mounts_in(folder)
    for point in left:
        command = ["umount", "--lazy", str(point)]
        subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
    return not left


def _remove_sockets(listed: Path) -> None:
    """Removes the sockets that a file lists, if there is one."""
    if listed.exists():
        for socket in map(Path, listed.read_text().splitlines()):
            if socket.is_socket():
                socket.unlink()


def _is_removed(folder: Path) -> bool:
    """Removes a folder; returns whether it is gone. A killed process may still make files."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def remove(folder: Path) -> None:
    """Ends the processes of a folder, unmounts what is mounted in it and removes it.

    Processes end first: a mount whose process has ended does not hang.

    Raises:
        TimeoutError: Something is left.
    """
    until(f"the processes of {folder} end", lambda: _none_is_left(folder))
    _remove_sockets(folder / OUTSIDE)
    until(f"nothing is mounted in {folder}", lambda: _nothing_is_mounted(folder))
    until(f"{folder} is removed", lambda: _is_removed(folder))
