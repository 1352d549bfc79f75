"""SGLang's host pools as blocks: where the bytes of a page lie.

A host pool returns the addresses of a page's parts (`get_page_buffer_meta`). They are turned into
views of the pool's own tensors, so that nothing is copied, no address outside of the pool is ever
touched, and the memory lives as long as a transfer refers to it. Some pools have no such addresses
(Mamba states with side states, sliding windows in `layer_first`): their pages are copied through
SGLang's own `get_data_page` and `set_from_flat_data_page`.

1. A block is a page of one pool: its parts in the order in which the pool returns them, or its flat
   page. Which of the two, and how long each part is, belongs to the namespace.
2. A page is written into the pool by `set_from_flat_data_page` only after it was verified.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from dalsegno import InvalidError

Blocks = Sequence[Sequence[memoryview]]


def byte_view(tensor: torch.Tensor) -> memoryview:
    """Returns a contiguous CPU tensor's memory as bytes; shares it and keeps it alive."""
    flat = tensor.detach().reshape(-1)
    if flat.numel() and flat.data_ptr() != tensor.data_ptr():
        raise InvalidError("a tensor that is not contiguous has no view of its bytes")
    return memoryview(flat.view(torch.uint8).numpy())


def _tensors(values: Iterable[Any], depth: int = 2) -> Iterator[torch.Tensor]:
    """Yields the CPU tensors among some values and in their lists, tuples and dictionaries."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.device.type == "cpu" and value.numel():
                yield value
        elif depth and isinstance(value, (list, tuple)):
            yield from _tensors(value, depth - 1)
        elif depth and isinstance(value, dict):
            yield from _tensors(value.values(), depth - 1)


class Memory:
    """The memory of a host pool: views of it by address."""

    def __init__(self, pool: Any) -> None:
        """Finds the memory of all tensors of a pool."""
        found: dict[int, memoryview] = {}
        for tensor in _tensors(vars(pool).values()):
            storage = tensor.untyped_storage()
            known = found.get(storage.data_ptr())
            if known is None or len(known) < storage.nbytes():
                whole = torch.empty(0, dtype=torch.uint8).set_(storage)
                found[storage.data_ptr()] = byte_view(whole)
        self._starts = sorted(found)
        self._views = [found[start] for start in self._starts]

    def views(self, addresses: Sequence[int], sizes: Sequence[int]) -> list[memoryview]:
        """Returns as many bytes at each address.

        Raises:
            InvalidError: They are not all in tensors of the pool.
        """
        if not addresses:
            return []
        lowest, end = min(addresses), max(addresses) + max(sizes)
        at = bisect_right(self._starts, lowest) - 1
        if at >= 0 and end <= self._starts[at] + len(self._views[at]):
            # All in one tensor, as nearly always.
            start, whole = self._starts[at], self._views[at]
            return [
                whole[address - start : address - start + size]
                for address, size in zip(addresses, sizes, strict=True)
            ]
        return list(map(self.view, addresses, sizes))

    def view(self, address: int, size: int) -> memoryview:
        """Returns `size` bytes at an address.

        Raises:
            InvalidError: They are not all in one tensor of the pool.
        """
        at = bisect_right(self._starts, address) - 1
        if at >= 0:
            offset = address - self._starts[at]
            view = self._views[at]
            if offset + size <= len(view):
                return view[offset : offset + size]
        raise InvalidError(
            f"SGLang's host pool returned {size} bytes at {address:#x}, outside of its tensors"
        )


@dataclass(frozen=True)
class Shape:
    """What a block of a pool is made of.

    Attributes:
        form: `parts` in the order of `get_page_buffer_meta`, or a `flat` page.
        parts: Bytes of each part.
    """

    form: str
    parts: tuple[int, ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of a block; 0 for a pool that only stands for others."""
        return sum(self.parts)


class PoolPages:
    """The pages of one host pool.

    Attributes:
        pool: SGLang's host pool.
        page_tokens: Indices that stand for one page.
        shape: What a block is made of.
    """

    def __init__(self, pool: Any) -> None:
        """Asks the pool what a page is.

        Raises:
            InvalidError: The pool does not provide them.
        """
        self.pool = pool
        self.page_tokens = int(getattr(pool, "logical_page_size", pool.page_size)) or 1
        self.shape = self._ask()
        self._memory = Memory(pool) if self.shape.form == "parts" else None

    def _ask(self) -> Shape:
        """Returns the shape of a block."""
        try:
            meta = self.pool.get_page_buffer_meta(torch.arange(self.page_tokens))
        except (AttributeError, NotImplementedError, ValueError):
            return Shape("flat", (self.flat_bytes,))
        return Shape("parts", tuple(int(size) for size in meta[1])) if meta else Shape("parts", ())

    @cached_property
    def flat_bytes(self) -> int:
        """The bytes of a flat page, as the first interface moves it."""
        page = self.pool.get_dummy_flat_data_page()
        return int(page.numel() * page.element_size())

    def count(self, host_indices: torch.Tensor) -> int:
        """Returns how many pages some indices stand for.

        Raises:
            InvalidError: They are not whole pages.
        """
        if len(host_indices) % self.page_tokens:
            raise InvalidError(
                f"{len(host_indices)} indices are not whole pages of {self.page_tokens}"
            )
        return len(host_indices) // self.page_tokens

    def sources(self, host_indices: torch.Tensor) -> Blocks:
        """Returns the bytes of pages to be stored; copies only what has no address."""
        if self._memory is not None:
            return self._parts(host_indices)
        pages = (self.pool.get_data_page(int(at), flat=True) for at in self._firsts(host_indices))
        return [[byte_view(page.contiguous())] for page in pages]

    def targets(self, host_indices: torch.Tensor) -> tuple[Blocks, Callable[[int], None]]:
        """Returns memory to be filled, and what to call with the place of each page that is."""
        if self._memory is not None:
            return self._parts(host_indices), _nothing
        firsts = self._firsts(host_indices)
        pages = [self.pool.get_dummy_flat_data_page() for _ in firsts]

        def fill(place: int) -> None:
            self.pool.set_from_flat_data_page(int(firsts[place]), pages[place])

        return [[byte_view(page)] for page in pages], fill

    def _firsts(self, host_indices: torch.Tensor) -> list[int]:
        """Returns the first index of each page."""
        firsts: list[int] = host_indices[:: self.page_tokens].tolist()
        return firsts

    def _parts(self, host_indices: torch.Tensor) -> Blocks:
        """Returns views of the parts of each page."""
        assert self._memory is not None
        addresses, sizes = self.pool.get_page_buffer_meta(host_indices)
        each = len(self.shape.parts)
        if list(sizes[:each]) != list(self.shape.parts) or len(sizes) != each * self.count(
            host_indices
        ):
            raise InvalidError(
                f"SGLang's host pool returned {len(sizes)} parts for {self.count(host_indices)} "
                f"pages, where each has {each}"
            )
        try:
            views = self._memory.views(addresses, sizes)
        except InvalidError:
            # The pool may have got other memory since.
            self._memory = Memory(self.pool)
            views = self._memory.views(addresses, sizes)
        return [views[at : at + each] for at in range(0, len(views), each)]


def _nothing(place: int) -> None:
    """What is to be done for a page that was filled in place."""
    del place
