"""SGLang: Dalsegno as a storage backend of HiCache.

* `DalsegnoHiCache`: the backend, for `--hicache-storage-backend dynamic`.
* `register`: what SGLang calls when it starts, by the entry point `sglang.srt.plugins`: from then
  on the backend is found by its name, and updates of the weights are noticed.

Importing this package imports neither SGLang nor the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dalsegno.integrations.common import lazy

if TYPE_CHECKING:
    from dalsegno.integrations.sglang.hicache import DalsegnoHiCache
    from dalsegno.integrations.sglang.plugin import register

__all__ = ["DalsegnoHiCache", "register"]

_HOMES = {"DalsegnoHiCache": "hicache", "register": "plugin"}


def __getattr__(name: str) -> Any:
    """Loads one of the two.

    Raises:
        ImportError: SGLang is missing, or a version that the integration does not know.
        AttributeError: There is no such name.
    """
    return lazy.load(__name__, _HOMES, name, "SGLang 0.5.23")
