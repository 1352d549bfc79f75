"""Paths as people type them on a command line."""

from __future__ import annotations

import os
from pathlib import Path


def local_path(text: str) -> Path:
    """Returns the path that a text means; a leading ``~`` is the home directory.

    A shell expands ``~`` only where a word begins: ``--dir=~/x`` and quoted words arrive as typed.
    """
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises for unknown users
