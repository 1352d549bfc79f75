"""Values of a namespace's fields."""

from __future__ import annotations

import hashlib
import json
import secrets


def digest(value: object) -> str:
    """Returns a hash of anything that can be written as JSON: 64 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def nonce() -> str:
    """Returns a value that no other process has."""
    return secrets.token_hex(16)
