"""Values of a namespace's fields."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Any

_LENGTH_DEPENDENT = ("dynamic", "longrope", "su")


def digest(value: object) -> str:
    """Returns a hash of anything that can be written as JSON: 64 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def nonce() -> str:
    """Returns a value that no other process has."""
    return secrets.token_hex(16)


def rope_depends_on_length(config: Mapping[str, Any]) -> bool:
    """Returns whether a model's rotary embedding depends on the longest context that is served."""
    for name in ("rope_scaling", "rope_parameters"):
        scaling = config.get(name)
        if isinstance(scaling, Mapping):
            kinds = [scaling, *(one for one in scaling.values() if isinstance(one, Mapping))]
            if any(kind.get("rope_type", kind.get("type")) in _LENGTH_DEPENDENT for kind in kinds):
                return True
    return False
