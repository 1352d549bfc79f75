"""Whether an engine takes the direct path, and whether a load may run inside a step.

Both are fixed rules, each behind one function.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec

from dalsegno.integrations.common.settings import byte_count
from dalsegno.integrations.vllm.settings import ConnectorSettings
from dalsegno.paths import SOCKET_PREFIX

# What copying from places is assumed to bring until it was measured, in bytes per second.
FIRST_SPEED = 4e9


def refusal(
    vllm_config: Any, kv_cache_config: Any, settings: ConnectorSettings, *, on_cpu: bool
) -> str:
    """Returns why an engine cannot take the direct path; empty if it can.

    Args:
        vllm_config: vLLM's configuration.
        kv_cache_config: Its KV-cache groups.
        settings: Those of the store.
        on_cpu: Whether vLLM runs on its CPU platform.
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
    is_served = str(settings.path).startswith(SOCKET_PREFIX)
    reasons = {
        "it copies to the memory of the CPU platform only": not on_cpu,
        f"the model has {len(groups)} KV-cache groups": len(groups) != 1,
        f"its cache is a {type(spec).__name__}, not of full attention": not is_full,
        "its ranks are not all of tensor parallelism": is_split,
        "its workers are processes of their own, and its path is not the socket of a server": (
            executor != "uni" and not is_served
        ),
        "the engine decodes speculatively": getattr(vllm_config, "speculative_config", None),
        "cpu_bytes_to_use is missing, the memory of its pool": not has_pool(settings),
        "it reports no KV events": settings.enable_kv_events,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def has_pool(settings: ConnectorSettings) -> bool:
    """Whether the settings give the store memory for blocks; a server has its own."""
    own = byte_count("dram", settings.store.get("dram", settings.pool_bytes))
    return own != 0 or str(settings.path).startswith(SOCKET_PREFIX)


class StepRule:
    """Decides which loads run inside a step, and so delay all requests of the step.

    Attributes:
        most_s: Seconds that such a load may take.
    """

    def __init__(self, most_s: float) -> None:
        """Starts with an assumed speed."""
        self.most_s = most_s
        self._s_per_byte = 1 / FIRST_SPEED

    def allows(self, size: int) -> bool:
        """Whether a step waits only a short time for so many bytes, all its loads together."""
        return size * self._s_per_byte <= self.most_s

    def note(self, size: int, seconds: float) -> None:
        """Learns for how long a step waited for so many bytes."""
        if size:
            self._s_per_byte += (seconds / size - self._s_per_byte) / 8
