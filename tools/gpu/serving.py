"""A server of `dalsegno serve` in a process of its own, which can be asked for its counters.

    python serving.py DIR SETTINGS

It ends with its standard input, so that no server outlives the program that started it.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# A server provides its whole pool before it answers: some tenths of a second for each GiB.
START_S = 120.0


class ServerError(RuntimeError):
    """The server did not start, has ended or hangs; the message has what it printed."""


class Serving:
    """A running server.

    Attributes:
        path: What its clients open.
        pid: Number of its process.
    """

    def __init__(self, directory: Path, settings: dict[str, object], log: Path) -> None:
        """Starts a server, and waits until it listens.

        Args:
            directory: The directory of the store.
            settings: Settings of the store; `dram` is the size of the pool.
            log: File for what it prints on standard error.

        Raises:
            ServerError: It does not start.
        """
        self.path, self._log = f"unix:{directory / 'serve' / 'socket'}", log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).resolve()),
                    str(directory),
                    json.dumps(settings),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.pid = self._process.pid
        self._answer()

    def stats(self) -> dict[str, Any]:
        """Returns the counters of the server for the users of no tenant."""
        assert self._process.stdin is not None
        self._process.stdin.write("stats\n")
        self._process.stdin.flush()
        tenant: dict[str, Any] = self._answer()["tenants"][0]
        return tenant

    def wait_idle(self, limit_s: float) -> dict[str, Any]:
        """Waits until no client has a lease or a connection; returns the last counters.

        Args:
            limit_s: Most seconds to wait.
        """
        until = time.monotonic() + limit_s
        while True:
            found = self.stats()
            is_idle = not (found["leases"] or found["view_bytes"] or found["clients"])
            if is_idle or time.monotonic() > until:
                return found
            time.sleep(0.1)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready = select.select([self._process.stdout], [], [], START_S)[0]
        line = self._process.stdout.readline() if ready else ""
        if not line:
            end = self._log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise ServerError(f"the server has ended, or hangs:\n{end}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def cpu_s(self) -> float:
        """Returns the seconds that its threads have computed."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2]
        user, system = fields.split()[11:13]
        return (int(user) + int(system)) / 100

    def close(self) -> None:
        """Closes it and waits for its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def main(directory: str, settings: str) -> None:
    """Runs a server until standard input ends, and prints its counters for each line."""
    import dalsegno

    dalsegno.show_events("warn")
    server = dalsegno.Server(directory, settings)
    print("{}", flush=True)
    for _ in sys.stdin:
        print(json.dumps(server.stats()), flush=True)
    server.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
