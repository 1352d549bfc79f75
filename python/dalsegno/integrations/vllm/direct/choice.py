"""Whether an engine takes the direct path, and whether its steps may wait for loads.

Both are fixed rules, each behind one function.
"""

from __future__ import annotations

import enum
from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec

from dalsegno.integrations.common.settings import byte_count
from dalsegno.integrations.vllm import compat
from dalsegno.integrations.vllm.settings import ConnectorSettings
from dalsegno.paths import SOCKET_PREFIX


class Platform(enum.Enum):
    """Where vLLM runs, and so where its KV cache is.

    Attributes:
        CPU: In memory of this machine.
        NVIDIA: In the memory of an NVIDIA GPU.
        OTHER: In the memory of another device.
    """

    CPU = "cpu"
    NVIDIA = "nvidia"
    OTHER = "other"


def platform_of(current: Any) -> Platform:
    """Returns where vLLM runs.

    Args:
        current: vLLM's `current_platform`.
    """
    if current.is_cpu():
        return Platform.CPU
    return Platform.NVIDIA if current.is_cuda() else Platform.OTHER


def refusal(
    vllm_config: Any, kv_cache_config: Any, settings: ConnectorSettings, platform: Platform
) -> str:
    """Returns why an engine cannot take the direct path; empty if it can.

    Args:
        vllm_config: vLLM's configuration.
        kv_cache_config: Its KV-cache groups.
        settings: Those of the store.
        platform: Where vLLM runs.
    """
    parallel, groups = vllm_config.parallel_config, kv_cache_config.kv_cache_groups
    spec = groups[0].kv_cache_spec
    is_windowed = any(
        getattr(spec, name, None) for name in ("sliding_window", "attention_chunk_size")
    )
    is_full = isinstance(spec, FullAttentionSpec) and not is_windowed
    other_ranks = parallel.world_size // parallel.tensor_parallel_size
    is_split = max(other_ranks, getattr(parallel, "decode_context_parallel_size", 1)) > 1
    executor = getattr(parallel, "distributed_executor_backend", None)
    # One group: the second model runner copies and clears blocks of others before a connector may
    # wait for its saves.
    is_known = executor in ("uni", "mp")
    is_served = str(settings.path).startswith(SOCKET_PREFIX)
    reasons = {
        "it copies to memory of CPUs and of NVIDIA GPUs only": platform is Platform.OTHER,
        f"the model has {len(groups)} KV-cache groups": len(groups) != 1,
        f"its cache is a {type(spec).__name__}, not of full attention": not is_full,
        "its ranks are not all of tensor parallelism": is_split,
        f"distributed_executor_backend is {executor}, not uni or mp": not is_known,
        "its workers are processes of their own, and its path is not the socket of a server": (
            executor != "uni" and not is_served
        ),
        "its steps are divided (enable_dbo, ubatch_size)": any(
            getattr(parallel, name, False) for name in ("use_ubatching", "enable_dbo")
        ),
        "enable_sleep_mode takes its KV cache away from copies": (
            platform is Platform.NVIDIA
            and getattr(vllm_config.model_config, "enable_sleep_mode", False)
        ),
        "this version of vLLM does not say how a GPU lays out its KV cache": (
            platform is Platform.NVIDIA and not compat.names_layout(vllm_config, kv_cache_config)
        ),
        "the engine decodes speculatively": getattr(vllm_config, "speculative_config", None),
        "cpu_bytes_to_use is missing, the memory of its pool": not has_pool(settings),
        "its KV events would name chunks of several blocks": (
            settings.enable_kv_events and has_chunks(vllm_config, kv_cache_config)
        ),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def has_chunks(vllm_config: Any, kv_cache_config: Any) -> bool:
    """Whether a block of the store has several of vLLM's blocks."""
    config = compat.offloading_config(vllm_config, kv_cache_config)
    return bool(config.cache.blocks_per_chunk > 1)


def has_pool(settings: ConnectorSettings) -> bool:
    """Whether the settings give the store memory for blocks; a server has its own."""
    own = byte_count("dram", settings.store.get("dram", settings.pool_bytes))
    return own != 0 or str(settings.path).startswith(SOCKET_PREFIX)


def loads_in_steps(vllm_config: Any, platform: Platform) -> bool:
    """Whether a step may wait for blocks: their load can still fail.

    vLLM computes such blocks again, but not all of its runners and schedulers do so rightly. Those
    for which a test shows it are allowed: the first model runner on a CPU, without asynchronous
    scheduling.

    Args:
        vllm_config: vLLM's configuration.
        platform: Where vLLM runs.
    """
    is_async = getattr(vllm_config.scheduler_config, "async_scheduling", True)
    is_second = getattr(vllm_config, "use_v2_model_runner", False)
    computes = vllm_config.kv_transfer_config.kv_load_failure_policy == "recompute"
    on_cpu = platform is Platform.CPU
    return on_cpu and computes and not is_async and not is_second


def jump_refusal(vllm_config: Any, settings: ConnectorSettings, platform: Platform) -> str:
    """Returns why no request computes its front while its back is loaded; empty if they may.

    On a GPU no test has shown yet that the second model runner and asynchronous scheduling do so
    rightly.

    Args:
        vllm_config: vLLM's configuration.
        settings: Those of the connector.
        platform: Where vLLM runs.
    """
    in_chunks = getattr(vllm_config.scheduler_config, "enable_chunked_prefill", False)
    reasons = {
        "both_ends is off": settings.both_ends != "auto",
        f"load_policy is {settings.load_policy}": settings.load_policy != "auto",
        "that was not tested on this device": platform is not Platform.CPU,
        "prompts are not divided into chunks": not in_chunks,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def most_tokens(scheduler_config: Any) -> int:
    """Returns how many tokens of one request a step computes at most."""
    names = (
        "max_num_batched_tokens",
        "max_num_scheduled_tokens",
        "long_prefill_token_threshold",
    )
    limits = (getattr(scheduler_config, name, None) for name in names)
    # vLLM leaves out a limit that is 0.
    least: int = min(limit for limit in limits if limit)
    return least
