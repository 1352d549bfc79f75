"""vLLM's configuration of offloading, for a tier that is driven without an engine."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)

__all__ = ["group_config", "offloading_config", "parallel_config"]


def parallel_config(**changes: Any) -> OffloadingParallelConfig:
    """Returns vLLM's configuration of parallelism: one process, except for `changes`."""
    alone = {
        "rank": 0,
        "world_size": 1,
        "tp_size": 1,
        "pp_size": 1,
        "pcp_size": 1,
        "dcp_size": 1,
        "data_parallel_index": 0,
        "data_parallel_size": 1,
        "data_parallel_rank_local": None,
        "is_parallelism_agnostic": False,
    }
    return OffloadingParallelConfig(**{**alone, **changes})


def group_config(block_tokens: int, layers: tuple[str, ...], number: int) -> OffloadingGroupConfig:
    """Returns vLLM's configuration of a KV-cache group.

    Args:
        block_tokens: Tokens of a block.
        layers: Names of its layers.
        number: Its number, for versions from 0.30 on.
    """
    values = (block_tokens, layers, number)
    return OffloadingGroupConfig(*values[: len(dataclasses.fields(OffloadingGroupConfig))])


def offloading_config(block_bytes: int, block_tokens: int, **changes: Any) -> OffloadingConfig:
    """Returns vLLM's configuration of offloading for a model of one layer on one process.

    Args:
        block_bytes: Bytes of a block.
        block_tokens: Tokens of a block.
        **changes: Fields of the configuration that differ.
    """
    values: dict[str, Any] = {
        "groups": (group_config(block_tokens, ("layer0",), 0),),
        "worker_kv_bytes_per_block": block_bytes,
        "enable_kv_cache_events": False,
        "extra_config": {"cpu_bytes_to_use": block_bytes},
        "engine_id": f"rig-{os.getpid()}",
        "model": OffloadingModelConfig("model", "float32"),
        "cache": OffloadingCacheConfig(block_tokens, 1),
        "parallel": parallel_config(),
        "kv_cache_layout": "LBHNC",
    }
    # Older versions of vLLM lack some of the fields.
    known = {one.name for one in dataclasses.fields(OffloadingConfig)}
    given = {**values, **changes}
    return OffloadingConfig(**{name: value for name, value in given.items() if name in known})
