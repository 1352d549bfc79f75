"""vLLM: Dalsegno as a secondary tier of vLLM's KV offloading.

Three names for vLLM's configuration, each loaded when it is first asked for:

* `DalsegnoConnector`: the whole connection with a flat configuration; start here.
* `DalsegnoTier`: the tier alone, for a configuration of vLLM's own `OffloadingConnector`.
* `DalsegnoCpuSpec`: vLLM's tiering on its CPU platform, where it has none of its own.

Importing this package imports neither vLLM nor the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dalsegno.integrations.common import lazy

if TYPE_CHECKING:
    from dalsegno.integrations.vllm.connector import DalsegnoConnector
    from dalsegno.integrations.vllm.spec import DalsegnoCpuSpec
    from dalsegno.integrations.vllm.tier import DalsegnoTier

__all__ = ["DalsegnoConnector", "DalsegnoCpuSpec", "DalsegnoTier"]

_HOMES = {"DalsegnoConnector": "connector", "DalsegnoCpuSpec": "spec", "DalsegnoTier": "tier"}


def __getattr__(name: str) -> Any:
    """Loads one of the three classes.

    Raises:
        ImportError: vLLM is missing, or a version that the integration does not know.
        AttributeError: There is no such name.
    """
    return lazy.load(__name__, _HOMES, name, "vLLM 0.28 to 0.33")
