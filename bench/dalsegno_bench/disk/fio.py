"""Measures a device with fio: one cell is one request size at one depth."""

import itertools
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dalsegno_bench.machine.speed import Sample


class FioMissingError(RuntimeError):
    """fio is not installed."""


@dataclass(frozen=True)
class Cell:
    """One way to drive the device.

    Attributes:
        pattern: fio's ``rw``: ``read``, ``randread`` or ``write``.
        request_bytes: Size of a request.
        depth: Requests in flight.
        registered: Whether the buffers are registered with the ring, which pins them once.
    """

    pattern: str
    request_bytes: int
    depth: int
    registered: bool = False

    @property
    def name(self) -> str:
        """The cell as people write it: ``randread 512K qd4``."""
        registered = " registered" if self.registered else ""
        return f"{self.pattern} {self.request_bytes >> 10}K qd{self.depth}{registered}"


def cells(patterns: tuple[str, ...], sizes: tuple[int, ...], depths: tuple[int, ...]) -> list[Cell]:
    """All combinations, with ordinary and with registered buffers."""
    return [Cell(*cell) for cell in itertools.product(patterns, sizes, depths, (False, True))]


def version() -> str:
    """Returns the version of fio.

    Raises:
        FioMissingError: It is not installed.
    """
    if shutil.which("fio") is None:
        raise FioMissingError("fio is not installed: apt-get install fio (or your system's way)")
    done = subprocess.run(["fio", "--version"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def prepare(path: Path, file_bytes: int) -> None:
    """Writes the file that the cells read and overwrite, so that no cell pays for allocation."""
    _run(path, Cell("write", 1 << 20, 8), file_bytes, file_bytes)


def measure(path: Path, cell: Cell, file_bytes: int, io_bytes: int) -> Sample:
    """Runs one cell over an existing file with O_DIRECT and io_uring.

    Args:
        path: The file.
        cell: How to drive it.
        file_bytes: Size of the file.
        io_bytes: Bytes to move.

    Returns:
        Bandwidth and CPU cost.
    """
    job = _run(path, cell, file_bytes, io_bytes)
    side = job["write" if cell.pattern == "write" else "read"]
    seconds = side["runtime"] / 1e3
    moved = side["io_bytes"] / 1e9
    cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds
    return Sample(gb_per_s=moved / seconds, cpu_s_per_gb=cpu_s / moved)


def _run(path: Path, cell: Cell, file_bytes: int, io_bytes: int) -> dict[str, Any]:
    done = subprocess.run(
        [
            "fio",
            "--name=cell",
            f"--filename={path}",
            f"--size={file_bytes}",
            f"--io_size={io_bytes}",
            f"--rw={cell.pattern}",
            f"--bs={cell.request_bytes}",
            f"--iodepth={cell.depth}",
            "--ioengine=io_uring",
            "--direct=1",
            f"--fixedbufs={int(cell.registered)}",
            "--overwrite=1",
            "--randrepeat=0",
            "--output-format=json",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    result: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    return result
