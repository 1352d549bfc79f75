"""Values of a namespace's fields."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping

_ROPES = ("rope_parameters", "rope_scaling")
# Kinds of rotary embeddings that depend on nothing but the model. Others, such as `dynamic` and
# `longrope`, depend on the longest context.
_LENGTH_INDEPENDENT = ("deepseek_yarn", "default", "linear", "llama3", "mrope", "yarn")
# How the names of credentials end.
_CREDENTIAL = re.compile(
    r"(?i)((access|account|api|encryption|license|private|secret|signing|ssh)_?key(_id)?"
    r"|credentials?|passw(or)?d|secrets?|(^|[._])(auth|pwd)|(^|\.)tokens?"
    r"|(access|api|auth|bearer|hf|hub|refresh|session)_?tokens?)$"
)


def is_credential(name: str) -> bool:
    """Returns whether an option or a variable is called like a credential."""
    return _CREDENTIAL.search(name) is not None


def digest(value: object) -> str:
    """Returns a hash of anything that can be written as JSON: 64 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def hashed(fields: Mapping[str, object]) -> dict[str, str]:
    """Returns fields as a namespace has them: texts as they are, everything else as a hash."""
    return {
        name: value if isinstance(value, str) else digest(value) for name, value in fields.items()
    }


def nonce() -> str:
    """Returns a value that no other process has."""
    return secrets.token_hex(16)


def architectures(config: object) -> list[str]:
    """Returns the names of the classes in a model's configuration, by which people know it."""
    found = config.get("architectures") if isinstance(config, Mapping) else None
    return [str(one) for one in found] if isinstance(found, list | tuple) else []


def rope_depends_on_length(config: object, *, inside: bool = False) -> bool:
    """Returns whether a model's rotary embedding may depend on the longest context that is served.

    Args:
        config: The model's configuration, or a part of it: models of images have one for text.
        inside: Whether the part describes a rotary embedding.
    """
    if isinstance(config, list | tuple):
        return any(rope_depends_on_length(one, inside=inside) for one in config)
    if not isinstance(config, Mapping):
        return False
    kind = config.get("rope_type", config.get("type"))
    if inside and isinstance(kind, str) and kind not in _LENGTH_INDEPENDENT:
        return True
    return any(
        rope_depends_on_length(value, inside=inside or name in _ROPES)
        for name, value in config.items()
    )
