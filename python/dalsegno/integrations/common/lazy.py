"""Loads the classes that an engine is given by name, when they are first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


def load(package: str, homes: Mapping[str, str], name: str, engine: str) -> Any:
    """Returns something of an integration; the engine is imported only now.

    Args:
        package: The integration, `dalsegno.integrations.ENGINE`.
        homes: The module of each name that the integration offers.
        name: What is asked for.
        engine: The engine and its versions, for the message.

    Raises:
        ImportError: The engine is missing, or a version that the integration does not know.
        AttributeError: There is no such name.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{package}.{homes[name]}")
    except ImportError as error:
        if not (error.name or "").startswith(package.rpartition(".")[2]):
            raise
        raise ImportError(
            f"{name} needs {engine} in this Python environment, and importing {error.name!r} "
            f"failed: {error}"
        ) from error
    return getattr(module, name)
