"""The clock by which a file system times its files, which may be coarser than the system's."""

from __future__ import annotations

import time
from pathlib import Path


def now_ns(path: Path) -> int:
    """A time after which the next change will be, by the clock of file times."""
    mark = path.parent / "mark"
    mark.write_bytes(b"")
    before = mark.stat().st_ctime_ns
    while True:
        mark.write_bytes(b"x")
        mark.unlink()
        mark.write_bytes(b"")
        if (found := mark.stat().st_ctime_ns) > before:
            mark.unlink()
            return found
        time.sleep(0.001)
