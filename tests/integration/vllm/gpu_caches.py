"""The KV cache of a small engine (`direct_rig.py`) in the memory of a GPU: `FakeCuda`'s."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tests.integration.fake_gpu import FakeGpu
from tests.integration.vllm.direct_pages import PAGE, Caches, prefix_name

import dalsegno
from dalsegno.integrations.vllm.direct.clocks import HostClock
from dalsegno.integrations.vllm.direct.layout import CacheShape
from dalsegno.integrations.vllm.direct.memory import GpuMemory

# Many borders: a place of a block crosses some.
PIECE_BYTES = 64 << 10


class GpuCaches(Caches):
    """Caches whose blocks are read and written in the order of the engine's stream."""

    def __init__(self, gpu: FakeGpu, names: Sequence[str], ranks: int, pages: int) -> None:
        """Allocates the memory of all ranks."""
        super().__init__(names, ranks, pages)
        self._gpu, self._half, self._pages = gpu, PAGE // 2, pages
        size = 2 * pages * self._half
        self._starts = [{name: gpu.allocate(size) for name in names} for _ in range(ranks)]
        # The addresses are no memory of this process: nothing may look at the tensors' values.
        self.ranks = [
            {name: _tensor(start, size).view(2, pages, self._half) for name, start in own.items()}
            for own in self._starts
        ]

    def describe(self, caches: Mapping[str, torch.Tensor], shape: CacheShape) -> GpuMemory:
        """Describes the cache of a rank to the store."""
        own = dalsegno.Gpu(library=self._gpu.path, piece_bytes=PIECE_BYTES)
        return GpuMemory(own, lambda: self._gpu.stream, caches, shape, HostClock())

    def _halves(self, rank: int, key: str, page: int) -> list[int]:
        """The addresses of the keys and of the values of a block."""
        start = self._starts[rank][key]
        return [start + (half * self._pages + page) * self._half for half in (0, 1)]

    def _has(self, page: int, tokens: Sequence[int], layer: int) -> bool:
        name, key = prefix_name(tokens), self._names[layer]
        for rank in range(len(self.ranks)):
            places = self._halves(rank, key, page)
            found = b"".join(self._gpu.read(place, self._half) for place in places)
            if found != self.right(name, layer, rank).numpy().tobytes():
                return False
        return True

    def _write(self, page: int, tokens: Sequence[int], layer: int, *, is_right: bool) -> None:
        name = prefix_name(tokens) if is_right else b"noise"
        for rank in range(len(self.ranks)):
            content = self.right(name, layer, rank).numpy().tobytes()
            for half, place in enumerate(self._halves(rank, self._names[layer], page)):
                self._gpu.write(place, content[half * self._half : (half + 1) * self._half])


def _tensor(address: int, size: int) -> torch.Tensor:
    """Returns a tensor with an address and a shape."""
    buffer: Any = (ctypes.c_uint8 * size).from_address(address)
    return torch.frombuffer(buffer, dtype=torch.uint8)
