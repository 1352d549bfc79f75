"""Paths of stores and their servers, as people type them."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

# What precedes the path of a server's socket.
SOCKET_PREFIX = "unix:"


def local_path(text: str) -> Path:
    """Returns the path that a text means; a leading ``~`` is the home directory.

    A shell expands ``~`` only where a word begins: ``--dir=~/x`` and quoted words arrive as typed.
    """
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises for unknown users


def socket_of(directory: Path) -> Path:
    """Returns the socket of a server that owns a directory, unless it was given another one."""
    return directory / "serve" / "socket"


def is_owned(directory: Path) -> bool:
    """Whether a process, such as a server, owns the store in a directory."""
    try:
        lock = os.open(directory / "LOCK", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def store_path(path: str | os.PathLike[str]) -> str:
    """Returns the path of a store; ``~`` in that of a socket is the home directory."""
    text = os.fspath(path)
    if text.startswith(SOCKET_PREFIX):
        return SOCKET_PREFIX + str(local_path(text.removeprefix(SOCKET_PREFIX)))
    return text
