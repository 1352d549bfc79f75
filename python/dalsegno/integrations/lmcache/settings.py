"""The settings of the LMCache integration, as `adapter_params` gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from dalsegno import InvalidError
from dalsegno.integrations.common.settings import (
    Check,
    check_keys,
    checked,
    codec,
    count,
    directory,
    mapping,
    parse_bytes,
    seconds,
    store_settings,
    text,
)

_CHECKS: dict[str, Check] = {
    "capacity": parse_bytes,
    "codec": codec,
    "store": mapping,
    "load_timeout_s": seconds,
    "store_timeout_s": seconds,
    "max_load_tasks": count,
    "max_store_tasks": count,
    "max_store_bytes": parse_bytes,
    "model": text,
    "weights_fingerprint": text,
    "salt": text,
}


@dataclass(frozen=True)
class AdapterSettings:
    """The settings of one adapter.

    Attributes:
        path: Directory of the store; made if missing. One process has it open at a time.
        capacity: Most bytes of disk, such as `"200GiB"`; the store's default if not given.
        codec: `zstd` stores objects shrunk without loss, `none` as they are. It is no part of the
            identity: objects that were stored either way are found either way.
        store: Further settings of the store, as `dalsegno.open` takes them.
        load_timeout_s: Seconds after which objects that are still being read count as a miss.
        store_timeout_s: Seconds after which objects that are still being written are given up.
        max_load_tasks: Load tasks under way; one more is refused at once and is a miss.
        max_store_tasks: Store tasks under way; one more is refused at once and fails.
        max_store_bytes: Bytes being written, which LMCache cannot evict from its memory meanwhile;
            3/4 of that memory if not given.
        model: Folder of the only model that is served, or its only file. Its weights are hashed at
            start, so that other weights under the same name never meet these objects.
        weights_fingerprint: Stands for the weights where they cannot be read; who sets it vouches
            that equal fingerprints mean equal weights.
        salt: Separates tenants: stores with different salts never share an object.
    """

    path: Path
    capacity: int | None = None
    codec: str = "none"
    store: Mapping[str, Any] = field(default_factory=dict)
    load_timeout_s: float = 10.0
    store_timeout_s: float = 30.0
    max_load_tasks: int = 64
    max_store_tasks: int = 64
    max_store_bytes: int | None = None
    model: str = ""
    weights_fingerprint: str = ""
    salt: str = ""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Returns the names of all settings."""
        return tuple(item.name for item in fields(cls))

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> AdapterSettings:
        """Checks what a configuration gives.

        Args:
            given: What stands under `adapter_params`.

        Raises:
            InvalidError: A key is unknown or missing, or a value is not allowed.
        """
        check_keys(given, cls.names(), "adapter_params")
        path = directory('DalsegnoL2Adapter: "adapter_params"', given.get("path"))
        settings = cls(path=path, **checked(given, _CHECKS))
        if bool(settings.model) == bool(settings.weights_fingerprint):
            raise InvalidError(
                'adapter_params needs either "model", the folder of the only model that is served, '
                'or "weights_fingerprint", a text of yours that changes whenever weights do: '
                "LMCache's keys do not tell the weights behind a model's name"
            )
        return settings

    def store_settings(self) -> dict[str, Any]:
        """Returns the settings with which the store is opened."""
        return store_settings(self.store, self.capacity)
