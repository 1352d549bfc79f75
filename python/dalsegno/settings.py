"""The settings of a store: those of a file, and those that a program gives."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from typing import Any

from dalsegno._native import DalsegnoError, InvalidError, parse_bytes
from dalsegno.paths import far_place, local_path


def merged(given: Mapping[str, object]) -> dict[str, object]:
    """Returns the settings given, and for the others those of the file that DALSEGNO_CONFIG names.

    Args:
        given: Settings by name; those that are ``None`` count as not given.

    Raises:
        InvalidError: The file cannot be read, a value is neither a finite number nor text, or
            `far` is no path.
    """
    settings = {**_of_file(), **{k: v for k, v in given.items() if v is not None}}
    for name, value in settings.items():
        _check(name, value)
    if isinstance(far := settings.get("far"), str):
        settings["far"] = far_place(far)
    return settings


def _check(name: str, value: object) -> None:
    """Refuses values that JSON cannot express: the store reads its settings as JSON."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        # What was taken for far_options may be secret.
        what = type(value).__name__ if name == "far_options" else repr(value)
        raise InvalidError(f"{name} must be a finite number or text, got {what}") from error


def _of_file() -> Mapping[str, Any]:
    name = os.environ.get("DALSEGNO_CONFIG")
    if not name:
        return {}
    try:
        return tomllib.loads(local_path(name, "DALSEGNO_CONFIG").read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidError(
            f"DALSEGNO_CONFIG names {name}, which cannot be read: {error}"
        ) from error


def overruled(wanted: Mapping[str, object], limits: Mapping[str, Any]) -> str:
    """Names the settings of a client that differ from those of its server.

    Args:
        wanted: The client's settings.
        limits: The bounds of the server's store.

    Returns:
        The settings with both values; nothing if all agree.
    """
    pairs = []
    for name, value in wanted.items():
        served = limits.get(f"{name}_bytes", limits.get(f"{name}_bytes_per_s", limits.get(name)))
        if served is not None and served not in (value, _bytes(value)):
            pairs.append(f"{name} is {served!r}, not {value!r}")
    return ", ".join(pairs)


def _bytes(value: object) -> object:
    """A byte count given as text."""
    try:
        return parse_bytes(value) if isinstance(value, str) else value
    except DalsegnoError:
        return value
