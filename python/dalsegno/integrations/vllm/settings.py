"""The settings of the vLLM integration: read, checked once, and turned into vLLM's own terms.

1. vLLM's own settings are passed on under vLLM's names and with vLLM's defaults.
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
    byte_count,
    check_keys,
    count,
    mapping,
    one_of,
    part,
    seconds,
    switch,
    text,
)

MODULE = "dalsegno.integrations.vllm"
TIER_TYPE = "DalsegnoTier"
CPU_SPEC = "DalsegnoCpuSpec"
GPU_SPEC = "DalsegnoSpec"

# Keys of `kv_connector_extra_config` that vLLM's tiering reads itself.
ENGINE_KEYS = (
    "backpressure",
    "block_size",
    "blocks_per_chunk",
    "cache_policy_module_path",
    "canonical_layout",
    "cpu_bytes_to_use",
    "eviction_policy",
    "offload_prompt_only",
    "self_describing_kv_events",
    "sync_load_budget_bytes",
    "tier_poll_interval_s",
)
# Of these, those whose value may be text such as "64MiB".
_ENGINE_BYTES = ("cpu_bytes_to_use", "sync_load_budget_bytes")
# Set here, it stands for vLLM's setting of that name: see `connector`.
FAILURE_POLICY = "kv_load_failure_policy"
FAIL_WARNING = (
    "kv_load_failure_policy is fail, as you set it: vLLM ends a request with an error if a block "
    "that was promised is not delivered. Set it to recompute."
)
# Where the expanded configuration keeps the settings of the direct path.
DIRECT_KEY = "dalsegno_direct"
PATHS = ("direct", "tiered", "auto")
BOTH_ENDS = ("auto", "off")
_TIER_ONLY = ("identity", "locality", "options_fingerprint")
# Of `DalsegnoConnector`, not of its tier.
_CONNECTOR_ONLY = (
    "path_to_engine",
    "max_step_load_s",
    "both_ends",
    "min_gain",
)


def _locality(name: str, value: object) -> str:
    """Checks vLLM's word for where a tier is."""
    if value in ("LOCAL", "REMOTE"):
        return str(value)
    raise InvalidError(f"{name} is {value!r}; it must be LOCAL or REMOTE")


@dataclass(frozen=True)
class TierSettings(StoreSettings):
    """The settings of one tier.

    Attributes:
        max_load_jobs: Most load jobs in flight; more wait, as with `max_load_bytes`.
        max_load_bytes: Most bytes being read into the primary tier; half of that tier if not given.
            More wait, each request at most `load_timeout_s`, and are then computed.
        failed_load_pause_s: Seconds for which a block is a miss after its load failed.
        max_store_jobs: Most store jobs in flight; more are refused, and their blocks not kept.
        max_store_bytes: Most bytes being written, which vLLM cannot evict meanwhile; 3/4 of the
            primary tier if not given.
        options_fingerprint: Stands for the options of vLLM that its own `OffloadingConnector`
            hides: `--quantization`, `--hf-overrides`, `--attention-backend`, LoRA adapters. If you
            set it, make sure that equal fingerprints mean equal options and adapters. Needed
            without `identity`.
        identity: Everything that must agree before blocks are shared. `DalsegnoConnector` sets it.
        locality: `LOCAL` or `REMOTE`, read by vLLM.
        enable_kv_events: Whether the tier reports which blocks it has, so that routers know.
        kv_events_keys: Reported blocks that are remembered, about 130 bytes each; beyond it no more
            are reported.
    """

    max_load_jobs: int = 64
    max_store_jobs: int = 64
    max_store_bytes: int | None = None
    max_load_bytes: int | None = None
    failed_load_pause_s: float = 30.0
    enable_kv_events: bool = False
    kv_events_keys: int = 1_000_000
    options_fingerprint: str = ""
    identity: Mapping[str, str] | None = None
    locality: str | None = None

    CHECKS: ClassVar[Mapping[str, Check]] = {
        **StoreSettings.CHECKS,
        "max_load_jobs": count,
        "max_store_jobs": count,
        "max_store_bytes": byte_count,
        "max_load_bytes": byte_count,
        "failed_load_pause_s": seconds,
        "enable_kv_events": switch,
        "kv_events_keys": lambda name, value: count(name, value, 100_000_000),
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


@dataclass(frozen=True)
class ConnectorSettings(TierSettings):
    """The settings of `DalsegnoConnector`.

    Attributes:
        path_to_engine: Which way blocks take to vLLM's KV cache: `tiered` through vLLM's CPU tier,
            `direct` from the pool of the store, or `auto`: `direct` if the engine can take it. Each
            has blocks of its own.
        max_step_load_s: Seconds for which a load may delay a step, if that delays others; longer
            ones run between steps.
        both_ends: On the direct path, `auto` computes the front of a prompt while its back is
            loaded, where that is known to work; `off` does not.
        min_gain: Part of computing that loading from the disk must save; blocks that never save so
            much stay in the pool. 0 writes everything.
        offload_prompt_only: As vLLM's: whether only blocks of prompts are stored.
        pool_bytes: Memory of the pool on the direct path, if `dram` does not say: vLLM's
            `cpu_bytes_to_use`.
    """

    path_to_engine: str = "tiered"
    max_step_load_s: float = 0.05
    both_ends: str = "auto"
    min_gain: float = 0.05
    offload_prompt_only: bool = True
    pool_bytes: int = 0

    CHECKS: ClassVar[Mapping[str, Check]] = {
        **TierSettings.CHECKS,
        "path_to_engine": one_of(*PATHS),
        "max_step_load_s": seconds,
        "both_ends": one_of(*BOTH_ENDS),
        "min_gain": part,
        "offload_prompt_only": switch,
        "pool_bytes": byte_count,
    }

    @classmethod
    def of_extra(cls, extra: Mapping[str, Any]) -> ConnectorSettings:
        """Returns the settings of an expanded configuration.

        Args:
            extra: `kv_connector_extra_config`, expanded.
        """
        tier = next(one for one in extra["secondary_tiers"] if one["type"] == TIER_TYPE)
        own = {name: value for name, value in tier.items() if name not in ("type", "module_path")}
        direct = {
            "offload_prompt_only": extra.get("offload_prompt_only"),
            "pool_bytes": extra.get("cpu_bytes_to_use"),
            **extra.get(DIRECT_KEY, {}),
        }
        return cls.read({**own, **direct}, "kv_connector_extra_config", "DalsegnoConnector")


def check_memory(extra: Mapping[str, Any]) -> None:
    """Checks that the tiered path has memory for its blocks.

    Raises:
        InvalidError: `cpu_bytes_to_use` is missing or 0.
    """
    if "cpu_bytes_to_use" not in extra:
        raise InvalidError(
            'kv_connector_extra_config needs "cpu_bytes_to_use", the memory through which all '
            'blocks travel, such as "8GiB"'
        )
    if extra["cpu_bytes_to_use"] == 0:
        raise InvalidError('cpu_bytes_to_use is 0; all blocks pass through it, so give "8GiB"')


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
    known = [*tier_keys, *_CONNECTOR_ONLY, *ENGINE_KEYS, FAILURE_POLICY]
    check_keys(extra, known, "kv_connector_extra_config")
    direct = {name: extra[name] for name in _CONNECTOR_ONLY if name in extra}
    tier = {name: extra[name] for name in tier_keys if name in extra}
    TierSettings.parse(tier)
    engine = {name: extra[name] for name in (*ENGINE_KEYS, FAILURE_POLICY) if name in extra}
    if tier.get("enable_kv_events"):
        # Without their tokens, routers drop the events.
        engine.setdefault("self_describing_kv_events", True)
    for name in _ENGINE_BYTES:
        if name in extra:
            engine[name] = byte_count(name, extra[name])
    if direct.get("path_to_engine", "tiered") == "tiered":
        check_memory(engine)
    if engine.get(FAILURE_POLICY, "fail") not in ("fail", "recompute"):
        given = engine[FAILURE_POLICY]
        raise InvalidError(f"{FAILURE_POLICY} is {given!r}; it must be fail or recompute")
    engine |= {"spec_name": CPU_SPEC if on_cpu else GPU_SPEC, "spec_module_path": MODULE}
    expanded = {
        **engine,
        **({DIRECT_KEY: direct} if direct else {}),
        "secondary_tiers": [{"type": TIER_TYPE, "module_path": MODULE, **tier}],
    }
    ConnectorSettings.of_extra(expanded)
    return expanded
