"""What the kernel spends on a store: inodes, and memory for names and inodes."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
SLABINFO = Path("/proc/slabinfo")


@dataclass(frozen=True)
class Kernel:
    """The machine and one file system at one moment.

    Attributes:
        inodes: Inodes of the file system in use.
        slab_bytes: Memory of all of the kernel's slab caches.
        names_bytes: Of that, inodes and directory entries; ``None`` if only root may know.
    """

    inodes: int
    slab_bytes: int
    names_bytes: int | None


def look(directory: Path) -> Kernel:
    """Returns the state of the machine, and of the file system of ``directory``."""
    facts = os.statvfs(directory)
    try:
        names_bytes: int | None = names_of_slabinfo(SLABINFO.read_text())
    except OSError:
        names_bytes = None
    slab_bytes = slab_of_meminfo(MEMINFO.read_text())
    return Kernel(facts.f_files - facts.f_ffree, slab_bytes, names_bytes)


def slab_of_meminfo(text: str) -> int:
    """Bytes of all slab caches, reclaimable or not."""
    rows = (line.split() for line in text.splitlines())
    wanted = ("SReclaimable:", "SUnreclaim:")
    return sum(int(row[1]) << 10 for row in rows if row and row[0] in wanted)


def names_of_slabinfo(text: str) -> int:
    """Bytes of the caches of inodes and directory entries, of all file systems."""
    total = 0
    for line in text.splitlines()[2:]:
        name, _, objects, object_bytes = line.split()[:4]
        if name == "dentry" or name.endswith(("inode_cache", "_inode")):
            total += int(objects) * int(object_bytes)
    return total


def cpu_s() -> tuple[float, float]:
    """CPU seconds of this process so far: its own, and the kernel's on its behalf."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def rss_bytes() -> int:
    """Memory of this process that is resident."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def count_files(directory: Path) -> int:
    """Counts the files under a directory, without a `stat` of each."""
    count = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                count += count_files(Path(entry.path))
            else:
                count += 1
    return count


def forget_pages(directory: Path) -> None:
    """Syncs the files under a directory and drops them from the page cache.

    The next read comes from the device.
    """
    for path in directory.rglob("*"):
        if not path.is_file():
            continue
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
