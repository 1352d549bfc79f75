"""Disk space: how much a store takes, and a small file system that can be filled."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["MIB", "SkippedError", "files", "fill", "small", "used_bytes"]

MIB = 1 << 20
BALLAST = "ballast"
SECTOR_BYTES = 4096
COMMAND_LIMIT_S = 60


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
    """Takes all room of a file system but for ``leave_bytes``; returns the file that takes it."""
    path = directory / BALLAST
    with path.open("wb", buffering=0) as file:
        for step_bytes in (MIB, SECTOR_BYTES):
            step = b"\1" * step_bytes
            try:
                while file.write(step) == step_bytes:
                    pass
            except OSError:
                continue
        file.truncate(max(0, file.tell() - leave_bytes))
        os.fsync(file.fileno())
    return path


@contextmanager
def small(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Mounts a file system of a size: ext4 in a file, or one in memory without ``mkfs.ext4``.

    Raises:
        SkippedError: Only root may mount, or mounting is not allowed here.
    """
    if os.geteuid() != 0:
        raise SkippedError("needs root, to mount a small file system")
    image, mounted = folder / "disk.img", folder / "disk"
    mounted.mkdir()
    if shutil.which("mkfs.ext4"):
        with image.open("wb") as file:
            file.truncate(size_bytes)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
        _run("mount", "-o", "loop", str(image), str(mounted))
    else:
        _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "none", str(mounted))
    try:
        yield mounted
    finally:
        # Lazily: a process that hangs in the store must not keep the suite from going on.
        subprocess.run(["umount", "-l", str(mounted)], check=False, timeout=COMMAND_LIMIT_S)


def _run(*command: str) -> None:
    """Runs a command.

    Raises:
        SkippedError: It failed.
    """
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=COMMAND_LIMIT_S
    )
    if done.returncode != 0:
        raise SkippedError(f"{command[0]} failed here: {done.stderr.strip()}")
