"""The suite's side of a store's process: calls with a time limit, and the kill."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

import dalsegno
import dalsegno_bench

__all__ = ["AbsentError", "DiedError", "FailedError", "Host", "HungError", "Origin"]

IMPORT_LIMIT_S = 180.0
CLOSE_LIMIT_S = 20.0
# Runs these very packages with any interpreter, whatever versions of them are installed there.
_BOOT = """
import importlib.util, os, sys
for folder in sys.argv[1:3]:
    name = os.path.basename(folder)
    spec = importlib.util.spec_from_file_location(
        name, folder + "/__init__.py", submodule_search_locations=[folder]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
from dalsegno_bench.faultbench import host
host.main(int(sys.argv[3]), sys.argv[4])
"""
_PACKAGES = [str(Path(one.__path__[0]).resolve()) for one in (dalsegno, dalsegno_bench)]


class HungError(Exception):
    """A call did not end in time."""


class DiedError(Exception):
    """The store's process ended by itself."""


class FailedError(Exception):
    """The store raised an error."""


class AbsentError(Exception):
    """The store cannot be loaded."""


class Host:
    """A process in which a store can be opened once."""

    def __init__(self, origin: Origin, connection: Connection, pid: int) -> None:
        self._origin, self._connection, self.pid = origin, connection, pid

    def send(self, call: str, *arguments: Any) -> None:
        """Asks for a call without waiting for its answer."""
        try:
            self._connection.send((call, arguments))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise DiedError(self._ending(call)) from error

    def answer(self, call: str, limit_s: float) -> Any:
        """Waits for the answer to the earliest call that was sent.

        Raises:
            HungError: There was none in time.
            DiedError: The process ended.
            FailedError: The store raised an error.
        """
        try:
            if not self._connection.poll(limit_s):
                raise HungError(f"{call} did not end within {limit_s:.0f} s")
            worked, value = self._connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise DiedError(self._ending(call)) from error
        if not worked:
            raise FailedError(value)
        return value

    def call(self, call: str, *arguments: Any, limit_s: float) -> Any:
        """Calls the store; raises as :meth:`answer`."""
        self.send(call, *arguments)
        return self.answer(call, limit_s)

    def answers(self) -> list[Any]:
        """Returns the answers that came before the process ended; call it after a kill."""
        came: list[Any] = []
        while True:
            try:
                worked, value = self._connection.recv()
            except (EOFError, ConnectionResetError):
                return came
            if worked:
                came.append(value)

    def kill(self) -> None:
        """Kills the process, as a crash would; one that ended stays as it is."""
        if not self._origin.has_reaped(self.pid):
            os.kill(self.pid, signal.SIGKILL)
            self._origin.reap(self.pid)

    def end(self) -> None:
        """Closes the store, then ends the process.

        Raises:
            HungError: The store did not close in time.
        """
        try:
            self.call("close", limit_s=CLOSE_LIMIT_S)
        finally:
            self.kill()

    def _ending(self, call: str) -> str:
        status = self._origin.reap(self.pid)
        why = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return f"the process died in {call}: {why}"


class Origin:
    """The process that has imported an adapter and forks the others.

    Attributes:
        facts: What the adapter says of itself.
    """

    def __init__(self, python: str, adapter: str, log: Path, temporary: Path | None = None) -> None:
        """Starts it.

        Args:
            python: The interpreter.
            adapter: The adapter's ``module:class``.
            log: Where the store's own messages go.
            temporary: For temporary files of the adapter; those of the system if not given.

        Raises:
            AbsentError: The adapter cannot be imported.
        """
        self._connection, theirs = Pipe()
        arguments = [*_PACKAGES, str(theirs.fileno()), adapter]
        command = [python, "-W", "ignore", "-c", _BOOT, *arguments]
        chosen = {} if temporary is None else {"TMPDIR": str(temporary)}
        with log.open("ab") as messages:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **chosen},
                start_new_session=True,
            )
        theirs.close()
        self._exits: dict[int, int] = {}
        worked, value = self._imported(adapter)
        if not worked:
            self.close()
            raise AbsentError(value)
        self.facts: dict[str, Any] = value

    def _imported(self, adapter: str) -> tuple[bool, Any]:
        """Waits for the import; returns whether it worked, and the adapter's facts or why not."""
        if not self._connection.poll(IMPORT_LIMIT_S):
            return False, f"the import of {adapter} did not end"
        try:
            answer: tuple[bool, Any] = self._connection.recv()
        except EOFError:
            return False, f"the import of {adapter} ended the process"
        return answer

    def fork(self) -> Host:
        """Starts a process for one opened store."""
        ours, theirs = Pipe()
        self._connection.send("fork")
        send_handle(self._connection, theirs.fileno(), self._process.pid)
        theirs.close()
        pid = self._connection.recv()
        return Host(self, ours, pid)

    def has_reaped(self, pid: int) -> bool:
        """Whether a process is known to have ended."""
        return pid in self._exits

    def reap(self, pid: int) -> int:
        """Waits for a process that ends now; returns its exit status, negative for a signal."""
        if pid not in self._exits:
            self._connection.send(pid)
            self._exits[pid] = self._connection.recv()
        return self._exits[pid]

    def close(self) -> None:
        """Kills what is left of the processes."""
        self._connection.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
