"""A store of chains behind one system prompt, and the blocks that each put evicts.

Both parts of the bench ``shared-prefix`` use it. Merging, scrubbing and DRAM are off, so
every run gives the same figures.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import dalsegno
from dalsegno.stats import Stats
from dalsegno_bench.disk.log import aligned

__all__ = ["PROMPT_BLOCKS", "ROOT", "Geometry", "Setup", "Subject", "calibrate", "chain_of"]

# Blocks behind the root that one put brings: a prompt, or a turn of a conversation.
PROMPT_BLOCKS = 6
# Blocks of the longest chain.
CHAIN_BLOCKS = 64


def chain_of(name: str, blocks: int) -> list[bytes]:
    """Hashes of blocks that only this name has."""
    return [hashlib.sha256(f"{name} {at}".encode()).digest() for at in range(blocks)]


# The system prompt.
ROOT = chain_of("root", 10)


@dataclass(frozen=True)
class Setup:
    """What a store is opened with.

    Attributes:
        directory: Where stores are made, each in a folder of its own.
        index: The setting ``index``.
        capacity_bytes: The setting ``capacity``.
        block_bytes: Bytes of a block.
    """

    directory: Path
    index: str
    capacity_bytes: int
    block_bytes: int


@dataclass(frozen=True)
class Geometry:
    """How much a store holds.

    Attributes:
        segments: Its segments.
        segment_prompts: Prompts that fit into one.
    """

    segments: int
    segment_prompts: int

    @property
    def segment_blocks(self) -> int:
        """Blocks of prompts that fit into a segment."""
        return self.segment_prompts * PROMPT_BLOCKS

    @property
    def capacity_prompts(self) -> int:
        """Prompts that fit into all segments."""
        return self.segments * self.segment_prompts

    @property
    def fit_prompts(self) -> int:
        """Prompts that fit while one segment is free and one is being filled."""
        return (self.segments - 2) * self.segment_prompts

    @property
    def fit_blocks(self) -> int:
        """Blocks of the prompts that fit."""
        return self.fit_prompts * PROMPT_BLOCKS


class Subject:
    """One store, in a folder of its own until :meth:`close`.

    Attributes:
        max_loss_blocks: The largest drop in the number of blocks by one put.
        put_bytes: Bytes of blocks written so far.
        relocated_bytes: Bytes moved by eviction so far.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.max_loss_blocks = 0
        self.put_bytes = 0
        self.relocated_bytes = 0
        self.stats: Stats
        self._folder = tempfile.mkdtemp(dir=setup.directory)
        memory = aligned(CHAIN_BLOCKS * setup.block_bytes)
        self._buffers = [
            memory[at * setup.block_bytes :][: setup.block_bytes] for at in range(CHAIN_BLOCKS)
        ]
        self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, chain: Sequence[bytes], first: int = 0) -> int:
        """Puts a chain from a position on; returns how many blocks were written."""
        before = self.stats["blocks"]
        report = self.namespace.put_batch(chain, self._buffers[first : len(chain)], first=first)
        self.stats = self.store.stats()
        self.max_loss_blocks = max(self.max_loss_blocks, before - self.stats["blocks"])
        assert report.failed == 0, report
        return report.stored

    def get(self, chain: Sequence[bytes]) -> int:
        """Gets a chain; returns how many leading blocks came."""
        return self.namespace.get_batch(chain, self._buffers[: len(chain)])

    def reopen(self) -> None:
        """Closes the store and opens it again."""
        self._end()
        self._open()

    def close(self) -> None:
        """Closes the store and removes it."""
        self._end()
        shutil.rmtree(self._folder)

    def _open(self) -> None:
        self.store = dalsegno.open(
            self._folder,
            capacity=self.setup.capacity_bytes,
            index=self.setup.index,
            dram=0,
            merge_rate=0,
            scrub_rate=0,
        )
        self.namespace = self.store.namespace(
            {"bench": "shared-prefix"}, layers=1, slice_bytes=self.setup.block_bytes
        )
        self.stats = self.store.stats()

    def _end(self) -> None:
        self.put_bytes += self.stats["put_bytes"]
        self.relocated_bytes += self.stats["relocated_bytes"]
        self.store.close()


def calibrate(setup: Setup) -> Geometry:
    """Finds out how many prompts a segment holds, by filling some of a store of its own."""
    with Subject(setup) as subject:
        # How many extents there were when each segment was created.
        extents: list[int] = []
        number = 0
        while len(extents) < 3:
            number += 1
            subject.put(ROOT + chain_of(f"calibration {number}", PROMPT_BLOCKS), len(ROOT))
            if subject.stats["log"]["segments_created"] > len(extents):
                extents.append(subject.stats["extents"])
        return Geometry(subject.store.limits()["segment_count"], extents[-1] - extents[-2])
