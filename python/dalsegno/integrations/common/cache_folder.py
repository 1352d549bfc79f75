"""The folder for files that save time and may be lost."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

# What a process that was killed has left behind is removed after so many seconds.
STALE_S = 3600.0


def cache_directory() -> Path | None:
    """Returns `$XDG_CACHE_HOME/dalsegno`, or `~/.cache/dalsegno`, which may not exist yet.

    Returns:
        None if the process has neither: no absolute `XDG_CACHE_HOME`, no `HOME`, and a user
        without an entry in the password database.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if Path(base).is_absolute():
        return Path(base) / "dalsegno"
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / ".cache" / "dalsegno" if home.is_absolute() else None


def replace_file(target: Path, content: str) -> None:
    """Writes a file as a whole: a reader sees the old one or the new one.

    Raises:
        OSError: It cannot be written. The old one is as it was, and nothing else is left behind.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.stem}-"
    for left in target.parent.glob(f"{prefix}*.new"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE_S:
                left.unlink()
    handle, scratch = tempfile.mkstemp(prefix=prefix, suffix=".new", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
        Path(scratch).replace(target)
    except OSError:
        Path(scratch).unlink(missing_ok=True)
        raise
