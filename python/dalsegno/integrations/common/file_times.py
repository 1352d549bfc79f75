"""What a file's times prove: that its bytes are those of an earlier read, or those in use.

1. Equal times mean equal bytes only where the kernel of this machine sets the ctime, and only for
   as long as this kernel runs: on a writable local file system that is not an image in a file.
   Read-only images, FUSE, network and layered file systems give the same times to other bytes.
2. A ctime is conclusive only some time after the change: memory that maps a file may write to it
   again under the same times, until the page is written back.
3. A file that did not change since the engine began to start holds what the engine loaded.
4. The engine began when its program did. A process keeps its start time when a shell replaces
   itself by the engine (`exec`), and what the shell downloaded before was in place by then.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import re
import time
from pathlib import Path

# File systems of this machine's kernel that keep the times of a change.
TRUSTED = ("btrfs", "ext2", "ext3", "ext4", "xfs")
# The clock of these is this machine's. Other file systems may have the clock of a server.
_OWN_CLOCK = (*TRUSTED, "f2fs", "overlay", "proc", "ramfs", "tmpfs", "zfs")
# The kernel writes a mapped page back after 30 s, and notices no further change before that.
SETTLED_NS = 120_000_000_000
# Clocks of servers differ from ours by less, or replies to requests would fail in many ways.
_CLOCK_SKEW_NS = 60_000_000_000
_LOOP_DEVICE = 7
_FRONT_END_NS = 600_000_000_000
_PROC = Path("/proc")
_ROOT_OF_PROCESS = re.compile(r"/proc/([0-9]+)/root")
# Process and start of the program that started this one, for its children.
_ANNOUNCED = "DALSEGNO_ENGINE_START"
_ANNOUNCED_PARTS = 2
# Later versions of Python note nanoseconds.
_SECONDS_END = 1e12


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


def program_start_ns() -> int | None:
    """Returns when the program of this process began, None if that is unknown.

    `logging` notes when it is first imported. That is after `exec`, and before an engine can read a
    file of its model: engines import it first. In a forked child the note is older than the child.
    """
    started = _started(os.getpid())
    if started is None:
        return None
    noted = getattr(logging, "_startTime", None) or 0.0
    noted = noted / 1e9 if noted > _SECONDS_END else noted
    return int((noted if started <= noted <= time.time() else started) * 1e9)


def announce_start() -> None:
    """Lets the children of this process know when its engine began; only they use it.

    What its own front end announced is read first.
    """
    if (started_ns := engine_start_ns()) > 0:
        os.environ[_ANNOUNCED] = f"{os.getpid()} {started_ns}"


def _announced_ns(pid: int) -> int | None:
    """Returns what a process has announced to this one, None if it has not."""
    parts = os.environ.get(_ANNOUNCED, "").split()
    if len(parts) != _ANNOUNCED_PARTS or parts[0] != str(pid) or not parts[1].isdigit():
        return None
    return int(parts[1])


def _front_end_start_ns(pid: int) -> int | None:
    """Returns when the program of this process's parent began, or the parent itself."""
    if (announced := _announced_ns(pid)) is not None:
        return announced
    started = _started(pid)
    return None if started is None else int(started * 1e9)


def engine_start_ns() -> int:
    """Returns a time before which the engine of this process has read nothing of its model.

    That is when its program began, or that of the front end that started this process: front ends
    read the files of the tokenizer and of the processor.
    """
    if (own_ns := _announced_ns(os.getpid())) is not None:
        return own_ns
    started_ns = program_start_ns()
    if started_ns is None:
        return 0
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        front_ns = _front_end_start_ns(parent.pid)
        # A program that has run for long before it made an engine is no front end.
        if front_ns is not None and started_ns - front_ns < _FRONT_END_NS:
            started_ns = min(started_ns, front_ns)
    return started_ns


def is_magic(link: Path) -> bool:
    """Returns whether a link of `/proc` leads elsewhere than its text says, as `/proc/7/root`."""
    try:
        return link.lstat().st_dev == _PROC.lstat().st_dev and link.parent != _PROC
    except OSError:
        return False


def _changed_ns(path: Path, *, follow: bool) -> int:
    """Returns when a file, a folder or a link last changed."""
    of_process = None if follow else _ROOT_OF_PROCESS.fullmatch(str(path))
    if of_process is not None and is_magic(path):
        # The link has no time of its own: it names the root of one process as long as that runs.
        started = _started(int(of_process[1]))
        if started is None:
            raise FileNotFoundError(f"{path} is the root of no process")
        return int(started * 1e9)
    facts = path.stat() if follow else path.lstat()
    return max(facts.st_mtime_ns, facts.st_ctime_ns)


def _clock(ns: int) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(ns / 1e9))


def change_since(path: Path, since_ns: int, *, follow: bool = False) -> str:
    """Returns how a file, a folder or a link may have changed since a time; empty if it has not.

    Args:
        path: It may be a link.
        since_ns: When the engine began to start, in nanoseconds of the wall clock.
        follow: Whether a link stands for what it names.

    Raises:
        OSError: It is not there.
    """
    newest = _changed_ns(path, follow=follow)
    if newest >= since_ns:
        at = f"at {_clock(newest)}, and the engine at {_clock(since_ns)}"
        return f"changed after the engine began to start: {at}"
    if newest < since_ns - _CLOCK_SKEW_NS:
        return ""
    kind = _mount(path.parent if path.is_symlink() and not follow else path)[0]
    if kind in _OWN_CLOCK:
        return ""
    return (
        f"may have changed after the engine began to start: it changed "
        f"{(since_ns - newest) / 1e9:.0f} s before, by the clock of its file system "
        f"({kind or 'unknown'}), which may be a minute off"
    )
