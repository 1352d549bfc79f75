"""What a file's times prove: that its bytes are those of an earlier read, or those in use.

1. Equal times mean equal bytes only where the kernel of this machine sets the ctime, and only for
   as long as this kernel runs: on a writable local file system that is not an image in a file.
   Read-only images, FUSE, network and layered file systems give the same times to other bytes.
2. A ctime is conclusive only some time after the change: memory that maps a file may write to it
   again under the same times, until the page is written back.
3. A file that did not change since the engine began to start holds what the engine loaded.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import re
import time
from pathlib import Path

# File systems of this machine's kernel that keep the times of a change.
TRUSTED = ("btrfs", "ext2", "ext3", "ext4", "xfs")
# The clock of these is this machine's. Other file systems may have the clock of a server.
_OWN_CLOCK = (*TRUSTED, "f2fs", "overlay", "ramfs", "tmpfs", "zfs")
# The kernel writes a mapped page back after 30 s, and notices no further change before that.
SETTLED_NS = 120_000_000_000
# Clocks of servers differ from ours by less, or replies to requests would fail in many ways.
_CLOCK_SKEW_NS = 60_000_000_000
_LOOP_DEVICE = 7
_FRONT_END_S = 600.0


@functools.cache
def boot_id() -> str:
    """Returns what identifies this run of the kernel, empty if it does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _mount(path: Path) -> tuple[str, bool]:
    """Returns the file system of an open file's mount, and whether it is writable.

    The kernel names the mount of an open file, so bind mounts and hidden mounts are no guesswork.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        facts = Path(f"/proc/self/fdinfo/{handle}").read_text(encoding="ascii")
        number = re.search(r"^mnt_id:\s*(\d+)$", facts, re.MULTILINE)
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", False
    finally:
        os.close(handle)
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        if number is not None and fields.split()[0] == number[1]:
            kind, _, options = rest.split()[:3]
            writable = "rw" in options.split(",") and "rw" in fields.split()[5].split(",")
            return kind, writable
    return "", False


def trusted(path: Path) -> bool:
    """Returns whether equal times of a file mean equal bytes, for as long as `boot_id` is equal.

    Raises:
        OSError: The file cannot be opened.
    """
    kind, writable = _mount(path)
    is_image = os.major(path.stat().st_dev) == _LOOP_DEVICE
    return kind in TRUSTED and writable and not is_image and bool(boot_id())


def _started(pid: int) -> float | None:
    """Returns when a process started, in seconds of the wall clock."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        ticks = int(facts.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


def engine_start_ns() -> int:
    """Returns a time before which the engine of this process has read nothing of its model.

    That is when this process started, or the front end that started this process: front ends read
    the files of the tokenizer and of the processor.
    """
    started = _started(os.getpid())
    if started is None:
        return 0
    if multiprocessing.parent_process() is not None:
        front = _started(os.getppid())
        # A program that has run for long before it made an engine is no front end.
        if front is not None and started - front < _FRONT_END_S:
            started = min(started, front)
    return int(started * 1e9)


def changed_since(path: Path, since_ns: int) -> bool:
    """Returns whether a file, a folder or a link itself may have changed since a time.

    Args:
        path: It may be a link, which is not followed.
        since_ns: Nanoseconds of the wall clock.

    Raises:
        OSError: It is not there.
    """
    facts = path.lstat()
    newest = max(facts.st_mtime_ns, facts.st_ctime_ns)
    if newest >= since_ns:
        return True
    if newest < since_ns - _CLOCK_SKEW_NS:
        return False
    return _mount(path.parent if path.is_symlink() else path)[0] not in _OWN_CLOCK
