"""The folder for files that save time and may be lost."""

from __future__ import annotations

import os
from pathlib import Path


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
