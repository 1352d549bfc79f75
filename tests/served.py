"""A server in a process of its own, which a test stops, kills and asks for its counters."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import dalsegno

# It ends with its standard input, so that no server outlives the tests.
PROGRAM = """
import dalsegno, json, sys
from dalsegno import DalsegnoError, Server
try:
    options = json.loads(sys.argv[3])
    if options.pop("log", False):
        dalsegno.show_events("info")
    tenants = [(name, set(users)) for name, users in options.pop("tenants", [])]
    server = Server(sys.argv[1], sys.argv[2], tenants=tenants, **options)
except DalsegnoError as error:
    print(json.dumps({"error": type(error).__name__, "message": str(error)}), flush=True)
    sys.exit(2)
print("{}", flush=True)
for _ in sys.stdin:
    print(json.dumps(server.stats()), flush=True)
server.close()
"""
# What a test waits for a server at most. It fails only if the server hangs.
LIMIT_S = 60
SIZES = {"capacity": "24MiB", "segment": "1MiB", "staging": "16MiB"}
POOL = {"dram": "16MiB", "dram_admission": "put"}


class ServerProcess:
    """A running server.

    Attributes:
        path: The directory that it owns.
        socket: The path that its clients open.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, object],
        *,
        prefix: Sequence[str] = (),
        **options: object,
    ) -> None:
        """Starts a server, and waits until it listens.

        Args:
            path: The directory.
            settings: Settings of the store.
            prefix: The command that starts the server's, if there is one.
            **options: Other arguments of `dalsegno.Server`; with `log` it logs into a pipe that
                nobody reads.

        Raises:
            DalsegnoError: What the server raised.
        """
        self.path, self.socket = path, f"unix:{path / 'serve' / 'socket'}"
        arguments = [str(path), json.dumps(dict(settings)), json.dumps(options)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", PROGRAM, *arguments],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe if options.get("log") else None,
            text=True,
        )
        said = self._answer()
        if "error" in said:
            self._reap()
            raise cast("Exception", getattr(dalsegno, said["error"])(said["message"]))

    @property
    def pid(self) -> int:
        return self.process.pid

    def stats(self) -> dict[str, Any]:
        """All counters of the server."""
        assert self.process.stdin is not None
        self.process.stdin.write("stats\n")
        self.process.stdin.flush()
        return self._answer()

    def tenant(self) -> dict[str, Any]:
        """The counters of the users of no tenant."""
        return cast("dict[str, Any]", self.stats()["tenants"][0])

    def pause(self) -> None:
        """Stops it, and waits until all of its threads have stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        """Continues it."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Ends it where it is. Killing it again does nothing."""
        self.process.kill()
        self._reap()

    def close(self) -> None:
        """Closes it as SIGTERM would. Closing it again does nothing."""
        if self.process.returncode is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            assert self.process.wait(LIMIT_S) == 0, "the server failed"
            self._reap()

    def _answer(self) -> dict[str, Any]:
        stdout = self.process.stdout
        assert stdout is not None
        ready, _, _ = select.select([stdout], [], [], LIMIT_S)
        assert ready, "the server hangs"
        line = stdout.readline()
        assert line, "the server died"
        return cast("dict[str, Any]", json.loads(line))

    def _reap(self) -> None:
        self.process.wait(LIMIT_S)
        for pipe in filter(None, (self.process.stdin, self.process.stdout, self.process.stderr)):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@contextmanager
def serving(
    path: Path,
    settings: Mapping[str, object] | None = None,
    *,
    prefix: Sequence[str] = (),
    **options: object,
) -> Iterator[ServerProcess]:
    """A server of a directory while the block runs; a small one unless there are settings."""
    server = ServerProcess(path, {**SIZES, **POOL, **(settings or {})}, prefix=prefix, **options)
    try:
        yield server
    finally:
        server.kill()
