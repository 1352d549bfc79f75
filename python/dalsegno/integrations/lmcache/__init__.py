"""LMCache: Dalsegno as an L2 adapter of `lmcache server`.

    lmcache server --l2-adapter '{"type": "plugin", "module_path": "dalsegno.integrations.lmcache",
        "class_name": "DalsegnoL2Adapter",
        "adapter_params": {"path": "/var/cache/kv", "capacity": "200GiB"}}'

`DalsegnoL2Adapter` is loaded when it is first asked for: importing this package imports neither
LMCache nor the store.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dalsegno.integrations.lmcache.adapter import DalsegnoL2Adapter

__all__ = ["DalsegnoL2Adapter"]

_HOMES = {"DalsegnoL2Adapter": "adapter"}


def __getattr__(name: str) -> Any:
    """Loads the adapter.

    Raises:
        ImportError: LMCache is missing, or a version that the integration does not know.
        AttributeError: There is no such name.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    except ImportError as error:
        if not (error.name or "").startswith("lmcache"):
            raise
        raise ImportError(
            f"{name} needs LMCache 0.5.6 in this Python environment, and importing "
            f"{error.name!r} failed: {error}"
        ) from error
    return getattr(module, name)
