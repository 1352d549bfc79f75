"""Ways to keep blocks, for benches that serve whole prompts: the store and what it is measured by.

All store a prompt's blocks and return its leading ones, within a budget of disk and one of memory.
None waits for a sync, all bypass the page cache, and blocks enter memory when they are put.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, Protocol

import dalsegno

THREADS = 8
FOLDERS = 256
# Of the memory budget: names, headers, filters, staging. The rest holds blocks.
METADATA_BYTES = 32 << 20


class Backend(Protocol):
    """What serves prompts."""

    def load(self, chain: Sequence[bytes], out: Sequence[memoryview]) -> int:
        """Fills ``out`` with the leading blocks of ``chain`` that are there; returns how many."""

    def save(self, chain: Sequence[bytes], blocks: Sequence[memoryview], first: int) -> int:
        """Stores ``blocks``, those of ``chain`` from ``first`` on; returns how many failed."""

    def disk_bytes(self) -> int:
        """Bytes of disk in use."""

    def close(self) -> None:
        """Ends threads and lets go of files."""


class MemoryPages:
    """Blocks in memory, least recently used out first; also the memory in front of files.

    Args:
        memory_bytes: Most memory for blocks.
        block_bytes: Size of a block.
    """

    def __init__(self, memory_bytes: int, block_bytes: int) -> None:
        slots = max(1, memory_bytes // block_bytes)
        self._block_bytes = block_bytes
        arena = mmap.mmap(-1, slots * block_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        arena.madvise(mmap.MADV_HUGEPAGE)
        self._arena = memoryview(arena)
        self._free = list(range(slots))
        self._slots: OrderedDict[bytes, int] = OrderedDict()

    def __contains__(self, name: bytes) -> bool:
        return name in self._slots

    def get(self, name: bytes, out: memoryview) -> None:
        """Fills ``out`` with a block that is there."""
        out[:] = self._slot(self._slots[name])

    def put(self, name: bytes, block: memoryview) -> None:
        """Stores a block, or marks one as used that is present."""
        slot = self._slots.pop(name, None)
        if slot is None:
            slot = self._free.pop() if self._free else self._slots.popitem(last=False)[1]
            self._slot(slot)[:] = block
        self._slots[name] = slot

    def load(self, chain: Sequence[bytes], out: Sequence[memoryview]) -> int:
        """See :class:`Backend`."""
        present = leading(chain, self._slots.__contains__)
        for name, buffer in zip(chain[:present], out[:present], strict=True):
            self.get(name, buffer)
        return present

    def save(self, chain: Sequence[bytes], blocks: Sequence[memoryview], first: int) -> int:
        """See :class:`Backend`."""
        # From the end, so that a suffix goes before its prefix.
        for name, block in zip(reversed(chain[first:]), reversed(blocks), strict=True):
            self.put(name, block)
        for name in reversed(chain[:first]):
            if name in self._slots:
                self._slots.move_to_end(name)
        return 0

    def disk_bytes(self) -> int:
        """See :class:`Backend`."""
        return 0

    def close(self) -> None:
        """See :class:`Backend`."""

    def _slot(self, slot: int) -> memoryview:
        return self._arena[slot * self._block_bytes :][: self._block_bytes]


class FilePages:
    """One O_DIRECT file per block, read straight into the caller's memory, several at a time.

    What a file backend can be at best: names spread over 256 folders that stay open, existence from
    a table in memory, files written under another name and renamed, least recently used out first,
    memory of its own in front.

    Args:
        directory: An existing directory.
        block_bytes: Size of a block, whole sectors.
        capacity_bytes: Most bytes of all files.
        memory_bytes: Most memory for blocks.
        evicts_when_full: Whether blocks are evicted when the file system is full. Else new blocks
            are not written, as in the file backends of serving engines.

    Raises:
        ValueError: A block is not whole sectors.
        OSError: The file system has no direct I/O.
    """

    def __init__(
        self,
        directory: Path,
        block_bytes: int,
        *,
        capacity_bytes: int,
        memory_bytes: int,
        evicts_when_full: bool = True,
    ) -> None:
        if block_bytes % mmap.PAGESIZE:
            raise ValueError(f"direct I/O needs blocks of whole sectors, not {block_bytes} bytes")
        check_direct(directory)
        self._block_bytes = block_bytes
        self._most = capacity_bytes // block_bytes
        self._memory = MemoryPages(memory_bytes, block_bytes)
        self._evicts_when_full = evicts_when_full
        # Oldest first.
        self._pages: OrderedDict[bytes, None] = OrderedDict()
        self._pool = ThreadPoolExecutor(THREADS)
        self._folders = []
        for number in range(FOLDERS):
            folder = directory / f"{number:02x}"
            folder.mkdir()
            self._folders.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))

    def load(self, chain: Sequence[bytes], out: Sequence[memoryview]) -> int:
        """See :class:`Backend`; a file that cannot be read whole is a miss."""
        present = leading(chain, lambda name: name in self._memory or name in self._pages)
        wanted = list(zip(chain[:present], out[:present], strict=True))
        outside = [(name, buffer) for name, buffer in wanted if name not in self._memory]
        for name, buffer in wanted:
            if name in self._memory:
                self._memory.get(name, buffer)
        lost = {
            name
            for (name, _), done in zip(outside, self._each(self._read, outside), strict=True)
            if not done
        }
        hits = leading(chain[:present], lambda name: name not in lost)
        for name in lost:
            self._pages.pop(name, None)
        for name, buffer in wanted[:hits]:
            self._memory.put(name, buffer)
        return hits

    def save(self, chain: Sequence[bytes], blocks: Sequence[memoryview], first: int) -> int:
        """See :class:`Backend`."""
        given = list(zip(chain[first:], blocks, strict=True))
        self._memory.save(chain, blocks, first)
        fresh = [(name, block) for name, block in given if name not in self._pages]
        self._evict(len(self._pages) + len(fresh) - self._most)
        failed = self._store(fresh)
        if failed and self._evicts_when_full:
            self._evict(max(len(failed), len(self._pages) // 100))
            failed = self._store(failed)
        for name in reversed(chain[:first]):
            if name in self._pages:
                self._pages.move_to_end(name)
        return len(failed)

    def disk_bytes(self) -> int:
        """See :class:`Backend`."""
        return len(self._pages) * self._block_bytes

    def close(self) -> None:
        """See :class:`Backend`."""
        self._pool.shutdown()
        for folder in self._folders:
            os.close(folder)

    def _store(self, wanted: list[tuple[bytes, memoryview]]) -> list[tuple[bytes, memoryview]]:
        """Writes files; returns what could not be written."""
        done = self._each(self._write, wanted)
        for (name, _), kept in zip(reversed(wanted), reversed(done), strict=True):
            if kept:
                self._pages[name] = None
        return [one for one, kept in zip(wanted, done, strict=True) if not kept]

    def _evict(self, count: int) -> None:
        victims = [
            (self._pages.popitem(last=False)[0], memoryview(b""))
            for _ in range(min(count, len(self._pages)))
        ]
        self._each(self._unlink, victims)

    def _each(
        self,
        work: Callable[[bytes, memoryview], None],
        wanted: Sequence[tuple[bytes, memoryview]],
    ) -> list[bool]:
        """Does ``work`` for all, in as many runs as there are threads; returns what succeeded."""

        def run(part: Iterable[tuple[bytes, memoryview]]) -> list[bool]:
            done = []
            for name, buffer in part:
                try:
                    work(name, buffer)
                except OSError:
                    done.append(False)
                else:
                    done.append(True)
            return done

        share = -(-len(wanted) // THREADS) or 1
        parts = [wanted[at : at + share] for at in range(0, len(wanted), share)]
        return [done for part in self._pool.map(run, parts) for done in part]

    def _read(self, name: bytes, out: memoryview) -> None:
        fd = os.open(name.hex(), os.O_RDONLY | os.O_DIRECT, dir_fd=self._folders[name[0]])
        try:
            whole(os.preadv(fd, [out], 0), len(out))
        finally:
            os.close(fd)

    def _write(self, name: bytes, block: memoryview) -> None:
        folder, final = self._folders[name[0]], name.hex()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT
        # No other name begins with a dot.
        fd = os.open(f".{final}", flags, 0o600, dir_fd=folder)
        try:
            try:
                whole(os.pwritev(fd, [block], 0), len(block))
            finally:
                os.close(fd)
            os.rename(f".{final}", final, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(f".{final}", dir_fd=folder)
            raise

    def _unlink(self, name: bytes, _: memoryview) -> None:
        os.unlink(name.hex(), dir_fd=self._folders[name[0]])


class StorePages:
    """Dalsegno through its public API.

    Args:
        directory: An existing directory.
        block_bytes: Size of a block.
        capacity_bytes: Most bytes of disk.
        memory_bytes: Most memory for blocks.
        index: Where its index lives.
    """

    def __init__(
        self,
        directory: Path,
        block_bytes: int,
        *,
        capacity_bytes: int,
        memory_bytes: int,
        index: Literal["memory", "lsm"],
    ) -> None:
        self._store = dalsegno.open(
            directory / "store",
            capacity=capacity_bytes,
            dram=memory_bytes,
            dram_admission="put",
            staging=METADATA_BYTES // 2,
            header_cache=METADATA_BYTES // 4,
            index=index,
            index_memory=METADATA_BYTES // 4,
        )
        self._namespace = self._store.namespace(
            {"bench": "pages"}, layers=1, slice_bytes=block_bytes
        )

    def load(self, chain: Sequence[bytes], out: Sequence[memoryview]) -> int:
        """See :class:`Backend`."""
        present = self._namespace.probe(chain)
        return self._namespace.get_batch(chain[:present], out[:present]) if present else 0

    def save(self, chain: Sequence[bytes], blocks: Sequence[memoryview], first: int) -> int:
        """See :class:`Backend`."""
        return self._namespace.put_batch(chain, blocks, first=first).failed

    def disk_bytes(self) -> int:
        """See :class:`Backend`."""
        return int(self._store.stats()["disk_bytes"])

    def close(self) -> None:
        """See :class:`Backend`."""
        self._store.close()


def leading(chain: Sequence[bytes], present: Callable[[bytes], bool]) -> int:
    """How many leading names of ``chain`` are present."""
    return next((i for i, name in enumerate(chain) if not present(name)), len(chain))


def check_direct(directory: Path) -> None:
    """Checks that a directory's file system has direct I/O.

    Raises:
        OSError: It has not.
    """
    path = directory / "direct"
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600))
    except OSError as error:
        raise OSError(f"no direct I/O in {directory}: choose another one with --dir") from error
    finally:
        path.unlink(missing_ok=True)


def whole(moved: int, wanted: int) -> None:
    """Checks that a transfer was complete.

    Raises:
        OSError: It was not.
    """
    if moved != wanted:
        raise OSError(f"moved {moved} of {wanted} bytes")


def make(
    system: str, directory: Path, block_bytes: int, *, disk_bytes: int, memory_bytes: int
) -> Backend:
    """Opens a backend of :data:`SYSTEMS` in an existing, empty directory."""
    if system == "memory":
        return MemoryPages(memory_bytes, block_bytes)
    inside = max(0, memory_bytes - METADATA_BYTES)
    if system.startswith("files"):
        return FilePages(
            directory,
            block_bytes,
            capacity_bytes=disk_bytes,
            memory_bytes=inside,
            evicts_when_full=system == "files-evict",
        )
    return StorePages(
        directory,
        block_bytes,
        capacity_bytes=disk_bytes,
        memory_bytes=inside,
        index="lsm" if system == "dalsegno-lsm" else "memory",
    )


# In the order of the tables.
SYSTEMS = ("memory", "files", "files-evict", "dalsegno-memory", "dalsegno-lsm")
