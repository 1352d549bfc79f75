"""LMCache's adapters and ours behind one small interface, for the bench.

LMCache's factory makes each from the argument of `--l2-adapter`. It is driven as `lmcache bench l2`
does: submit a few tasks, then wait for their events.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.platform import consume_fd

from dalsegno_bench.machine import kernel

ALIGN_BYTES = 4096
WAIT_MS = 120_000
# Threads that sync files, as many as LMCache's file adapter writes with.
SYNC_THREADS = 4


def objects(count: int, object_bytes: int) -> list[TensorMemoryObj]:
    """Returns aligned objects, as LMCache's memory has them, filled with random bytes."""
    memory = torch.empty(count * object_bytes + ALIGN_BYTES, dtype=torch.uint8)
    memory = memory[-memory.data_ptr() % ALIGN_BYTES :][: count * object_bytes]
    memory.random_(0, 256, generator=torch.Generator().manual_seed(7))
    made = []
    for raw in memory.split(object_bytes):
        shape = torch.Size([object_bytes])
        meta = MemoryObjMetadata(
            shape=shape,
            dtype=torch.uint8,
            address=0,
            phy_size=object_bytes,
            fmt=MemoryFormat.KV_2LTD,
            ref_count=1,
            shapes=[shape],
            dtypes=[torch.uint8],
        )
        made.append(TensorMemoryObj(raw, meta, parent_allocator=None))
    return made


def chunk_keys(hashes: Sequence[bytes]) -> list[ObjectKey]:
    """Returns keys of one model that one process serves."""
    return [ObjectKey(one, "org/model", 0x01000100) for one in hashes]


class Measured:
    """One adapter of LMCache's.

    Attributes:
        name: Its name in the bench's tables.
    """

    def __init__(self, name: str, line: dict[str, Any], files: Path | None = None) -> None:
        """Makes the adapter.

        Args:
            name: Its name in the bench's tables.
            line: The argument of `--l2-adapter`.
            files: Folder of the files of an adapter that syncs none of them.
        """
        self.name, self._files, self._synced = name, files, set[str]()
        parsed = get_l2_adapter_config_class(line["type"]).from_dict(line)
        self._adapter: Any = create_l2_adapter(parsed, None)
        self._threads = ThreadPoolExecutor(SYNC_THREADS)

    def _until(self, event_fd: int, ask: Callable[[], bool]) -> None:
        """Waits for an event until everything is there.

        Raises:
            RuntimeError: Nothing came.
        """
        poller = select.poll()
        poller.register(event_fd, select.POLLIN)
        while not ask():
            if not poller.poll(WAIT_MS):
                raise RuntimeError(f"{self.name} reports nothing")
            consume_fd(event_fd)

    def put(self, batches: Sequence[tuple[list[ObjectKey], list[Any]]]) -> None:
        """Stores batches of objects, all at a time.

        Raises:
            RuntimeError: One was not stored.
        """
        numbers = [self._adapter.submit_store_task(*batch) for batch in batches]
        results: dict[int, Any] = {}

        def ask() -> bool:
            results.update(self._adapter.pop_completed_store_tasks())
            return len(results) == len(numbers)

        self._until(self._adapter.get_store_event_fd(), ask)
        if not all(one.is_successful() for one in results.values()):
            raise RuntimeError(f"{self.name} did not store everything: {results}")

    def get(self, batches: Sequence[tuple[list[ObjectKey], list[Any]]]) -> int:
        """Loads batches of objects, all at a time; returns how many came."""
        submit, ask = self._adapter.submit_load_task, self._adapter.query_load_result
        numbers = [submit(*batch) for batch in batches]
        return self._count(numbers, self._adapter.get_load_event_fd(), ask)

    def look_up(self, keys: list[ObjectKey]) -> int:
        """Looks keys up; returns how many are there."""
        layout = {0: MemoryLayoutDesc(shapes=[], dtypes=[])}
        number = self._adapter.submit_lookup_and_lock_task(keys, layout)
        ask = self._adapter.query_lookup_and_lock_result
        found = self._count([number], self._adapter.get_lookup_and_lock_event_fd(), ask)
        self._adapter.submit_unlock(keys)
        return found

    def _count(self, numbers: list[int], event_fd: int, ask: Callable[[int], Any]) -> int:
        """Waits for tasks; returns how many bits their results have in all."""
        left, count = set(numbers), 0

        def ask_all() -> bool:
            nonlocal count
            for number in list(left):
                if (bitmap := ask(number)) is not None:
                    left.discard(number)
                    count += bitmap.popcount()
            return not left

        self._until(event_fd, ask_all)
        return count

    def _new_files(self) -> list[Path]:
        """Returns the files that came since the last call."""
        assert self._files is not None
        with os.scandir(self._files) as entries:
            fresh = {one.name for one in entries if one.is_file()} - self._synced
        self._synced |= fresh
        return [self._files / name for name in fresh]

    def sync(self) -> None:
        """Makes what an adapter put into files durable, as it does not do that itself."""
        if self._files is None:
            return
        list(self._threads.map(_sync, [*self._new_files(), self._files]))

    def forget_pages(self) -> None:
        """Has the kernel forget the contents of files, so that the next load is from the disk."""
        if self._files is not None:
            kernel.forget_pages(self._files)

    def drop(self, keys: list[ObjectKey]) -> None:
        """Removes objects."""
        self._adapter.delete(keys)

    def close(self) -> None:
        """Closes the adapter."""
        self._threads.shutdown()
        self._adapter.close()


def _sync(path: Path) -> None:
    """Syncs a file or a folder."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
