"""Limits how fast some processes read from a disk: the controller `blkio` of cgroups, version 1.

The limit also holds for reads with O_DIRECT and with io_uring. Writes are not limited.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Throttle", "missing", "works"]

ROOT = Path("/sys/fs/cgroup/blkio")
LIMIT = "blkio.throttle.read_bps_device"
PROCESSES = "cgroup.procs"
DEVICES = Path("/sys/dev/block")
# The test reads so many bytes, at a rate at which that takes a second.
TEST_BYTES = 16 << 20
PIECE = 1 << 20
# A test read may take so many times longer than at the rate, and be so much faster.
SLOWEST, FASTEST = 1.5, 0.8
REMOVE_S = 5.0


def device(folder: Path) -> str:
    """Returns the number of the disk below a folder, as `major:minor`.

    A limit applies to a whole disk, so the number of a partition is not returned.
    """
    number = folder.stat().st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    place = DEVICES / name
    if (place / "partition").exists():
        return (place.resolve().parent / "dev").read_text(encoding="ascii").strip()
    return name


def missing(folder: Path) -> str:
    """Returns what is missing to limit reads from the disk of a folder; empty if nothing is."""
    if not (ROOT / LIMIT).exists():
        return f"{ROOT / LIMIT} does not exist: the controller blkio of cgroups v1 is not mounted"
    if not os.access(ROOT, os.W_OK):
        return f"{ROOT} cannot be written: root is needed"
    if not (DEVICES / device(folder)).exists():
        return f"{folder} is not on a disk: its device is {device(folder)}"
    return ""


class Throttle:
    """A group for each process, with the same limit. All groups are removed at the end.

    Each process has the limit for itself: reads that one of them has given up are still in the
    queue of the disk, and take nothing from the others.
    """

    def __init__(self, folder: Path) -> None:
        """Starts without a limit.

        Args:
            folder: On the disk whose reads are limited.
        """
        self._device, self._limit = device(folder), 0
        self._groups: list[Path] = []

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Removes all groups."""
        for group in self._groups:
            _remove(group)

    def add(self, process: int) -> None:
        """Adds a process with all of its threads.

        Args:
            process: Its number.
        """
        group = ROOT / f"dalsegno-first-token-{process}"
        group.mkdir()
        self._groups.append(group)
        self._write(group)
        (group / PROCESSES).write_text(str(process), encoding="ascii")

    def limit(self, bytes_per_s: int) -> None:
        """Sets the limit.

        Args:
            bytes_per_s: Bytes per second that each process reads; 0 for no limit.
        """
        self._limit = bytes_per_s
        for group in self._groups:
            self._write(group)

    def _write(self, group: Path) -> None:
        (group / LIMIT).write_text(f"{self._device} {self._limit}\n", encoding="ascii")


def _remove(group: Path) -> None:
    """Removes a group. Processes that are left in it return to the root group."""
    until = time.monotonic() + REMOVE_S
    while True:
        for number in (group / PROCESSES).read_text(encoding="ascii").split():
            with contextlib.suppress(OSError):
                (ROOT / PROCESSES).write_text(number, encoding="ascii")
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


def works(throttle: Throttle, folder: Path) -> tuple[bool, float]:
    """Reads a file with O_DIRECT at a limited rate.

    Returns:
        Whether the limit holds, and the seconds of the read over those at the rate.
    """
    path = folder / "throttle-test"
    path.write_bytes(os.urandom(TEST_BYTES))
    with path.open("rb") as file:
        os.fsync(file.fileno())
    throttle.limit(TEST_BYTES)
    try:
        command = [sys.executable, "-m", __name__, str(path)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as reader:
            throttle.add(reader.pid)
            seconds = float(reader.communicate("read\n")[0])
    finally:
        throttle.limit(0)
        path.unlink(missing_ok=True)
    return FASTEST <= seconds <= SLOWEST, seconds


def main() -> None:
    """Reads the file that is named, and prints the seconds that it took."""
    sys.stdin.readline()
    file = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
    # O_DIRECT needs aligned memory.
    memory = mmap.mmap(-1, PIECE)
    started = time.perf_counter()
    for at in range(0, os.fstat(file).st_size, PIECE):
        os.preadv(file, [memory], at)
    print(time.perf_counter() - started)
    os.close(file)


if __name__ == "__main__":
    main()
