"""What saves and loads blocks in the bench `mixed`: our store, and files."""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
import queue
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import dalsegno

__all__ = [
    "BLOCK_BYTES",
    "LOAD_BLOCKS",
    "SAVE_BLOCKS",
    "Contender",
    "Files",
    "Ours",
    "Speech",
    "memory_of",
    "names_of",
]

BLOCK_BYTES = 1 << 20
# Of one save, and of one load.
SAVE_BLOCKS, LOAD_BLOCKS = 8, 32
# Threads of files, as LMCache and vLLM have them.
FILE_THREADS = 8
# Saves of files before they are written over, 4 GiB.
RING = 512
# Blocks that are read; what is written comes on top.
READ_BLOCKS = 256

Phase: TypeAlias = Literal["prefill", "decode", "idle"]


class Speech(Enum):
    """What the engine says to a store.

    Attributes:
        ALL: What it computes.
        READS: Only whether blocks are being read.
    """

    ALL = "all"
    READS = "reads"


class Contender(Protocol):
    """What saves and loads blocks."""

    def save(self, number: int) -> Callable[[], bool]:
        """Begins to save some blocks; returns what waits for them, and says whether they are."""

    def load(self) -> None:
        """Loads some blocks."""

    def prepare(self) -> None:
        """Makes sure that all blocks are there that are loaded."""

    def say(self, phase: Phase, slack_s: float = 0.0, steps: Sequence[float] = ()) -> None:
        """The engine says what it does."""

    def close(self) -> None:
        """Ends."""


def memory_of(blocks: int) -> memoryview:
    """Returns memory that a disk can use directly."""
    return memoryview(mmap.mmap(-1, blocks * BLOCK_BYTES))


def names_of(kind: str, number: int, count: int) -> list[bytes]:
    """Returns the names of some blocks."""
    return [hashlib.sha256(f"{kind} {number} {at}".encode()).digest() for at in range(count)]


class Ours:
    """A store."""

    def __init__(self, directory: Path, speech: Speech) -> None:
        """Fills it.

        Args:
            directory: Where it is.
            speech: What the engine says.
        """
        self._speech = speech
        self.store = dalsegno.open(
            directory, capacity="6GiB", dram=0, merge_rate=0, scrub_rate=0, transfer_threads=4
        )
        self._namespace = self.store.namespace(
            {"bench": "mixed"}, layers=1, slice_bytes=BLOCK_BYTES
        )
        self._source, self._target = memory_of(SAVE_BLOCKS), memory_of(LOAD_BLOCKS)
        self._source[:] = random.Random(5).randbytes(len(self._source))  # noqa: S311 - contents
        self._loads = itertools.count()
        for number in range(READ_BLOCKS // SAVE_BLOCKS):
            assert self._put("kept", number)()

    def _put(self, kind: str, number: int) -> Callable[[], bool]:
        blocks = [
            self._source[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES] for at in range(SAVE_BLOCKS)
        ]
        begun = self._namespace.submit_put(names_of(kind, number, SAVE_BLOCKS), blocks)
        return lambda: begun.wait() and begun.result().failed == 0

    def save(self, number: int) -> Callable[[], bool]:
        """Begins to save some blocks."""
        return self._put("new", number)

    def load(self) -> None:
        """Loads blocks of several saves, in turn."""
        first = next(self._loads) * LOAD_BLOCKS
        for at in range(0, LOAD_BLOCKS, SAVE_BLOCKS):
            number = (first + at) // SAVE_BLOCKS % (READ_BLOCKS // SAVE_BLOCKS)
            out = [
                self._target[(at + one) * BLOCK_BYTES : (at + one + 1) * BLOCK_BYTES]
                for one in range(SAVE_BLOCKS)
            ]
            names = names_of("kept", number, SAVE_BLOCKS)
            # A use keeps them: others are evicted.
            assert self._namespace.get_batch(names, out) == SAVE_BLOCKS, "they were evicted"

    def prepare(self) -> None:
        """Saves again what was evicted meanwhile."""
        self.store.set_phase(1, "idle")
        for number in range(READ_BLOCKS // SAVE_BLOCKS):
            assert self._put("kept", number)()

    def say(self, phase: Phase, slack_s: float = 0.0, steps: Sequence[float] = ()) -> None:
        """Passes on what the engine says."""
        if self._speech is Speech.READS:
            is_reading = phase == "prefill" and not slack_s
            self.store.set_phase(1, "prefill" if is_reading else "idle")
        else:
            self.store.set_phase(1, phase, slack_s=slack_s, steps=list(steps))

    def close(self) -> None:
        """Closes the store."""
        self.store.close()


class Files:
    """A file for each block, and threads that take requests in their order."""

    def __init__(self, directory: Path) -> None:
        """Fills the directory."""
        directory.mkdir()
        self._directory, self._tasks = directory, queue.SimpleQueue[Any]()
        self._source, self._target = memory_of(1), memory_of(LOAD_BLOCKS)
        self._source[:] = random.Random(5).randbytes(BLOCK_BYTES)  # noqa: S311 - contents
        self._loads = itertools.count()
        self._threads = [threading.Thread(target=self._work) for _ in range(FILE_THREADS)]
        for thread in self._threads:
            thread.start()
        kept = [self._begin(self._write, f"kept {at}") for at in range(READ_BLOCKS)]
        for one in kept:
            one.result()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            done, work, arguments = task
            try:
                done.set_result(work(*arguments))
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                done.set_exception(error)

    def _begin(self, work: Callable[..., None], *arguments: Any) -> Future[None]:
        done = Future[None]()
        self._tasks.put((done, work, arguments))
        return done

    def _write(self, name: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_DIRECT
        fd = os.open(self._directory / name, flags, 0o600)
        try:
            assert os.pwrite(fd, self._source, 0) == BLOCK_BYTES
        finally:
            os.close(fd)

    def _read(self, name: str, at: int) -> None:
        fd = os.open(self._directory / name, os.O_RDONLY | os.O_DIRECT)
        try:
            target = self._target[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES]
            assert os.preadv(fd, [target], 0) == BLOCK_BYTES
        finally:
            os.close(fd)

    def save(self, number: int) -> Callable[[], bool]:
        """Begins to save some blocks, over those of earlier saves."""
        names = [f"new {number % RING} {at}" for at in range(SAVE_BLOCKS)]
        begun = [self._begin(self._write, name) for name in names]
        return lambda: all(one.result() is None for one in begun)

    def load(self) -> None:
        """Loads blocks, in turn."""
        first = next(self._loads) * LOAD_BLOCKS
        names = [f"kept {(first + at) % READ_BLOCKS}" for at in range(LOAD_BLOCKS)]
        for one in [self._begin(self._read, name, at) for at, name in enumerate(names)]:
            one.result()

    def prepare(self) -> None:
        """They are there."""

    def say(self, phase: Phase, slack_s: float = 0.0, steps: Sequence[float] = ()) -> None:
        """Nobody listens."""

    def close(self) -> None:
        """Ends the threads."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
