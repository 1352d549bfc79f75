"""How much a random test does: a little for every change, all of it in `make test-long`."""

from __future__ import annotations

import os


def dose(small: int, full: int) -> int:
    """Returns the small number, or the full one where `DALSEGNO_DOSE` is `long`."""
    return full if os.environ.get("DALSEGNO_DOSE") == "long" else small
