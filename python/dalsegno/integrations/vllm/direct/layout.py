"""Where the bytes of a block are in vLLM's KV cache.

vLLM gives one tensor per layer. One of its dimensions counts pages; where the others are in memory
differs between versions and backends: keys and values together or apart, heads inside or outside.

1. Bytes are copied as they are. What they mean is part of the identity (`space.py`).
2. A cache is described only if each page is a few contiguous parts, and if the buffers of two
   layers do not overlap. With any other one nothing is loaded or saved.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

import dalsegno

# Contiguous ranges of one page; a cache in many small parts would be slow to copy.
MOST_PARTS = 16


class UnknownLayoutError(Exception):
    """A KV cache whose pages cannot be described; the message says why."""


@dataclass(frozen=True)
class PageLayout:
    """The pages of one layer.

    Attributes:
        pages: Number of pages.
        stride: Bytes from one page to the next.
        parts: Offset and size, in bytes, of each contiguous part of page 0.
    """

    pages: int
    stride: int
    parts: tuple[tuple[int, int], ...]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of one layer."""
        return sum(size for _, size in self.parts)

    @property
    def buffer_bytes(self) -> int:
        """Bytes from the start of page 0 to the end of the last page."""
        return (self.pages - 1) * self.stride + max(offset + size for offset, size in self.parts)


def page_layout(cache: torch.Tensor, pages: int) -> PageLayout:
    """Returns where the pages of one layer's cache are.

    Args:
        cache: The cache of the layer; one of its first two dimensions counts pages.
        pages: Number of pages.

    Raises:
        UnknownLayoutError: No dimension counts them, or a page has many parts.
    """
    places = [place for place in (0, 1) if place < cache.dim() and cache.shape[place] == pages]
    if len(places) == 2:
        raise UnknownLayoutError(f"two dimensions of {tuple(cache.shape)} count {pages} blocks")
    if not places:
        raise UnknownLayoutError(f"no dimension of {tuple(cache.shape)} counts {pages} blocks")
    width, of_pages = cache.element_size(), places[0]
    others = sorted(
        (cache.stride(place) * width, cache.shape[place])
        for place in range(cache.dim())
        if place != of_pages and cache.shape[place] > 1
    )
    size, outer = width, list[tuple[int, int]]()
    for stride, count in others:
        if not outer and stride == size:
            size *= count
        else:
            outer.append((stride, count))
    offsets = sorted(
        sum(stride * index for (stride, _), index in zip(outer, indices, strict=True))
        for indices in itertools.product(*(range(count) for _, count in outer))
    )
    if len(offsets) > MOST_PARTS:
        raise UnknownLayoutError(f"a block has {len(offsets)} parts in memory")
    parts = tuple((offset, size) for offset in offsets)
    return PageLayout(pages, cache.stride(of_pages) * width, parts)


@dataclass(frozen=True)
class CacheShape:
    """Where blocks of the store are in vLLM's KV cache.

    Attributes:
        names: The layers, in the order of the model.
        pages: Number of pages, vLLM's blocks.
        pages_per_block: Pages that hold one block of the store.
        slice_bytes: Bytes of one layer of one block, as the store has them.
    """

    names: tuple[str, ...]
    pages: int
    pages_per_block: int
    slice_bytes: int

    def layout_of(self, caches: Mapping[str, torch.Tensor]) -> PageLayout:
        """Returns where the pages of each layer are.

        Args:
            caches: The tensor of each layer, by its name.

        Raises:
            UnknownLayoutError: The layers differ, have another size, or have pages that cannot be
                described.
        """
        layouts = [page_layout(caches[name], self.pages) for name in self.names]
        first = layouts[0]
        if any(one != first for one in layouts):
            raise UnknownLayoutError("the layers have different shapes")
        if (given := first.page_bytes * self.pages_per_block) != self.slice_bytes:
            raise UnknownLayoutError(f"a block has {given} bytes per layer, not {self.slice_bytes}")
        return first


def paged_memory(
    caches: Mapping[str, torch.Tensor], shape: CacheShape, gpu: dalsegno.Gpu | None = None
) -> dalsegno.PagedMemory:
    """Describes vLLM's KV cache to the store.

    Args:
        caches: The tensor of each layer, by its name.
        shape: Where the blocks are.
        gpu: The GPU in whose memory the tensors are; None for memory of this machine.

    Raises:
        UnknownLayoutError: The layers differ, overlap, have another size, or have pages that cannot
            be described.
    """
    first = shape.layout_of(caches)
    described: dict[str, Any] = {
        "pages": shape.pages,
        "stride": first.stride,
        "parts": list(first.parts),
        "pages_per_block": shape.pages_per_block,
    }
    try:
        if gpu is None:
            buffers = [_bytes_of(caches[name], first) for name in shape.names]
            return dalsegno.PagedMemory(buffers, **described)
        starts = [caches[name].data_ptr() for name in shape.names]
        return dalsegno.PagedMemory.on_gpu(gpu, starts, first.buffer_bytes, **described)
    except dalsegno.InvalidError as error:
        raise UnknownLayoutError(str(error)) from error


def _bytes_of(cache: torch.Tensor, layout: PageLayout) -> Any:
    """Returns the bytes of a layer's buffer, as a tensor that shares them."""
    start = cache.storage_offset() * cache.element_size()
    view = torch.empty(0, dtype=torch.uint8)
    return view.set_(cache.untyped_storage(), start, (layout.buffer_bytes,), (1,))
