"""Everything in which vLLM 0.28 to 0.33 differ, as far as the integration touches it.

| since | what changed |
|---|---|
| 0.29 | `OffloadingConfig.kv_cache_layout` |
| after 0.28 | a fixed seed for block hashes; events name their owner and the removals to expect |
| 0.30 | `block_ids` became `chunk_ids`; keys carry the id of their group, not its place |
| 0.31 | `backpressure_detector`; positions of a request's keys; `JobResult.transfer_bytes` |
| 0.33 | calls come under a lock and from any thread; `OffloadingWorker.submit_load(expedited)` |

1. What a version lacks is left out, never invented: no position means "order as given".
2. Nothing else in the integration asks for a version or tests for an attribute of vLLM's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import os
from collections.abc import Mapping
from typing import Any

import msgspec
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.kv_offload.base import OffloadingEvent
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from dalsegno import IncompatibleError

GROUP_BYTES = 4
HASH_BYTES = 32


def split_key(key: bytes) -> tuple[bytes, int]:
    """Returns the block hash and the number of the KV-cache group of an offload key."""
    return bytes(key[:-GROUP_BYTES]), int.from_bytes(key[-GROUP_BYTES:], "big")


def join_key(one: bytes, group: int) -> bytes:
    """Returns the offload key of a block hash and the number of a KV-cache group."""
    return one + group.to_bytes(GROUP_BYTES, "big")


def hashes_are_random() -> bool:
    """Whether each process has other hashes for equal blocks, as vLLM seeds them at random."""
    has_fixed_seed = hasattr(kv_cache_utils, "resolve_none_hash_seed")
    return not has_fixed_seed and "PYTHONHASHSEED" not in os.environ


def chunk_ids(job: Any) -> list[int]:
    """Returns the rows of the primary tier that a transfer job names."""
    ids = job.chunk_ids if hasattr(job, "chunk_ids") else job.block_ids
    return [int(one) for one in ids]


def job_result(
    job_id: int,
    *,
    success: bool,
    successful_keys: tuple[bytes, ...] | None,
    transfer_time: float,
    transfer_bytes: int,
) -> Any:
    """Builds vLLM's result of a job from the fields that its version has."""
    values = {
        "job_id": job_id,
        "success": success,
        "successful_keys": successful_keys,
        "transfer_time": transfer_time,
        "transfer_bytes": transfer_bytes,
    }
    known = {item.name for item in dataclasses.fields(JobResult)}
    return JobResult(**{name: value for name, value in values.items() if name in known})


def init_tier(
    tier: SecondaryTierManager, spec: Any, view: memoryview, tier_type: str, detector: Any
) -> None:
    """Calls the constructor of vLLM's base class with the arguments that its version takes."""
    known = inspect.signature(SecondaryTierManager.__init__).parameters
    extra = {"backpressure_detector": detector} if "backpressure_detector" in known else {}
    SecondaryTierManager.__init__(tier, spec, view, tier_type, **extra)


def key_positions(context: Any) -> Mapping[bytes, int]:
    """Returns the end token of each key of a request, a view that grows; empty before 0.31."""
    positions: Mapping[bytes, int] | None = getattr(context, "_offload_key_positions", None)
    return {} if positions is None else positions


def groups(config: Any) -> dict[int, Any]:
    """Returns an `OffloadingConfig`'s KV-cache groups by the number that keys carry."""
    return {getattr(group, "group_id", number): group for number, group in enumerate(config.groups)}


def layout_name(config: Any) -> str:
    """Returns the name of the physical layout of the KV cache, or nothing if it has none."""
    return str(getattr(config, "kv_cache_layout", None) or "")


def names_layout(vllm_config: Any, kv_cache_config: Any) -> bool:
    """Whether vLLM says how a GPU lays out its KV cache: backends of the same size differ there."""
    return bool(layout_name(offloading_config(vllm_config, kv_cache_config)))


def preempted(context: Any) -> tuple[str, ...]:
    """Returns the requests that were preempted in this step."""
    return tuple(getattr(context, "preempted_req_ids", None) or ())


def scheduled(context: Any) -> tuple[str, ...]:
    """Returns the requests that were scheduled for the first time in this step."""
    return tuple(getattr(context, "new_req_ids", None) or ())


def kv_events(config: Any) -> tuple[bool, bool]:
    """Returns whether vLLM publishes KV events, and whether those of tiers name their tokens."""
    extra = getattr(config, "extra_config", None) or {}
    is_on = bool(getattr(config, "enable_kv_cache_events", False))
    return is_on, bool(extra.get("self_describing_kv_events", False))


def offloading_event(keys: list[bytes], **values: Any) -> Any:
    """Builds vLLM's event of some blocks from the fields that its version has."""
    known = {item.name for item in dataclasses.fields(OffloadingEvent)}
    return OffloadingEvent(keys, **{name: value for name, value in values.items() if name in known})


def kv_event(kind: type, **values: Any) -> Any:
    """Builds vLLM's event of blocks for routers from the fields that its version has."""
    known = {item.name for item in msgspec.structs.fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in known})


def region_arguments(region: type, spec: Any, rank: int | None) -> dict[str, Any]:
    """Returns the arguments with which `SharedOffloadRegion` maps a spec's primary tier."""
    common = {"engine_id": spec.config.engine_id, "rank": rank}
    common["cpu_page_size"] = spec.cpu_page_size_per_worker
    if "num_chunks" in inspect.signature(region.__init__).parameters:  # type: ignore[misc]
        return {
            **common,
            "num_chunks": spec.num_chunks,
            "kv_bytes_per_chunk": spec.kv_bytes_per_chunk,
        }
    return {
        **common,
        "num_blocks": spec.num_blocks,
        "kv_bytes_per_block": spec.kv_bytes_per_chunk,
    }


def made_file(region: Any) -> bool:
    """Whether a `SharedOffloadRegion` made its file, and will remove it; others joined it."""
    return bool(getattr(region, "_creator", True))


def disown_file(region: Any) -> None:
    """Keeps a `SharedOffloadRegion` from removing its file."""
    region._creator = False  # noqa: SLF001 - vLLM has no method for it


def memory_of(region: Any) -> Any:
    """Returns the bytes of a `SharedOffloadRegion`, which can be read and written as slices."""
    return region.mmap_obj


def region_of(worker: Any) -> Any:
    """Returns the mapping of the primary tier that vLLM's worker owns, None if it has none."""
    return getattr(worker, "_mmap_region", None)


def scheduler_region(spec: Any) -> Any:
    """Returns the scheduler's mapping of the primary tier, None if a spec has none."""
    return getattr(spec, "_scheduler_mmap", None)


def primary_tier(spec: Any) -> Any:
    """Returns the primary tier behind a spec, None until its manager is made."""
    return getattr(getattr(spec, "_manager", None), "primary_tier", None)


def has_free_row(primary: Any) -> bool:
    """Whether a primary tier can take one more block; True if its version hides that."""
    for unit in ("chunks", "blocks"):
        free = getattr(primary, f"_get_num_free_{unit}", None)
        evictable = getattr(primary, f"_num_evictable_cache_{unit}", None)
        if free is not None and evictable is not None:
            total = getattr(primary, f"_num_{unit}", 0)
            return bool(free() > 0 or evictable > 0 or total == 0)
    return True


def secondary_tiers(connector: Any) -> list[Any]:
    """Returns the tiers behind the primary one of vLLM's `OffloadingConnector`, as scheduler."""
    scheduler = getattr(connector, "connector_scheduler", None)
    return list(getattr(getattr(scheduler, "manager", None), "secondary_tiers", ()))


def offloading_config(vllm_config: Any, kv_cache_config: Any) -> Any:
    """Returns vLLM's `OffloadingConfig` of an engine.

    Raises:
        IncompatibleError: This version has no such configuration.
    """
    for place in (
        "vllm.distributed.kv_transfer.kv_connector.v1.offloading.config",
        "vllm.v1.kv_offload.config",
    ):
        with contextlib.suppress(ImportError):
            build = getattr(importlib.import_module(place), "build_offloading_config", None)
            if build is not None:
                return build(vllm_config, kv_cache_config)
    raise IncompatibleError("this version of vLLM does not say how its KV cache is laid out")


def calls_layer_hooks(forward_context: Any) -> bool:
    """Whether a step calls a connector at each layer: full CUDA graphs do not."""
    mode = getattr(forward_context, "cudagraph_runtime_mode", None)
    return getattr(mode, "name", "NONE") != "FULL"


def host_hits() -> Any:
    """Returns as what vLLM counts tokens from host memory; None before vLLM counted by source."""
    with contextlib.suppress(ImportError, AttributeError):
        return importlib.import_module("vllm.v1.metrics.cache_hit_source").CacheHitSource.HOST
    return None


def new_request_data(request: Any, block_ids: Any, computed: int) -> Any:
    """Builds what vLLM's second model runner is sent of a request, as if it was new to it.

    Args:
        request: vLLM's request, without media.
        block_ids: All of its blocks, by KV-cache group.
        computed: Its tokens that are there before the step.
    """
    tokens = request._all_token_ids  # noqa: SLF001 - as vLLM's scheduler does
    data = NewRequestData.from_request(request, block_ids, tokens)
    data.num_computed_tokens = computed
    return data
