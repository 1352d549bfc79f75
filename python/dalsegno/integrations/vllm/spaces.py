"""The namespaces of a tier: one for each KV-cache group.

A namespace's fields are those of the engine's identity, how vLLM lays the blocks of the group out,
and the tenant's salt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.logger import init_logger

from dalsegno.integrations.common import report
from dalsegno.integrations.common.fields import digest
from dalsegno.integrations.vllm import compat, identity
from dalsegno.integrations.vllm.settings import TierSettings

logger = init_logger("vllm.dalsegno")


def namespace_fields(
    known: Mapping[str, str], config: Any, number: int, row_bytes: int, salt: str
) -> dict[str, str]:
    """Returns all fields of the namespace of one KV-cache group.

    Args:
        known: The fields that all groups share, from `identity.py`.
        config: vLLM's `OffloadingConfig`.
        number: Number of the group, as keys carry it.
        row_bytes: Size of a row of the primary tier.
        salt: The tenant's salt.
    """
    group, parallel = compat.groups(config)[number], config.parallel
    sizes = {
        name: getattr(parallel, name)
        for name in ("world_size", "tp_size", "pp_size", "pcp_size", "dcp_size")
    }
    others = [list(one.layer_names) for one in config.groups]
    return {
        **known,
        "kv_dtype": config.model.dtype,
        "layout": compat.layout_name(config),
        "ranks": " ".join(f"{name}={value}" for name, value in sizes.items()),
        "copies": f"replicated={config.replicated_layout} canonical={config.canonical_layout}",
        "chunk": f"{group.tokens_per_block}x{config.cache.blocks_per_chunk} tokens",
        "tokens_per_hash": str(config.cache.tokens_per_hash),
        "group": f"{number} of {len(config.groups)}",
        "layers": digest([list(group.layer_names), others]),
        "row_bytes": str(row_bytes),
        "worker_bytes": str(config.worker_kv_bytes_per_block),
        "salt": salt,
    }


def place(settings: TierSettings, config: Any) -> str:
    """Returns what an engine opens: the store of a server, or else one for each replica.

    Args:
        settings: Those of the tier.
        config: vLLM's `OffloadingConfig`.
    """
    parallel = config.parallel
    replicas = parallel.data_parallel_size > 1
    return settings.place(f"dp{parallel.data_parallel_index}" if replicas else "")


def group_fields(settings: TierSettings, config: Any, row_bytes: int) -> dict[int, dict[str, str]]:
    """Returns the fields of the namespace of each KV-cache group, by its number.

    Args:
        settings: Those of the tier.
        config: vLLM's `OffloadingConfig`.
        row_bytes: Size of a row of the primary tier.

    Raises:
        IncompatibleError: See `identity.folder_identity`.
    """
    known = settings.identity or identity.folder_identity(
        config, settings.weights_fingerprint, settings.options_fingerprint
    )
    fields = {
        number: namespace_fields(known, config, number, row_bytes, settings.salt)
        for number in compat.groups(config)
    }
    of_groups = {
        name: [one[name] for one in fields.values()]
        for name in next(iter(fields.values()), {}).keys() - known.keys()
    }
    further = {name: one[0] if len({*one}) == 1 else one for name, one in of_groups.items()}
    report.log(logger, config.model.name, known, further)
    return fields
