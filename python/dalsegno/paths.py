"""Paths of stores and their servers, as people type them."""

from __future__ import annotations

import os
import socket
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


def is_served(directory: Path) -> bool:
    """Whether a server answers at the socket of a directory."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        try:
            line.connect(str(socket_of(directory)))
        except OSError:
            return False
    return True
