"""LMCache: Dalsegno as an L2 adapter of `lmcache server`.

    lmcache server --l2-adapter '{"type": "plugin", "module_path": "dalsegno.integrations.lmcache",
        "class_name": "DalsegnoL2Adapter",
        "adapter_params": {"path": "/var/cache/kv", "weights_fingerprint": "1"}}'

`DalsegnoL2Adapter` is loaded when it is first asked for: importing this package imports neither
LMCache nor the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dalsegno.integrations.common import lazy

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
    return lazy.load(__name__, _HOMES, name, "LMCache 0.5.6")
