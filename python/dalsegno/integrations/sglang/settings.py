"""The settings of the SGLang integration: the keys of HiCache's extra configuration.

1. An unknown key is an error that names the nearest known one; a wrong value says what is allowed.
2. The keys that SGLang reads from the same object are left to SGLang.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from dalsegno.integrations.common import settings as common

NAME = "dalsegno"
MODULE = "dalsegno.integrations.sglang"
CLASS = "DalsegnoHiCache"
# Keys of the extra configuration that are SGLang's own.
ENGINE_KEYS = ("allocator", "backend_name", "class_name", "interface_v1", "module_path")

_CHECKS: dict[str, common.Check] = {
    "capacity": common.parse_bytes,
    "codec": common.codec,
    "store": common.mapping,
    "load_timeout_s": common.seconds,
    "store_timeout_s": common.seconds,
    "salt": common.text,
    "weights_fingerprint": common.text,
}


@dataclass(frozen=True)
class HiCacheSettings:
    """The settings of one backend.

    Attributes:
        path: Directory of the store; made if missing. With several ranks each has a folder in it.
        capacity: Most bytes of disk, such as `"200GiB"`; the store's default if not given. With
            several ranks each has that much.
        codec: `zstd` stores pages shrunk without loss, `none` as they are. It is no part of the
            identity: pages that were stored either way are found either way.
        store: Further settings of the store, as `dalsegno.open` takes them.
        load_timeout_s: Seconds after which pages that are still being read count as a miss.
        store_timeout_s: Seconds after which pages that are still being written are given up.
        salt: Separates tenants: stores with different salts never share a page.
        weights_fingerprint: Stands for the model's weights where their files cannot be read; who
            sets it vouches that equal fingerprints mean equal weights.
    """

    path: Path
    capacity: int | None = None
    codec: str = "none"
    store: Mapping[str, Any] = field(default_factory=dict)
    load_timeout_s: float = 10.0
    store_timeout_s: float = 30.0
    salt: str = ""
    weights_fingerprint: str = ""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Returns the names of all settings."""
        return tuple(item.name for item in fields(cls))

    @classmethod
    def parse(cls, extra: Mapping[str, Any]) -> HiCacheSettings:
        """Checks HiCache's extra configuration.

        Raises:
            InvalidError: A key is unknown or missing, or a value is not allowed.
        """
        own = {name: value for name, value in extra.items() if name not in ENGINE_KEYS}
        common.check_keys(own, cls.names(), "the extra configuration")
        return cls(path=common.directory(CLASS, own.get("path")), **common.checked(own, _CHECKS))

    def store_settings(self) -> dict[str, Any]:
        """Returns the settings with which the store is opened.

        Its DRAM tier is off unless asked for: SGLang's host pools keep the same pages in memory.
        """
        return common.store_settings(self.store, self.capacity)
