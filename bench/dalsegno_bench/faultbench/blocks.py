"""Blocks that say which block they are: their key, and then bytes that follow from it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

KEY_BYTES = 32
HIT, MISS = "hit", "miss"


def names(label: str, count: int) -> list[bytes]:
    """Makes keys of a prompt's blocks, in order: other labels, other keys."""
    return [hashlib.sha256(f"{label} {number}".encode()).digest() for number in range(count)]


def content(key: bytes, block_bytes: int) -> bytes:
    """Returns the one content that belongs to a key."""
    return key + random.Random(key).randbytes(block_bytes - len(key))  # noqa: S311 - no secret


def judge(key: bytes, got: bytes | None, block_bytes: int) -> str:
    """Says what a get of ``key`` brought: ``HIT``, ``MISS``, or what is wrong with the bytes."""
    if got is None:
        return MISS
    right = content(key, block_bytes)
    if got == right:
        return HIT
    if len(got) != len(right):
        return f"{len(got)} bytes instead of {len(right)}"
    head = got[:KEY_BYTES]
    if head != key and got == content(head, block_bytes):
        return "the bytes of another block"
    differing = sum(one != other for one, other in zip(got, right, strict=True))
    return f"{differing} bytes differ"


def batches(keys: Sequence[bytes], size: int) -> list[list[bytes]]:
    """Cuts keys into batches, the last of which may be shorter."""
    return [list(keys[at : at + size]) for at in range(0, len(keys), size)]
