"""Least recently used blocks of whole chains: what a bounded cache of single blocks hits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

__all__ = ["Lru"]

Block = TypeVar("Block", bound=Hashable)


class Lru(Generic[Block]):
    """A cache of block names.

    A chain is used from its end, so a prefix is always more recent than what follows it, and a
    suffix is evicted before its prefix.

    Args:
        capacity_blocks: Most blocks.
    """

    def __init__(self, capacity_blocks: int) -> None:
        self._capacity_blocks = capacity_blocks
        self._blocks: OrderedDict[Block, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def holds(self, chain: Iterable[Block]) -> bool:
        """Whether every block of a chain is cached; not a use."""
        return all(block in self._blocks for block in chain)

    def use(self, chain: Sequence[Block]) -> int:
        """Uses a chain and caches what is missing of it; returns its leading blocks that hit."""
        blocks = self._blocks
        hits = 0
        for block in chain:
            if block not in blocks:
                break
            hits += 1
        for block in reversed(chain):
            blocks[block] = None
            blocks.move_to_end(block)
        for _ in range(len(blocks) - self._capacity_blocks):
            blocks.popitem(last=False)
        return hits
