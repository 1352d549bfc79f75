"""The servers and mounts of one file system: everything belongs to one folder and ends with it.

1. The folder is locked while the process that made it lives. A folder that nobody holds is left
   from a killed run. The next run ends its processes and removes it.
2. Servers listen on an address of their own in 127.0.0.0/8. Clusters can use the same ports.
3. A program ends when the process that started it is killed. Only what such a program has started
   itself, such as the bricks of `glusterd`, waits for the next run.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dalsegno_bench.shared_fs.processes import (
    LIMIT_S,
    MARK,
    OUTSIDE,
    Server,
    mounts_in,
    remove,
    until,
)

PREFIX = "dalsegno-shared-fs-"
# What an error shows of a log.
TAIL_CHARACTERS = 2000


class ClusterError(RuntimeError):
    """A cluster does not start; the message says what failed, with the end of the logs."""


class Cluster:
    """A folder and the processes that belong to it.

    Attributes:
        folder: The folder, which has everything that the cluster writes.
        address: The address that its servers listen on.
        servers: The running programs by name.
    """

    def __init__(self, folder: Path) -> None:
        """Refers to an empty folder; :func:`opened` makes one."""
        self.folder = folder
        # One of four million: two clusters with the same address are not to be expected.
        host = secrets.randbelow(254) + 1
        self.address = f"127.{64 + secrets.randbelow(64)}.{secrets.randbelow(256)}.{host}"
        self.servers: dict[str, Server] = {}
        self._children: list[subprocess.Popen[bytes]] = []
        self._environment = {**os.environ, MARK: str(folder), "HOME": str(folder)}

    def path(self, name: str) -> Path:
        """Returns a folder of the cluster, made if needed."""
        path = self.folder / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def start(self, name: str, *command: str | Path) -> Server:
        """Starts a program in the foreground.

        Args:
            name: Its name in the cluster and of its log.
            *command: The program and its arguments.

        Returns:
            The program. It ends with the cluster, or with the thread that calls this.
        """
        words = ["setpriv", "--pdeathsig", "KILL", *map(str, command)]
        with self._log(name).open("ab") as log:
            child = subprocess.Popen(
                words,
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the tests, which then end the cluster.
                start_new_session=True,
            )
        self._children.append(child)
        return self.adopt(name, child.pid)

    def adopt(self, name: str, pid: int) -> Server:
        """Adds a process that a server of the cluster has started itself."""
        server = self.servers[name] = Server(name, pid)
        return server

    def remove_too(self, socket: Path) -> None:
        """Adds a socket outside the folder to what ends with the cluster."""
        with (self.folder / OUTSIDE).open("a") as listed:
            listed.write(f"{socket}\n")

    def run(self, *command: str | Path) -> str:
        """Runs a command of the cluster to its end.

        Returns:
            What it printed.

        Raises:
            ClusterError: It failed or did not end.
        """
        words = [str(word) for word in command]
        try:
            done = subprocess.run(
                words,
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ClusterError(f"{error}\n{self.logs()}") from error
        if done.returncode != 0:
            said = (done.stdout + done.stderr).strip()
            raise ClusterError(f"`{' '.join(words)}` failed: {said}\n{self.logs()}")
        return done.stdout

    def wait(self, what: str, ready: Callable[[], bool]) -> None:
        """Waits for something that the servers do.

        Raises:
            ClusterError: It does not happen, or a server ends meanwhile.
        """

        def check() -> bool:
            for server in self.servers.values():
                if not server.is_running():
                    raise ClusterError(f"{server.name} ended before: {what}\n{self.logs()}")
            return ready()

        try:
            until(what, check)
        except TimeoutError as error:
            raise ClusterError(f"{error}\n{self.logs()}") from error

    def is_mounted(self, point: Path) -> bool:
        """Reports whether something is mounted there; it does not touch the mount."""
        return point in mounts_in(self.folder)

    def logs(self) -> str:
        """Returns the end of each log."""
        parts = []
        for log in sorted(self.path("log").rglob("*")):
            if log.is_file():
                text = log.read_text(errors="replace")[-TAIL_CHARACTERS:]
                parts.append(f"--- {log.relative_to(self.folder)}\n{text.strip()}")
        return "\n".join(parts)

    def close(self) -> None:
        """Ends and removes everything.

        Raises:
            TimeoutError: Something is left.
        """
        for server in self.servers.values():
            server.close()
        self.servers.clear()
        try:
            remove(self.folder)
        finally:
            for child in self._children:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(LIMIT_S)

    def _log(self, name: str) -> Path:
        return self.path("log") / f"{name}.log"


@contextmanager
def _locked(folder: Path, what: str) -> Iterator[None]:
    """Holds the lock of a folder, which also ends with the process."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        until(what, lambda: _try_lock(handle))
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _parent() -> Path:
    # Short, as the path of a UNIX socket has at most 107 bytes.
    return Path(tempfile.gettempdir()).resolve()


def _remove_if_left(folder: Path) -> bool:
    """Removes the folder of a process that has ended; returns whether it had."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, PermissionError):
        # Its owner has removed it meanwhile, or is another user.
        return False
    try:
        # What another user made is not ours to remove.
        if os.fstat(handle).st_uid != os.geteuid() or not _try_lock(handle):
            return False
        remove(folder)
        return True
    finally:
        os.close(handle)


def sweep() -> list[Path]:
    """Removes what killed runs left, with their processes and mounts.

    Returns:
        The folders that were removed.

    Raises:
        TimeoutError: Something of them is left.
    """
    parent = _parent()
    with _locked(parent, f"another run sweeps {parent}"):
        return [one for one in sorted(parent.glob(f"{PREFIX}*")) if _remove_if_left(one)]


@contextmanager
def opened(kind: str) -> Iterator[Cluster]:
    """A cluster without servers. It ends with the block, with all that was started in it.

    Args:
        kind: A word for the name of its folder.

    Yields:
        The cluster.
    """
    sweep()
    parent = _parent()
    with ExitStack() as stack:
        # No other run may see the folder before it is locked.
        with _locked(parent, f"another run sweeps {parent}"):
            folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-", dir=parent))
            stack.enter_context(_locked(folder, f"{folder} is locked"))
        cluster = Cluster(folder)
        stack.callback(cluster.close)
        yield cluster
