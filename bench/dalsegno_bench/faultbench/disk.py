"""Disk space: how much a store takes, and a small file system that can be filled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dalsegno_bench.machine import image

__all__ = ["MIB", "SkippedError", "files", "fill", "small", "used_bytes"]

MIB = 1 << 20
BALLAST = "ballast"
SECTOR_BYTES = 4096


class SkippedError(Exception):
    """A probe cannot be made here; the message says why."""


def files(directory: Path) -> list[Path]:
    """Returns all files under a directory."""
    found = []
    for folder, _, names in os.walk(directory):
        found += [Path(folder) / name for name in names]
    return sorted(found)


def used_bytes(directory: Path) -> int:
    """Counts the bytes that the files under a directory take on disk."""
    total = 0
    for path in files(directory):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def fill(directory: Path, leave_bytes: int = 0) -> Path:
    """Fills a file system except ``leave_bytes``; returns the file that fills it."""
    path = directory / BALLAST
    with path.open("wb", buffering=0) as file:
        for step_bytes in (MIB, SECTOR_BYTES):
            step = b"\1" * step_bytes
            try:
                while file.write(step) == step_bytes:
                    pass
            except OSError:
                continue
        file.truncate(max(0, os.fstat(file.fileno()).st_size - leave_bytes))
        os.fsync(file.fileno())
    return path


@contextmanager
def small(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Mounts an ext4 of a size, all of which is there to be filled.

    Raises:
        SkippedError: No file system can be made or mounted here; the message says why.
    """
    lacking = image.missing()
    if lacking:
        raise SkippedError(f"no small file system: {lacking}")
    with ExitStack() as until:
        try:
            # Nothing is kept for root.
            disk = until.enter_context(image.mounted(folder / "disk", size_bytes, "-m", "0"))
        except image.NoImageError as error:
            raise SkippedError(f"no small file system: {error}") from error
        yield disk
