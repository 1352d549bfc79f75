"""Large transfers in parts, which the store's threads carry out together."""

from __future__ import annotations


def blocks_of_part(count: int, block_bytes: int, part_bytes: int, most_parts: int) -> int:
    """Returns how many blocks a part has, the last one perhaps less.

    Args:
        count: Blocks in all.
        block_bytes: Size of a block.
        part_bytes: Size of a part, unless there would be too many of them; at least one block.
        most_parts: Parts at most.
    """
    return max(1, part_bytes // block_bytes, -(-count // most_parts))
