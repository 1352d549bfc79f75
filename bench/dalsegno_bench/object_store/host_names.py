"""Names of hosts that only this process knows, for clients that know a bucket by its host alone."""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["lead_to"]

CLONE_NEWNS = 0x00020000
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
HOSTS = Path("/etc/hosts")


def lead_to(address: str, host: str) -> None:
    """Has a name lead to an address, in this thread and in those that it starts from now on.

    They get a mount namespace of their own, where another file is mounted over `/etc/hosts`. It
    needs root.

    Raises:
        PermissionError: This process may not do that.
        OSError: The system refuses.
    """
    libc: Any = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(CLONE_NEWNS), "unshare")
    _check(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "make mounts private")
    with tempfile.NamedTemporaryFile("w", prefix="dalsegno-hosts-") as names:
        names.write(f"{HOSTS.read_text()}\n{address} {host}\n")
        names.flush()
        bound = libc.mount(os.fsencode(names.name), os.fsencode(HOSTS), None, MS_BIND, None)
        _check(bound, "mount")


def _check(status: int, what: str) -> None:
    if status:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}; a name for a bucket needs root")
