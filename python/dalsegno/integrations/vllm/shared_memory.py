"""The file of vLLM's primary tier in `/dev/shm`: when its name is removed, and what engines left.

The halves of vLLM's tiering, one scheduler and its workers, find the file by its name. The kernel
frees a file without a name when its last process ends, however it ends. A file with a name stays.

1. The name is removed when every half has mapped the file. The scheduler is the last: vLLM starts
   it after its workers.
2. While a half may still come, the name stays: that half would create a file of its own, and the
   halves would not see each other's blocks. If `/proc` does not show every half, the name stays.
3. Anybody can remove the name between two halves. So each worker marks the file that it has mapped,
   and the engine does not start unless the scheduler finds the marks of all workers, which run.
4. A file that another engine left is removed only if no process can use it: it is this user's, no
   process has it open, and it was made long enough ago. A random engine id does not come back.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm.logger import init_logger

from dalsegno import IncompatibleError
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
# A worker, its process, and when that started. The marks are the first bytes of the file, which are
# worthless until a block is copied there.
_MARK = struct.Struct("<16sQQ")


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
    """Marks the file that a worker has mapped, in the worker's process.

    Args:
        region: vLLM's `SharedOffloadRegion` of the worker.
        rank: The worker's number.
    """
    memory, start = compat.memory_of(region), rank * _MARK.size
    process = os.getpid()
    if start + _MARK.size <= len(memory):
        own = _MARK.pack(_name(region, rank), process, _started(process))
        memory[start : start + _MARK.size] = own


def _name(region: Any, rank: int) -> bytes:
    """Returns what names a worker in its mark."""
    text = f"{Path(region.mmap_path).name} {rank}"
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _started(process: int) -> int:
    """Returns when a process started, in ticks since the host did; 0 if it is not there."""
    try:
        stat = (PROC / str(process) / "stat").read_text()
    except OSError:
        return 0
    # Behind its name, which may have spaces: from the state on, it is the twentieth field.
    return int(stat.rpartition(")")[2].split()[19])


def take_marks(region: Any, workers: int) -> None:
    """Looks for the marks of all workers, which must still run, and removes them.

    Args:
        region: vLLM's `SharedOffloadRegion` of the scheduler; None if it has none.
        workers: How many there are.

    Raises:
        IncompatibleError: One is missing, so that worker has other memory than the scheduler.
    """
    if region is None:
        raise IncompatibleError("this version of vLLM does not show its memory tier")
    memory, missing = compat.memory_of(region), 0
    for rank in range(workers):
        found = memory[rank * _MARK.size : (rank + 1) * _MARK.size]
        name, process, started = _MARK.unpack(found.ljust(_MARK.size, b"\0"))
        # A mark of a process that is gone was left by an engine with the same id.
        is_here = name == _name(region, rank) and started and _started(process) == started
        missing += not is_here
    if missing:
        raise _split(region, f"{missing} of its {workers} workers have other memory")
    memory[: workers * _MARK.size] = bytes(workers * _MARK.size)


def check(spec: Any) -> None:
    """Checks that the halves of an engine share their memory.

    Args:
        spec: vLLM's spec in the scheduler. Of those that do not mark their files it is only known
            who made the file, and who has mapped it as far as `/proc` shows.

    Raises:
        IncompatibleError: They do not, or that cannot be seen.
    """
    check_marks = getattr(spec, "check_memory", None)
    if check_marks is not None:
        check_marks()
        return
    region = compat.scheduler_region(spec)
    if region is None:
        return
    halves = spec.config.parallel.world_size + 1
    try:
        seen = 1 if compat.made_file(region) else _mappings(Path(region.mmap_path))
    except OSError:
        seen = 1
    if seen < halves:
        raise _split(region, f"{halves - seen} of its {halves - 1} workers were not seen there")


def _split(region: Any, problem: str) -> IncompatibleError:
    return IncompatibleError(
        f"the engine's scheduler uses {region.mmap_path}, and {problem}. Another program removed "
        "the file while the engine started: start it again. If the engine runs on several hosts, "
        "leave Dalsegno out of it, or use one engine for each host"
    )


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
