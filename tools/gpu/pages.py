"""A store and the KV cache of an engine that does not compute: pages in the memory of a GPU.

A page holds one layer of one block: keys and values apart, one contiguous piece each. A cache has
for each layer a buffer of the shape (2, pages, piece), in bytes.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

import dalsegno
from gpu.driver import Bytes, Device

# Contents of pages begin at one of so many bytes of random noise.
_OFFSETS = 1 << 16
# As the direct path does: bytes of a put by layer, and copies at a time.
SAVE_BYTES = 8 << 20
MOST_COPIES = 64
_PUT_BYTES = 64 << 20
SEGMENT_BYTES = 128 << 20
WAIT_S = 60.0


@dataclass(frozen=True)
class Shape:
    """What is copied.

    Attributes:
        piece: Bytes of the keys, or of the values, of one layer of one block.
        layers: Number of layers.
        blocks: Number of blocks.
    """

    piece: int
    layers: int
    blocks: int

    @property
    def slice_bytes(self) -> int:
        """Bytes of one layer of one block."""
        return 2 * self.piece

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.layers * self.slice_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.blocks * self.block_bytes

    @classmethod
    def of_total(cls, piece: int, layers: int, total: int) -> Shape:
        """Returns the shape of at least one block, and at most so many bytes in all."""
        return cls(piece, layers, max(1, total // (2 * piece * layers)))


class Noise:
    """The right contents of slices, other ones for each block and layer."""

    def __init__(self, shape: Shape) -> None:
        """Draws random bytes."""
        self._shape = shape
        self._bytes = np.random.default_rng(5).integers(
            0, 256, shape.slice_bytes + _OFFSETS, np.uint8
        )

    def slice(self, block: int, layer: int) -> Bytes:
        """Returns one layer of a block: its keys, then its values."""
        at = (block * 40_503 + layer * 2_654_435) % _OFFSETS
        return self._bytes[at : at + self._shape.slice_bytes]

    def blocks(self, first: int, count: int) -> Bytes:
        """Returns blocks, of the shape (count, block_bytes)."""
        layers = range(self._shape.layers)
        rows = [
            np.concatenate([self.slice(block, layer) for layer in layers])
            for block in range(first, first + count)
        ]
        return np.stack(rows)


def chain(name: str, count: int) -> list[bytes]:
    """Returns the hashes of a prompt's blocks."""
    return [hashlib.sha256(f"{name} {at}".encode()).digest() for at in range(count)]


def fill(namespace: dalsegno.Namespace, names: Sequence[bytes], noise: Noise) -> None:
    """Puts blocks into a store.

    Args:
        namespace: Where to.
        names: The hashes of the blocks.
        noise: Their contents.
    """
    each = max(1, _PUT_BYTES // namespace.block_bytes)
    for first in range(0, len(names), each):
        count = min(each, len(names) - first)
        rows = list(noise.blocks(first, count))
        report = namespace.put_batch(names[: first + count], rows, first=first)
        assert all(report.kept), f"a put kept {sum(report.kept)} of {count} blocks"


class Cache:
    """The KV cache.

    Attributes:
        gpu: The GPU, as Dalsegno uses it.
        memory: Its pages.
        table: The page of each block, in random order.
    """

    def __init__(self, device: Device, gpu: dalsegno.Gpu, shape: Shape, noise: Noise) -> None:
        """Allocates it; its contents are undefined."""
        self._device, self._shape, self._noise = device, shape, noise
        self.gpu, pages = gpu, shape.blocks
        size = 2 * pages * shape.piece
        self._starts = [device.allocate(size) for _ in range(shape.layers)]
        self.memory = dalsegno.PagedMemory.on_gpu(
            gpu,
            self._starts,
            size,
            pages=pages,
            stride=shape.piece,
            parts=[(0, shape.piece), (pages * shape.piece, shape.piece)],
        )
        self.table = list(range(pages))
        random.Random(7).shuffle(self.table)  # noqa: S311 - not for cryptography

    @property
    def stream(self) -> int:
        """The number of the engine's stream."""
        return self._device.stream

    def point(self) -> dalsegno.GpuPoint:
        """Returns the point behind everything that the engine's stream has."""
        return self.gpu.point(self.stream)

    def pages(self) -> dalsegno.PagedBlocks:
        """Returns the pages of all blocks for a load, behind the engine's work."""
        return self.memory.blocks(self.table, after=self.point())

    def _places(self, block: int, layer: int) -> tuple[int, int]:
        """Returns the addresses of the keys and of the values of a block."""
        start, piece = self._starts[layer], self._shape.piece
        page = self.table[block]
        return start + page * piece, start + (self._shape.blocks + page) * piece

    def write(self, block: int, layer: int, *, is_right: bool = True) -> None:
        """Queues a write of a page in the engine's stream, with right or with wrong bytes."""
        content = self._noise.slice(block, layer if is_right else layer + 1000)
        for at, place in enumerate(self._places(block, layer)):
            piece = content[at * self._shape.piece : (at + 1) * self._shape.piece]
            self._device.write(place, piece)

    def write_all(self, *, is_right: bool = True) -> None:
        """Queues writes of all pages."""
        for layer in range(self._shape.layers):
            for block in range(self._shape.blocks):
                self.write(block, layer, is_right=is_right)

    def wrong(self, block: int, layer: int) -> bool:
        """Whether a page has other bytes than its block, behind the engine's work."""
        piece = self._shape.piece
        found = [self._device.read(place, piece) for place in self._places(block, layer)]
        return bool((np.concatenate(found) != self._noise.slice(block, layer)).any())

    def wrong_pages(self, most: int) -> int:
        """Returns how many of at most so many pages are wrong, drawn at random from all."""
        draw = random.Random(3)  # noqa: S311 - not for cryptography
        every = [(b, n) for b in range(self._shape.blocks) for n in range(self._shape.layers)]
        drawn = draw.sample(every, min(most, len(every)))
        return sum(self.wrong(block, layer) for block, layer in drawn)


def store_settings(shape: Shape, pool_bytes: int) -> dict[str, object]:
    """Returns the settings of a store that has all blocks on disk and in its pool.

    Args:
        shape: The blocks.
        pool_bytes: Bytes of the pool.
    """
    # Extents as large as in a large store: a put by layer is one extent.
    segment = max(SEGMENT_BYTES, 1 << (4 * shape.block_bytes - 1).bit_length())
    return {
        "capacity": 8 * segment + 4 * shape.total_bytes,
        "segment": segment,
        "dram": pool_bytes,
        "dram_admission": "put",
        "scrub_rate": 0,
    }


def namespace_of(store: dalsegno.Store, shape: Shape) -> dalsegno.Namespace:
    """Opens the namespace of a shape."""
    fields = {"model": "pages", "shape": f"{shape.piece} {shape.layers}"}
    return store.namespace(fields, layers=shape.layers, slice_bytes=shape.slice_bytes)


def in_turn(begin: Iterable[Callable[[], dalsegno.Transfer[None]]]) -> None:
    """Runs copies, so many at a time as the direct path does.

    Args:
        begin: Each starts a copy.
    """
    running: deque[dalsegno.Transfer[None]] = deque()
    for one in begin:
        if len(running) == MOST_COPIES:
            _end(running.popleft())
        running.append(one())
    for copy in running:
        _end(copy)


def _end(copy: dalsegno.Transfer[None]) -> None:
    """Waits for a copy; raises what made it fail."""
    copy.wait(WAIT_S)
    copy.result()


def saves(
    namespace: dalsegno.Namespace, cache: Cache, names: Sequence[bytes], extent_bytes: int
) -> list[tuple[dalsegno.LayerWriter, dalsegno.PagedBlocks]]:
    """Begins puts by layer of all blocks of a cache, as large as the direct path makes them.

    Args:
        namespace: Where to.
        cache: Where from.
        names: The hashes of its blocks.
        extent_bytes: Most bytes of an extent.
    """
    each = max(1, min(SAVE_BYTES, extent_bytes) // namespace.block_bytes)
    begun = []
    for first in range(0, len(names), each):
        last = min(first + each, len(names))
        writer = namespace.layer_writer(names[:last], first=first)
        begun.append((writer, cache.memory.blocks(cache.table[first:last])))
    return begun
