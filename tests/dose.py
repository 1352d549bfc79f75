"""How much a random test does: a little for every change, all of it in `make test-long`."""

from __future__ import annotations

import os

import pytest


def dose(small: int, full: int) -> int:
    """Returns the small number, or the full one where `DALSEGNO_DOSE` is `long`."""
    return full if os.environ.get("DALSEGNO_DOSE") == "long" else small


# A test of a bench that compiles a program for it; `make lint` checks that the programs compile.
compiles_a_bench = pytest.mark.skipif(not dose(0, 1), reason="compiles a program: make test-long")
# A test that starts engines for what other tests check without one.
long_dose = pytest.mark.skipif(not dose(0, 1), reason="starts engines: make test-long")
