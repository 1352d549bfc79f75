"""vLLM: Dalsegno as a secondary tier of vLLM's KV offloading.

Four names for vLLM's configuration, each loaded when it is first asked for:

* `DalsegnoConnector`: the whole connection with a flat configuration; start here.
* `DalsegnoTier`: the tier alone, for a configuration of vLLM's own `OffloadingConnector`.
* `DalsegnoSpec`: vLLM's tiering, with memory that goes with the engine's processes.
* `DalsegnoCpuSpec`: the same on vLLM's CPU platform, where vLLM has no tiering of its own.

`make_scheduler` is vLLM's scheduler, with requests that jump over loaded blocks; vLLM is given it
by `DalsegnoConnector`, or by its `--scheduler-cls`.

And `register`, which vLLM calls when it starts, by the entry point `vllm.general_plugins`.

Importing this package imports neither vLLM nor the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dalsegno.integrations.common import lazy

if TYPE_CHECKING:
    from dalsegno.integrations.vllm.connector import DalsegnoConnector
    from dalsegno.integrations.vllm.plugin import register
    from dalsegno.integrations.vllm.scheduling import make_scheduler
    from dalsegno.integrations.vllm.spec import DalsegnoCpuSpec, DalsegnoSpec
    from dalsegno.integrations.vllm.tier import DalsegnoTier

__all__ = [
    "DalsegnoConnector",
    "DalsegnoCpuSpec",
    "DalsegnoSpec",
    "DalsegnoTier",
    "make_scheduler",
    "register",
]

_HOMES = {
    "DalsegnoConnector": "connector",
    "DalsegnoCpuSpec": "spec",
    "DalsegnoSpec": "spec",
    "DalsegnoTier": "tier",
    "make_scheduler": "scheduling",
    "register": "plugin",
}


def __getattr__(name: str) -> Any:
    """Loads one of these classes.

    Raises:
        ImportError: vLLM is missing, or a version that the integration does not know.
        AttributeError: There is no such name.
    """
    return lazy.load(__name__, _HOMES, name, "vLLM 0.28 to 0.33")
