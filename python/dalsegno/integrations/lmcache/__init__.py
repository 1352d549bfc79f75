"""LMCache: Dalsegno as an L2 adapter of `lmcache server`.

    lmcache server --l2-adapter '{"type": "plugin", "module_path": "dalsegno.integrations.lmcache",
        "class_name": "DalsegnoL2Adapter",
        "adapter_params": {"path": "/var/cache/kv", "weights_fingerprint": "1"}}'

From LMCache 0.5.7 on, `--kv-load-policy dalsegno.integrations.lmcache:DalsegnoLoadPolicy` lets the
engine compute what the adapter would load more slowly.

Both are loaded when they are first asked for: importing this package imports neither LMCache nor
the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dalsegno.integrations.common import lazy

if TYPE_CHECKING:
    from dalsegno.integrations.lmcache.adapter import DalsegnoL2Adapter
    from dalsegno.integrations.lmcache.policy import DalsegnoLoadPolicy

__all__ = ["DalsegnoL2Adapter", "DalsegnoLoadPolicy"]

_HOMES = {"DalsegnoL2Adapter": "adapter", "DalsegnoLoadPolicy": "policy"}


def __getattr__(name: str) -> Any:
    """Loads the adapter or the policy.

    Raises:
        ImportError: LMCache is missing, or a version that the integration does not know.
        AttributeError: There is no such name.
    """
    version = "0.5.7" if name == "DalsegnoLoadPolicy" else "0.5.6"
    return lazy.load(__name__, _HOMES, name, f"LMCache {version}")
