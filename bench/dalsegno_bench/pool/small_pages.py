"""Runs a module of Python in a process that gets no huge pages, whatever it asks for."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence

__all__ = ["main"]

PR_SET_THP_DISABLE = 41


def main(argv: Sequence[str]) -> None:
    """Becomes ``python -m`` with the same arguments.

    Args:
        argv: The module and its arguments.

    Raises:
        OSError: The kernel refuses.
    """
    # The setting stays when another program is executed.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "huge pages cannot be turned off")
    os.execv(sys.executable, [sys.executable, "-m", *argv])  # noqa: S606 - this very Python


if __name__ == "__main__":
    main(sys.argv[1:])
