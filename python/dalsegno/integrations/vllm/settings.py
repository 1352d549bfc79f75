"""The settings of the vLLM integration: read, checked once, and turned into vLLM's own terms.

1. What vLLM itself understands is handed on under vLLM's names and with vLLM's defaults.
2. Expanding an expanded configuration changes nothing: vLLM builds connectors more than once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dalsegno import InvalidError
from dalsegno.integrations.common.settings import (
    Check,
    StoreSettings,
    check_keys,
    count,
    mapping,
    parse_bytes,
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


@dataclass(frozen=True)
class TierSettings(StoreSettings):
    """The settings of one tier.

    Attributes:
        max_load_jobs: Load jobs under way; one more is refused at once and its blocks computed.
        max_store_jobs: Store jobs under way; one more is refused at once and its blocks not kept.
        max_store_bytes: Bytes being written, which vLLM cannot evict meanwhile; 3/4 of the primary
            tier if not given.
        options_fingerprint: Stands for the options of vLLM that its own `OffloadingConnector`
            hides: `--quantization`, `--hf-overrides`, `--attention-backend`, LoRA adapters. Who
            sets it vouches that equal fingerprints mean equal options and adapters. Needed without
            `identity`.
        identity: Everything that must agree before blocks are shared. `DalsegnoConnector` sets it.
        locality: `LOCAL` or `REMOTE`, read by vLLM.
    """

    max_load_jobs: int = 64
    max_store_jobs: int = 64
    max_store_bytes: int | None = None
    options_fingerprint: str = ""
    identity: Mapping[str, str] | None = None
    locality: str | None = None

    CHECKS: ClassVar[Mapping[str, Check]] = {
        **StoreSettings.CHECKS,
        "max_load_jobs": count,
        "max_store_jobs": count,
        "max_store_bytes": parse_bytes,
        "options_fingerprint": text,
        "identity": mapping,
        "locality": _locality,
    }

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> TierSettings:
        """Checks what a configuration gives.

        Args:
            given: Keys of the tier's configuration without `type` and `module_path`.

        Raises:
            InvalidError: A key is unknown or missing, or a value is not allowed.
        """
        return cls.read(given, "the configuration of DalsegnoTier", "DalsegnoTier")


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
