"""The settings of the SGLang integration: the keys of HiCache's extra configuration.

1. An unknown key is an error that names the nearest known one; a wrong value says what is allowed.
2. The keys that SGLang reads from the same object are left to SGLang.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dalsegno.integrations.common.settings import StoreSettings

NAME = "dalsegno"
MODULE = "dalsegno.integrations.sglang"
CLASS = "DalsegnoHiCache"
# Keys of the extra configuration that are SGLang's own.
ENGINE_KEYS = ("allocator", "backend_name", "class_name", "interface_v1", "module_path")


@dataclass(frozen=True)
class HiCacheSettings(StoreSettings):
    """The settings of one backend; with several ranks each has a folder and a capacity."""

    @classmethod
    def parse(cls, extra: Mapping[str, Any]) -> HiCacheSettings:
        """Checks HiCache's extra configuration.

        Raises:
            InvalidError: A key is unknown or missing, or a value is not allowed.
        """
        own = {name: value for name, value in extra.items() if name not in ENGINE_KEYS}
        return cls.read(own, "the extra configuration", CLASS)
