"""Lists of what does not count for an identity, each name with its reason.

Everything else counts. So a file, an option or a variable that is new costs hits, never bytes.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any


@functools.cache
def load(package: str) -> Mapping[str, Any]:
    """Returns the lists in the `excluded.toml` of a package: table -> name -> reason."""
    text = resources.files(package).joinpath("excluded.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
