"""What else a model's files name: other models, and repositories with code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Ends of the names of settings by which a configuration names another model.
_NAMES_OF_MODELS = ("_model_id", "model_name_or_path")
# What a checkpoint was made of. No engine loads that.
_ORIGINS = ("base_model_name_or_path", "compression_config", "quantization_config")


def named_models(config: object, more: tuple[str, ...] = ()) -> Iterator[str]:
    """Yields the other models that a model's configuration names, whose weights are parts of it.

    Args:
        config: The configuration, or a part of it.
        more: Further ends of the names of settings by which an engine finds models.
    """
    if isinstance(config, Mapping):
        for name, value in config.items():
            if name in _ORIGINS:
                continue
            if isinstance(value, str) and value and str(name).endswith((*_NAMES_OF_MODELS, *more)):
                yield value
            else:
                yield from named_models(value, more)


def code_elsewhere(file: Path) -> Iterator[str]:
    """Yields the repositories whose code a file with an `auto_map` refers to."""
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    yield from _auto_maps(content)


def _auto_maps(content: Any) -> Iterator[str]:
    """Yields the repositories of every `auto_map`, those of nested configurations too."""
    if isinstance(content, list):
        for one in content:
            yield from _auto_maps(one)
    if not isinstance(content, dict):
        return
    for key, value in content.items():
        if key != "auto_map" or not isinstance(value, dict):
            yield from _auto_maps(value)
            continue
        for places in value.values():
            for one in places if isinstance(places, list) else [places]:
                if isinstance(one, str) and "--" in one:
                    yield one.split("--")[0]
