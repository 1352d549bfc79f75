"""The processes of the bench `pool`: servers, and clients that measure at the same time."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dalsegno_bench.pool.workset import Dose, Prompts

__all__ = [
    "Addresses",
    "Clients",
    "cpu_s_of",
    "read",
    "serving",
    "serving_tcp",
    "serving_zmq",
    "stop",
    "write",
]

STOP_S = 30
# What `dalsegno serve` prints last when clients may come.
READY = "engines"


@dataclass(frozen=True)
class Addresses:
    """Where clients find the contenders, and the processes whose CPU time counts.

    Attributes:
        small: The store with small blocks.
        large: The store with large blocks.
        zmq: Path of the ZeroMQ socket.
        tcp: Port of the TCP server.
        own: Folder for stores of single clients.
        pids: Server by contender.
    """

    small: str
    large: str
    zmq: str
    tcp: int
    own: str
    pids: dict[str, int]


def cpu_s_of(pid: int) -> float:
    """CPU seconds of a process so far, all of its threads together."""
    # The clock of a process, as `clock_getcpuclockid` derives it.
    return time.clock_gettime((~pid << 3) | 2)


@contextlib.contextmanager
def running(command: Sequence[str], ready: str) -> Iterator[tuple[int, str]]:
    """Runs a server while the block runs; yields its process and the line that says it is ready.

    Raises:
        RuntimeError: The server ended before.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = next((one for one in process.stdout if one.startswith(ready)), None)
            if line is None:
                raise RuntimeError(f"{' '.join(command)} ended at once")
            yield process.pid, line.strip()
        finally:
            stop(process)


def stop(process: subprocess.Popen[str]) -> None:
    """Ends a process."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()


@contextlib.contextmanager
def serving(
    directory: Path, pool_bytes: int, capacity: int, *, huge_pages: bool = True
) -> Iterator[tuple[int, str]]:
    """Runs `dalsegno serve`; yields its process and the path for :func:`dalsegno.open`."""
    command = [sys.executable, "-m"]
    command += [] if huge_pages else ["dalsegno_bench.pool.small_pages"]
    command += ["dalsegno.cli", "serve", str(directory)]
    command += ["--pool", str(pool_bytes), "--capacity", str(capacity)]
    # Not in the directory, whose path may be longer than that of a socket may be.
    with tempfile.TemporaryDirectory(prefix="dalsegno-") as folder:
        socket = Path(folder) / "socket"
        with running([*command, "--socket", str(socket)], READY) as (pid, _):
            yield pid, f"unix:{socket}"


@contextlib.contextmanager
def serving_tcp(program: Path, prompts: Prompts) -> Iterator[tuple[int, int]]:
    """Runs the TCP server; yields its process and its port."""
    sizes = [f"--blocks={prompts.total_blocks}", f"--block-bytes={prompts.block_bytes}"]
    with running([str(program), *sizes], "") as (pid, line):
        yield pid, int(line)


@contextlib.contextmanager
def serving_zmq(path: Path, blocks: int) -> Iterator[tuple[int, str]]:
    """Runs the ZeroMQ server with so many blocks; yields its process and the path of its socket."""
    module = "dalsegno_bench.pool.zeromq"
    command = [sys.executable, "-m", module, str(path), str(blocks)]
    with running(command, "ready") as (pid, _):
        yield pid, str(path)


class Clients:
    """Client processes, started when they are first needed. Call :meth:`close` at the end.

    Args:
        addresses: Where they find the contenders.
        dose: How much they measure.
    """

    def __init__(self, addresses: Addresses, dose: Dose) -> None:
        self._addresses, self._dose = addresses, dose
        self._processes: list[subprocess.Popen[str]] = []

    def close(self) -> None:
        """Ends all of them."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            with process:
                stop(process)

    def measure(self, what: str, clients: int) -> list[dict[str, Any]]:
        """Has clients do the same at the same time.

        Args:
            what: The contender and the operation, separated by a space.
            clients: How many.

        Returns:
            What each measured. The first has the CPU seconds of the server too, as `server_cpu_s`.
        """
        while len(self._processes) < clients:
            self._start()
        chosen = self._processes[:clients]
        wanted = {"what": what, "seconds": self._dose.seconds}
        for process in chosen:
            write(process, json.dumps(wanted))
        for process in chosen:
            read(process)
        pid = self._addresses.pids.get(what.partition(" ")[0])
        before = cpu_s_of(pid) if pid else 0.0
        for process in chosen:
            write(process, "go")
        found: list[dict[str, Any]] = [json.loads(read(process)) for process in chosen]
        found[0]["server_cpu_s"] = cpu_s_of(pid) - before if pid else 0.0
        return found

    def _start(self) -> None:
        given = {**vars(self._addresses), "dose": asdict(self._dose), "seed": len(self._processes)}
        command = [sys.executable, "-m", "dalsegno_bench.pool.client", json.dumps(given)]
        pipe = subprocess.PIPE
        self._processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))


def write(process: subprocess.Popen[str], line: str) -> None:
    """Sends a line to a client."""
    assert process.stdin is not None
    print(line, file=process.stdin, flush=True)


def read(process: subprocess.Popen[str]) -> str:
    """Waits for a line of a client.

    Raises:
        RuntimeError: The client ended.
    """
    assert process.stdout is not None
    if line := process.stdout.readline():
        return line
    raise RuntimeError(f"a client ended with {process.wait(STOP_S)}")
