"""Tests that a machine cannot run are skipped, except in CI."""

from __future__ import annotations

import os

import pytest


def skip_if_missing(what: str | None, allowance: str) -> None:
    """Skips the test if something is missing; in CI it fails, as nobody reads skips there.

    Args:
        what: What is missing and how to get it; `None` if nothing is.
        allowance: The word in `DALSEGNO_MAY_SKIP` that lets CI skip it too.
    """
    if what is None:
        return
    if os.environ.get("CI") and allowance not in os.environ.get("DALSEGNO_MAY_SKIP", ""):
        pytest.fail(f"{what}; let it be skipped with DALSEGNO_MAY_SKIP={allowance}")
    pytest.skip(what)
