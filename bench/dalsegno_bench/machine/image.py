"""A small file system in a file, mounted for a while: it runs out of inodes or of space."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TOOLS = ("mkfs.ext4", "mount", "umount")
# Where the system's tools are that an ordinary user's PATH leaves out.
TOOLS_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


class NoImageError(RuntimeError):
    """No file system can be mounted here."""


def missing() -> str | None:
    """Says what is missing to mount an image here; ``None`` if nothing is known to be."""
    if os.geteuid() != 0:
        return "only root may mount a file system"
    lacking = [tool for tool in TOOLS if shutil.which(tool, path=TOOLS_PATH) is None]
    return f"{', '.join(lacking)} is not installed" if lacking else None


@contextmanager
def mounted(path: Path, image_bytes: int, *options: str) -> Iterator[Path]:
    """Makes an ext4 with the default number of inodes, and unmounts and removes it afterwards.

    Args:
        path: A name that does not exist; the image becomes ``path.img``, the mount ``path``.
        image_bytes: Its size; it takes space as it is filled. From 512 MiB on mkfs.ext4 makes one
            inode per 16 KiB.
        options: More options of mkfs.ext4.

    Yields:
        ``path``, an empty directory in the new file system.

    Raises:
        NoImageError: It cannot be made or mounted, with what the tool says.
    """
    image = path.with_suffix(".img")
    with image.open("xb") as file:
        file.truncate(image_bytes)
    path.mkdir()
    try:
        # Tables are written now: else a kernel thread would write them during the measurement.
        at_once = "lazy_itable_init=0,lazy_journal_init=0"
        _run("mkfs.ext4", "-q", "-E", at_once, *options, str(image))
        _run("mount", "-t", "ext4", "-o", "loop,noatime", str(image), str(path))
        (path / "lost+found").rmdir()
        yield path
    finally:
        # Asked of the system: an interrupt may come before the tool's success is known.
        if path.is_mount():
            unmount(path)
        path.rmdir()
        image.unlink()


def unmount(path: Path) -> None:
    """Unmounts; a mount that is still in use leaves the tree now and is released later."""
    try:
        _run("umount", str(path))
    except NoImageError:
        _run("umount", "--lazy", str(path))


def _run(*command: str) -> None:
    environment = {**os.environ, "PATH": TOOLS_PATH, "LC_ALL": "C"}
    program = shutil.which(command[0], path=TOOLS_PATH) or command[0]
    try:
        done = subprocess.run(
            [program, *command[1:]],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            # Ctrl-C must not stop an unmount.
            start_new_session=True,
        )
    except OSError as error:
        raise NoImageError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        raise NoImageError(f"{command[0]}: {done.stderr.strip() or done.returncode}")
