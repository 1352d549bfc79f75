"""Dalsegno: a crash-safe, tiered store for the KV cache of language models.

A prefix once computed is loaded, not recomputed. A cache may fail to help, but it never fails a
request and never returns wrong bytes.

    import dalsegno

    with dalsegno.open("/var/cache/kv", capacity="200GiB") as store:
        fields = {"model": "m", "weights": "sha256:…"}
        namespace = store.namespace(fields, layers=32, slice_bytes=65536)
        namespace.put_batch(chain, blocks)
        hits = namespace.get_batch(chain, buffers)
"""

import json
import os
import sys
import tomllib
from collections.abc import Mapping
from typing import Any

from dalsegno._native import (
    ClosedError,
    CorruptError,
    DalsegnoError,
    FullError,
    IncompatibleError,
    InvalidError,
    LayerWriter,
    Namespace,
    PoisonedError,
    PutReport,
    RemovalWatch,
    Store,
    Transfer,
    UnavailableError,
    __version__,
    config_keys,
    info,
    inspect,
    list_extents,
    parse_bytes,
    repair,
    verify,
)
from dalsegno.paths import local_path

__all__ = [
    "ClosedError",
    "CorruptError",
    "DalsegnoError",
    "FullError",
    "IncompatibleError",
    "InvalidError",
    "LayerWriter",
    "Namespace",
    "PoisonedError",
    "PutReport",
    "RemovalWatch",
    "Store",
    "Transfer",
    "UnavailableError",
    "__version__",
    "config_keys",
    "info",
    "inspect",
    "list_extents",
    "open",
    "parse_bytes",
    "repair",
    "verify",
]


def open(path: str | os.PathLike[str], **settings: object) -> Store:  # noqa: A001 - reads as dalsegno.open
    """Opens the store in a directory, creating both if they do not exist.

    One process owns a store; its threads may share it, its forked children may not: fork before a
    store is opened. Close it, or use it as a context manager.

    Args:
        path: The store's directory, on a local file system; a leading ``~`` is the home directory.
        **settings: What differs from the defaults; docs/guides/configuration.md lists all. Byte
            counts may be numbers or text such as ``"200GiB"`` or ``"200Gi"``. Settings given here
            go before those of the file that the environment variable ``DALSEGNO_CONFIG`` names.

    Returns:
        The open store.

    Raises:
        InvalidError: A setting is unknown or does not fit, or the directory holds something else.
        UnavailableError: Another process owns the store, the directory cannot be written, or this
            process was forked while a store was open.
        IncompatibleError: A newer version wrote the store.
    """
    merged = {**_settings_of_file(), **{k: v for k, v in settings.items() if v is not None}}
    for name, value in merged.items():
        _check_setting(name, value)
    store = Store(path, json.dumps(merged))
    if "capacity" not in merged:
        _tell_capacity(store)
    return store


def _check_setting(name: str, value: object) -> None:
    """Refuses what JSON, in which the store reads its settings, cannot express."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidError(f"{name} must be a finite number or text, got {value!r}") from error


def _settings_of_file() -> Mapping[str, Any]:
    name = os.environ.get("DALSEGNO_CONFIG")
    if not name:
        return {}
    try:
        return tomllib.loads(local_path(name).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidError(
            f"DALSEGNO_CONFIG names {name}, which cannot be read: {error}"
        ) from error


def _tell_capacity(store: Store) -> None:
    """Says on standard error how much disk was chosen, since nobody else did."""
    gib = store.limits()["capacity_bytes"] / (1 << 30)
    print(  # noqa: T201 - a choice made for the caller is told, logging configured or not
        f"dalsegno: {store.path} may use {gib:.1f} GiB, 80% of what the disk can give;"
        ' set capacity="…GiB" to choose',
        file=sys.stderr,
    )
