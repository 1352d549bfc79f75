"""Which prefixes of a chain can be restored when several pools must have their part of it.

1. A prefix is restorable when the KV has all of its pages and every pool what its policy asks.
2. The result for a single pool is the longest prefix for which it has the requested pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALL_PAGES = "all_pages"
TRAILING_PAGES = "trailing_pages"
BLOCK_GROUPS = "block_groups"


@dataclass(frozen=True)
class Wanted:
    """What one pool must have.

    Attributes:
        name: The pool.
        policy: One of the three above.
        present: For each page of the chain whether the pool has it; for `BLOCK_GROUPS` for each
            page that was asked for.
        trailing: Pages that must end where the prefix ends.
        block_pages: Pages of the chain that a group of `BLOCK_GROUPS` covers.
        group_pages: Pages of this pool in a group.
    """

    name: str
    policy: str
    present: Sequence[bool]
    trailing: int = 1
    block_pages: int = 0
    group_pages: int = 0


def leading(present: Sequence[bool]) -> int:
    """Returns how many pages come before the first that is missing."""
    return next((at for at, there in enumerate(present) if not there), len(present))


def _windows(present: Sequence[bool], trailing: int) -> set[int]:
    """Returns the lengths of the prefixes whose last pages are all there."""
    found, run = set(), 0
    for length, there in enumerate(present, 1):
        run = run + 1 if there else 0
        if run >= min(trailing, length):
            found.add(length)
    return found


def restorable(kv_pages: int, pools: Sequence[Wanted]) -> tuple[list[int], dict[str, int]]:
    """Returns the lengths of all prefixes that can be restored, and each pool's longest.

    Args:
        kv_pages: Leading pages of the chain that the KV has.
        pools: What the other pools must have.

    Returns:
        Lengths in pages, ascending; and for each pool that has anything its own longest prefix.

    Raises:
        ValueError: A policy is unknown.
    """
    lengths = set(range(1, kv_pages + 1))
    longest: dict[str, int] = {}
    for pool in pools:
        if pool.policy == ALL_PAGES:
            own = set(range(1, leading(pool.present[:kv_pages]) + 1))
        elif pool.policy == TRAILING_PAGES:
            own = _windows(pool.present[:kv_pages], max(1, pool.trailing))
        elif pool.policy == BLOCK_GROUPS:
            groups = leading(pool.present) // max(1, pool.group_pages)
            if groups:
                longest[pool.name] = groups * pool.block_pages
            # A second form of pages that the KV has anyway: it never takes any away.
            continue
        else:
            raise ValueError(f"unknown policy {pool.policy!r} of pool {pool.name}")
        if own:
            longest[pool.name] = max(own)
        lengths &= own
    return sorted(lengths), longest
