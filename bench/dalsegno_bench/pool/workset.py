"""The blocks that all contenders of the bench `pool` have, and how long a run takes."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

MASK = (1 << 64) - 1
MIB = 1 << 20
HASH_BYTES = 32
# Of `probe` and of `lease`: what a long prompt has.
SMALL_BLOCKS = 512
# Of a get or a lease of large blocks.
LARGE_BLOCKS = 64


def hash_of(number: int) -> bytes:
    """Returns the hash of a block; it looks random."""
    mixed = (number * 0x9E3779B97F4A7C15 & MASK) ^ 0xD1B54A32D192ED03
    out = b""
    while len(out) < HASH_BYTES:
        mixed ^= mixed >> 30
        mixed = mixed * 0xBF58476D1CE4E5B9 & MASK
        mixed ^= mixed >> 27
        mixed = mixed * 0x94D049BB133111EB & MASK
        mixed ^= mixed >> 31
        out += mixed.to_bytes(8, "little")
    return out


@dataclass(frozen=True)
class Prompts:
    """Prompts without a common prefix, whose blocks are numbered one after the other.

    Attributes:
        count: Number of prompts.
        blocks: Blocks of a prompt.
        block_bytes: Bytes of a block. Each of them is the number of the block, modulo 256.
    """

    count: int
    blocks: int
    block_bytes: int

    @property
    def total_blocks(self) -> int:
        """Blocks of all prompts."""
        return self.count * self.blocks

    @property
    def total_bytes(self) -> int:
        """Bytes of all prompts."""
        return self.total_blocks * self.block_bytes

    def numbers(self, prompt: int) -> range:
        """Numbers of the blocks of a prompt."""
        return range(prompt * self.blocks, (prompt + 1) * self.blocks)

    def chain(self, prompt: int) -> list[bytes]:
        """Hashes of the blocks of a prompt."""
        return [hash_of(number) for number in self.numbers(prompt)]

    def contents(self) -> Iterator[tuple[list[bytes], list[memoryview]]]:
        """Yields each prompt's chain and blocks; the memory is used again for the next."""
        memory = memoryview(mmap.mmap(-1, self.blocks * self.block_bytes))
        blocks = [memory[at * self.block_bytes :][: self.block_bytes] for at in range(self.blocks)]
        for prompt in range(self.count):
            for block, number in zip(blocks, self.numbers(prompt), strict=True):
                block[:] = bytes([number & 255]) * self.block_bytes
            yield self.chain(prompt), blocks


@dataclass(frozen=True)
class Dose:
    """How much is measured.

    Attributes:
        pool_bytes: Memory of a shared pool.
        small_prompts: Prompts of small blocks, of 64 KiB.
        large_prompts: Prompts of large blocks, of 512 KiB.
        seconds: How long each measurement takes.
        known_blocks: Blocks that the store with small blocks and the baseline of its calls have in
            all.
        fill_pools: How many times its size is put into the pool of the part `full`.
    """

    pool_bytes: int
    small_prompts: int
    large_prompts: int
    seconds: float
    known_blocks: int
    fill_pools: int

    @property
    def small(self) -> Prompts:
        """Prompts of small blocks."""
        return Prompts(self.small_prompts, SMALL_BLOCKS, 64 << 10)

    @property
    def large(self) -> Prompts:
        """Prompts of large blocks."""
        return Prompts(self.large_prompts, LARGE_BLOCKS, 512 << 10)


WHOLE = Dose(
    pool_bytes=1024 * MIB,
    small_prompts=17,
    large_prompts=16,
    seconds=0.5,
    known_blocks=65_536,
    fill_pools=12,
)
QUICK = Dose(
    pool_bytes=512 * MIB,
    small_prompts=4,
    large_prompts=3,
    seconds=0.02,
    known_blocks=4096,
    fill_pools=3,
)
