"""The settings of the vLLM integration: read, checked once, and turned into vLLM's own terms.

1. What vLLM itself understands is handed on under vLLM's names and with vLLM's defaults.
2. Expanding an expanded configuration changes nothing: vLLM builds connectors more than once.
"""

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

MODULE = "dalsegno.integrations.vllm"
TIER_TYPE = "DalsegnoTier"
CPU_SPEC = "DalsegnoCpuSpec"
GPU_SPEC = "TieringOffloadingSpec"

# Keys of `kv_connector_extra_config` that vLLM's tiering reads itself.
ENGINE_KEYS = (
    "block_size",
    "blocks_per_chunk",
    "cpu_bytes_to_use",
    "eviction_policy",
    "offload_prompt_only",
)
_TIER_ONLY = ("identity", "locality", "options_fingerprint")


def _locality(name: str, value: object) -> str:
    """Checks vLLM's word for where a tier is."""
    if value in ("LOCAL", "REMOTE"):
        return str(value)
    raise InvalidError(f"{name} is {value!r}; it must be LOCAL or REMOTE")


_CHECKS: dict[str, Check] = {
    "capacity": parse_bytes,
    "codec": codec,
    "store": mapping,
    "load_timeout_s": seconds,
    "store_timeout_s": seconds,
    "max_load_jobs": count,
    "max_store_jobs": count,
    "max_store_bytes": parse_bytes,
    "salt": text,
    "weights_fingerprint": text,
    "options_fingerprint": text,
    "identity": mapping,
    "locality": _locality,
}


@dataclass(frozen=True)
class TierSettings:
    """The settings of one tier.

    Attributes:
        path: Directory of the store; made if missing. One engine has it open at a time.
        capacity: Most bytes of disk, such as `"200GiB"`; the store's default if not given.
        codec: `zstd` stores blocks shrunk without loss, `none` as they are. It is no part of the
            identity: blocks that were stored either way are found either way.
        store: Further settings of the store, as `dalsegno.open` takes them.
        load_timeout_s: Seconds after which blocks that are still being read count as a miss.
        store_timeout_s: Seconds after which blocks that are still being written are given up.
        max_load_jobs: Load jobs under way; one more is refused at once and its blocks computed.
        max_store_jobs: Store jobs under way; one more is refused at once and its blocks not kept.
        max_store_bytes: Bytes being written, which vLLM cannot evict meanwhile; 3/4 of the primary
            tier if not given.
        salt: Separates tenants: stores with different salts never share a block.
        weights_fingerprint: Stands for the model's weights where their files cannot be read; who
            sets it vouches that equal fingerprints mean equal weights.
        options_fingerprint: Stands for the options of vLLM that its own `OffloadingConnector`
            hides: `--quantization`, `--hf-overrides`, `--attention-backend`, LoRA adapters. Who
            sets it vouches that equal fingerprints mean equal options and adapters. Needed without
            `identity`.
        identity: Everything that must agree before blocks are shared. `DalsegnoConnector` sets it.
        locality: `LOCAL` or `REMOTE`, read by vLLM.
    """

    path: Path
    capacity: int | None = None
    codec: str = "none"
    store: Mapping[str, Any] = field(default_factory=dict)
    load_timeout_s: float = 10.0
    store_timeout_s: float = 30.0
    max_load_jobs: int = 64
    max_store_jobs: int = 64
    max_store_bytes: int | None = None
    salt: str = ""
    weights_fingerprint: str = ""
    options_fingerprint: str = ""
    identity: Mapping[str, str] | None = None
    locality: str | None = None

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Returns the names of all settings."""
        return tuple(item.name for item in fields(cls))

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> TierSettings:
        """Checks what a configuration gives.

        Args:
            given: Keys of the tier's configuration without `type` and `module_path`.

        Raises:
            InvalidError: A key is unknown or missing, or a value is not allowed.
        """
        check_keys(given, cls.names(), "the configuration of DalsegnoTier")
        path = directory("DalsegnoTier", given.get("path"))
        return cls(path=path, **checked(given, _CHECKS))

    def store_settings(self) -> dict[str, Any]:
        """Returns the settings with which the store is opened."""
        return store_settings(self.store, self.capacity)


def expand(extra: Mapping[str, Any], *, on_cpu: bool) -> dict[str, Any]:
    """Turns the flat configuration of `DalsegnoConnector` into one of vLLM's `OffloadingConnector`.

    Args:
        extra: `kv_connector_extra_config`, flat or expanded already.
        on_cpu: Whether vLLM runs on its CPU platform, for which it has no tiering of its own.

    Raises:
        InvalidError: A key is unknown or missing, or a value is not allowed.
    """
    if "secondary_tiers" in extra:
        tiers = extra["secondary_tiers"]
        if isinstance(tiers, list) and any(tier.get("type") == TIER_TYPE for tier in tiers):
            return dict(extra)
        raise InvalidError("secondary_tiers belongs to vLLM's OffloadingConnector: use that one")
    tier_keys = [name for name in TierSettings.names() if name not in _TIER_ONLY]
    check_keys(extra, [*tier_keys, *ENGINE_KEYS], "kv_connector_extra_config")
    if "cpu_bytes_to_use" not in extra:
        raise InvalidError(
            'kv_connector_extra_config needs "cpu_bytes_to_use", the memory through which all '
            'blocks travel, such as "8GiB"'
        )
    tier = {name: extra[name] for name in tier_keys if name in extra}
    TierSettings.parse(tier)
    engine = {name: extra[name] for name in ENGINE_KEYS if name in extra}
    engine["cpu_bytes_to_use"] = parse_bytes("cpu_bytes_to_use", extra["cpu_bytes_to_use"])
    if on_cpu:
        engine |= {"spec_name": CPU_SPEC, "spec_module_path": MODULE}
    else:
        engine["spec_name"] = GPU_SPEC
    return {
        **engine,
        "secondary_tiers": [{"type": TIER_TYPE, "module_path": MODULE, **tier}],
    }
