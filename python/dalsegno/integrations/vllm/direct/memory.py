"""Where vLLM's KV cache is, and how copies are ordered with what vLLM computes.

1. On a GPU, vLLM queues its work in a stream and goes on. So a copy to the cache comes after the
   point of the stream at which its pages were given, and a copy from it after the layer. The stream
   waits for a layer that is being loaded; no thread does, once its copies are queued.
2. In memory of this machine, what vLLM has computed is there, and threads wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from vllm.logger import init_logger

import dalsegno
from dalsegno.integrations.vllm.direct import layout
from dalsegno.integrations.vllm.direct.clocks import GpuClock, HostClock, WorkerClock

logger = init_logger("vllm.dalsegno")


class CacheMemory(Protocol):
    """vLLM's KV cache.

    Attributes:
        pages: Its pages, as the store knows them.
        copies_layers: Whether a layer of a save is copied as soon as vLLM comes to it.
        held_bytes: Bytes of saves that may wait to be put; then no more are copied.
        clock: Measures how long steps compute.
    """

    pages: dalsegno.PagedMemory
    copies_layers: bool
    held_bytes: int
    clock: WorkerClock

    def use(self, namespace: Any) -> None:
        """Prepares copies between the cache and the store of a namespace; called at each step."""

    def now(self) -> Any:
        """Returns the point behind everything that vLLM computes so far; None if it is computed."""

    def wait_layer(self, load: Any, layer: int, timeout_s: float) -> bool | None:
        """Lets vLLM's work wait for a layer of a load.

        Returns:
            Whether it comes; None if it is not on its way when the time is up.
        """


class HostMemory:
    """A KV cache in memory of this machine."""

    copies_layers = True
    held_bytes = 512 << 20

    def __init__(self, caches: Mapping[str, torch.Tensor], shape: layout.CacheShape) -> None:
        """Describes it.

        Args:
            caches: The tensor of each layer, by its name.
            shape: Where the blocks are.

        Raises:
            UnknownLayoutError: The pages cannot be described.
        """
        self.pages = layout.paged_memory(caches, shape)
        self.clock: WorkerClock = HostClock()

    def use(self, namespace: Any) -> None:
        """Nothing has to be prepared."""

    def now(self) -> None:
        """What was computed is there."""

    def wait_layer(self, load: Any, layer: int, timeout_s: float) -> bool | None:
        """Waits for a layer."""
        ready: bool | None = load.wait_layer(layer, timeout_s=timeout_s)
        return ready


class GpuMemory:
    """A KV cache in the memory of an NVIDIA GPU.

    vLLM queues all layers of a step before the GPU has computed the first ones. So nothing is
    gained by a copy for each layer, of which there would be as many as layers and saves.
    """

    copies_layers = False
    # A step of 8,192 tokens computes a gigabyte in less time than an SSD takes to write it.
    held_bytes = 4 << 30

    def __init__(
        self,
        gpu: dalsegno.Gpu,
        stream: Callable[[], int],
        caches: Mapping[str, torch.Tensor],
        shape: layout.CacheShape,
        clock: WorkerClock,
    ) -> None:
        """Describes it.

        Args:
            gpu: The GPU.
            stream: Returns the number of the stream in which vLLM computes.
            caches: The tensor of each layer, by its name.
            shape: Where the blocks are.
            clock: Measures steps in that stream.

        Raises:
            UnknownLayoutError: The pages cannot be described.
        """
        self._gpu, self._stream, self.clock = gpu, stream, clock
        self.pages = layout.paged_memory(caches, shape, gpu)
        # Only their addresses are known to the store: this keeps the memory.
        self._caches = dict(caches)
        gpu.tune(min(size for _, size in shape.layout_of(caches).parts))
        facts = gpu.facts()
        logger.info(
            "Dalsegno copies between its pool and the GPU (%s, CUDA %d.%d): pieces of fewer than "
            "%d bytes by a kernel, others by the copy engines%s. %s",
            facts["name"],
            facts["driver_version"] // 1000,
            facts["driver_version"] % 1000 // 10,
            facts["kernel_below_bytes"],
            " in batches" if facts["batched_copies"] else "",
            " ".join(f"Refused: {one}." for one in facts["refusals"]),
        )

    def use(self, namespace: Any) -> None:
        """Has the GPU register the pool: that of a server that was restarted is another one."""
        if namespace is not None:
            namespace.register_pool(self._gpu)

    def now(self) -> Any:
        """Returns the point behind everything that vLLM has queued so far."""
        return self._gpu.point(self._stream())

    def wait_layer(self, load: Any, layer: int, timeout_s: float) -> bool | None:
        """Lets vLLM's stream wait for a layer."""
        ready: bool | None = load.order_layer(layer, self._stream(), timeout_s=timeout_s)
        return ready


def of_engine(caches: Mapping[str, torch.Tensor], shape: layout.CacheShape) -> CacheMemory:
    """Describes vLLM's KV cache, wherever it is.

    Args:
        caches: The tensor of each layer, by its name.
        shape: Where the blocks are.

    Raises:
        UnknownLayoutError: The pages cannot be described.
        UnavailableError: The GPU cannot be used; the message says why.
    """
    devices = {cache.device for cache in caches.values()}
    if len(devices) != 1:
        raise layout.UnknownLayoutError(f"the layers are on {len(devices)} devices")
    (device,) = devices
    if device.type == "cpu":
        return HostMemory(caches, shape)
    gpu = dalsegno.Gpu(index=device.index or 0)
    clock = GpuClock(device)
    return GpuMemory(
        gpu, lambda: torch.cuda.current_stream(device).cuda_stream, caches, shape, clock
    )
