"""The settings of the vLLM integration: read, checked once, and turned into vLLM's own terms.

1. An unknown key is an error that names the nearest known one; a wrong value says what is allowed.
2. What vLLM itself understands is handed on under vLLM's names and with vLLM's defaults.
3. Expanding an expanded configuration changes nothing: vLLM builds connectors more than once.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from dalsegno import InvalidError

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
CODECS = ("none", "zstd")
# Bytes of a number in a KV cache, by vLLM's name of the cache's dtype.
_WIDTHS = {"bfloat16": 2, "float": 4, "float16": 2, "float32": 4, "half": 2}
# Names that begin so are of one byte each, whatever follows: `fp8_e4m3`, `fp8_ds_mla` ...
_BYTE_WIDE = ("float8", "fp8", "int8")
_TIER_ONLY = ("identity", "locality", "options_fingerprint")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)
# The units of the store's own settings.
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{name}ib": 1 << 10 * power for power, name in enumerate("kmgt", 1)}
_UNITS |= {f"{name}b": 1000**power for power, name in enumerate("kmgt", 1)}


def parse_bytes(name: str, value: object) -> int:
    """Reads a byte count such as `4096` or `"2GiB"`.

    Raises:
        InvalidError: It is neither.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is not None and match[2].lower() in _UNITS:
        return int(float(match[1]) * _UNITS[match[2].lower()])
    raise InvalidError(f'{name} is {value!r}; it must be bytes, such as 1073741824 or "1GiB"')


def element_bytes(dtype: str) -> int | None:
    """Returns the width of a number in a KV cache.

    Args:
        dtype: vLLM's name of the cache's dtype, such as `bfloat16` or `fp8_e4m3`.

    Returns:
        Its bytes; None if there are none: numbers packed into parts of bytes, or an unknown name.
    """
    name = dtype.removeprefix("torch.")
    return 1 if name.startswith(_BYTE_WIDE) else _WIDTHS.get(name)


def check_keys(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Checks that every key is known.

    Raises:
        InvalidError: One is not; the message names the nearest known key.
    """
    names = sorted(known)
    for key in given:
        if key not in names:
            nearest = difflib.get_close_matches(key, names, 1, 0.0)[0]
            raise InvalidError(f"unknown key {key!r} in {where}; did you mean {nearest!r}?")


def _seconds(name: str, value: object, most: float = 3600.0) -> float:
    """Checks a number of seconds."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= most:
        return float(value)
    raise InvalidError(f"{name} is {value!r}; it must be seconds above 0 and at most {most:g}")


def _count(name: str, value: object, most: int = 100_000) -> int:
    """Checks a number of things."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most:
        return value
    raise InvalidError(f"{name} is {value!r}; it must be a whole number from 1 to {most}")


def _text(name: str, value: object, most: int = 1024) -> str:
    """Checks a short text."""
    if isinstance(value, str) and len(value.encode()) <= most:
        return value
    raise InvalidError(f"{name} is {value!r}; it must be text of at most {most} bytes")


def _mapping(name: str, value: object) -> dict[str, Any]:
    """Checks a dictionary with text as keys."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    raise InvalidError(f"{name} is {value!r}; it must be an object")


def _locality(name: str, value: object) -> str:
    """Checks vLLM's word for where a tier is."""
    if value in ("LOCAL", "REMOTE"):
        return str(value)
    raise InvalidError(f"{name} is {value!r}; it must be LOCAL or REMOTE")


def _codec(name: str, value: object) -> str:
    """Checks the name of a codec."""
    if value in CODECS:
        return str(value)
    raise InvalidError(f'{name} is {value!r}; it must be "none" or "zstd"')


_CHECKS: dict[str, Callable[[str, object], Any]] = {
    "capacity": parse_bytes,
    "codec": _codec,
    "store": _mapping,
    "load_timeout_s": _seconds,
    "store_timeout_s": _seconds,
    "max_load_jobs": _count,
    "max_store_jobs": _count,
    "max_store_bytes": parse_bytes,
    "salt": _text,
    "weights_fingerprint": _text,
    "options_fingerprint": _text,
    "identity": _mapping,
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
        if not given.get("path"):
            raise InvalidError('DalsegnoTier needs "path", the directory of the store')
        checked: dict[str, Any] = {"path": Path(_text("path", given["path"], 4096)).expanduser()}
        for name, check in _CHECKS.items():
            if given.get(name) is not None:
                checked[name] = check(name, given[name])
        return cls(**checked)

    def store_settings(self) -> dict[str, Any]:
        """Returns the settings with which the store is opened.

        Its DRAM tier is off unless asked for: vLLM's primary tier keeps the same blocks in memory.
        """
        settings = {"dram": 0, **self.store}
        if self.capacity is not None:
            settings["capacity"] = self.capacity
        return settings


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
