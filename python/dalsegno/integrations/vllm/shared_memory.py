"""The file of vLLM's primary tier in `/dev/shm`: when its name is removed, and what engines left.

The halves of vLLM's tiering, one scheduler and its workers, find the file by its name. The kernel
frees a file without a name when its last process ends, however it ends. A file with a name stays.

1. The name is removed when every half has mapped the file. The scheduler is the last: vLLM starts
   it after its workers.
2. While a half may still come, the name stays: that half would create a file of its own, and the
   halves would not see each other's blocks. If `/proc` does not show every half, the name stays.
3. Anybody can remove the name between two halves. So each worker marks the file that it has mapped,
   and the scheduler uses nothing of it before it has found the marks of all workers.
4. A file that another engine left is removed only if no process can use it: it is this user's, no
   process has it open, and it was made long enough ago. A random engine id does not come back.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm.logger import init_logger

from dalsegno.integrations.vllm import compat

logger = init_logger("vllm.dalsegno")

FOLDER = Path("/dev/shm")  # noqa: S108 - where vLLM puts the file
PROC = Path("/proc")
# Engine ids that vLLM makes up, with the number of a data-parallel replica.
_LEFT = re.compile(r"vllm_offload_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(_dp\d+)?\.mmap")
# A file is open before its maker sees the end of its own system call.
YOUNG_S = 10.0
# In a container other engines of the same /dev/shm may be hidden. After this time each of them has
# all of its halves, and loses nothing with the name.
HIDDEN_S = 3600.0
# The inode of the first PID namespace, in which all processes of the host are visible.
_ALL_PROCESSES = "pid:[4026531836]"
# The marks are the first bytes of the file, which are worthless until a block is copied there.
_MARK_BYTES = 16


def path_of(engine_id: str) -> Path:
    """Returns the path of an engine's file."""
    return FOLDER / f"vllm_offload_{engine_id}.mmap"


def _processes() -> Iterator[Path]:
    """Yields the folders of all processes in `/proc`."""
    return (one for one in PROC.iterdir() if one.name.isdigit())


def _mappings(path: Path) -> int:
    """Counts how often a file is mapped from its beginning, in all processes of this user."""
    inode, count = str(path.stat().st_ino), 0
    for process in _processes():
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text(errors="replace").splitlines():
                if path.name in line:
                    _, _, offset, _, number, _ = line.split(maxsplit=5)
                    count += number == inode and int(offset, 16) == 0
    return count


def _open_files() -> tuple[set[str], bool]:
    """Looks at the open files of all processes.

    Returns:
        The names of the files of primary tiers that a process has open, and whether every process
        of this user could be looked at.
    """
    found: set[str] = set()
    complete = True
    for process in _processes():
        try:
            descriptors = list((process / "fd").iterdir())
        except PermissionError:
            with contextlib.suppress(OSError):
                complete = complete and process.stat().st_uid != os.geteuid()
            continue
        except OSError:
            continue
        for one in descriptors:
            with contextlib.suppress(OSError):
                # The name only: another mount namespace may have the file at another path.
                found.add(one.readlink().name)
    return found, complete


def mark(region: Any, rank: int) -> None:
    """Marks the file that a worker has mapped.

    Args:
        region: vLLM's `SharedOffloadRegion` of the worker.
        rank: The worker's number.
    """
    bytes_of = compat.memory_of(region)
    start, own = rank * _MARK_BYTES, _mark(region, rank)
    if start + len(own) <= len(bytes_of):
        bytes_of[start : start + len(own)] = own


def _mark(region: Any, rank: int) -> bytes:
    """Returns the mark of a worker."""
    text = f"{Path(region.mmap_path).name} {rank}"
    return hashlib.blake2b(text.encode(), digest_size=_MARK_BYTES).digest()


def take_marks(region: Any, workers: int) -> str:
    """Looks for the marks of all workers and removes them.

    Args:
        region: vLLM's `SharedOffloadRegion` of the scheduler; None if it has none.
        workers: How many there are.

    Returns:
        Why the scheduler may not see what the workers see in their memory; empty if it does.
    """
    if region is None:
        return "this version of vLLM does not show its memory tier"
    bytes_of, wanted = compat.memory_of(region), b"".join(_mark(region, n) for n in range(workers))
    found = bytes_of[: len(wanted)]
    if found == wanted:
        bytes_of[: len(wanted)] = bytes(len(wanted))
        return ""
    places = range(0, len(wanted), _MARK_BYTES)
    seen = sum(found[at : at + _MARK_BYTES] == wanted[at : at + _MARK_BYTES] for at in places)
    return (
        f"{workers - seen} of {workers} workers have other memory than {region.mmap_path}: they "
        "run on other hosts, or another program removed the file while the engine started"
    )


def split(spec: Any) -> str:
    """Returns why the halves of an engine may not share their memory; empty if they do.

    Args:
        spec: vLLM's spec in the scheduler. Of those that do not mark their files it is only known
            that the workers make it: vLLM starts them first.
    """
    ask = getattr(spec, "split_memory", None)
    if ask is not None:
        return str(ask())
    region = compat.scheduler_region(spec)
    if region is None or not compat.made_file(region):
        return ""
    return f"no worker has mapped {region.mmap_path}: another program removed the first file"


def drop_name(region: Any, halves: int) -> bool:
    """Removes the name of a file that every half has mapped.

    Args:
        region: vLLM's `SharedOffloadRegion` of the scheduler.
        halves: How many processes or parts of one map the file: the workers and the scheduler.

    Returns:
        Whether the file has no name any more.
    """
    path = Path(region.mmap_path)
    try:
        if compat.made_file(region) or not os.path.samestat(path.stat(), os.fstat(region.fd)):
            return False
        if _mappings(path) < halves:
            logger.info(
                "Dalsegno keeps the name of %s, because it does not see all %d parts of this "
                "engine: the file stays if the engine is killed.",
                path,
                halves,
            )
            return False
        path.unlink()
    except OSError as error:
        logger.debug("Dalsegno keeps the name of %s: %s", path, error)
        return False
    return True


def forget(engine_id: str) -> None:
    """Removes the name of the file of an engine that does not start."""
    with contextlib.suppress(OSError):
        path_of(engine_id).unlink()


def quiet_cleanup(region: Any) -> None:
    """Makes the cleanup of a worker's region accept that the file has no name any more."""
    cleanup = region.cleanup

    def accepting() -> None:
        if not Path(region.mmap_path).exists():
            compat.disown_file(region)
        cleanup()

    region.cleanup = accepting


def collect_leftovers(own_engine_id: str) -> None:
    """Removes the files that engines of this user left when they were killed. Never raises."""
    try:
        paths = [path for path in FOLDER.iterdir() if _LEFT.fullmatch(path.name)]
        own = path_of(own_engine_id)
        idle = [path for path in paths if path != own and _may_be_left(path)]
        # After the files were listed: the process that made one of them was visible by then.
        open_files, complete = _open_files() if idle else (set(), False)
        for path in idle:
            if complete and path.name not in open_files:
                size = path.stat().st_size
                path.unlink()
                logger.info(
                    "Dalsegno removed %s, %d MiB that a killed engine left.", path, size >> 20
                )
    except OSError as error:
        logger.debug("Dalsegno cannot look for what killed engines left: %s", error)


def _may_be_left(path: Path) -> bool:
    """Whether a file is this user's and as old as a leftover must be."""
    try:
        facts = path.lstat()
        hidden = str((PROC / "self/ns/pid").readlink()) != _ALL_PROCESSES
    except OSError:
        return False
    age_s = time.time() - max(facts.st_ctime, facts.st_mtime)
    is_ours = facts.st_uid == os.geteuid() and facts.st_nlink == 1 and facts.st_mode == 0o100600
    return is_ours and age_s > (HIDDEN_S if hidden else YOUNG_S)
