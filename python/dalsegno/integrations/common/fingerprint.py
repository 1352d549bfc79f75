"""The SHA-256 of files, remembered where that is certain.

A hash covers every byte. Samples, sizes or times would be cheaper and would let two models that
differ elsewhere share blocks: wrong answers.

1. A file's hash is remembered under its path together with the run of the kernel, size, device,
   inode, mtime and ctime (nanoseconds); all must agree. Nobody can set a ctime, so a replaced file
   is read again even if its size and mtime were kept.
2. Only where times can be trusted (`file_times.py`) is a hash remembered or a remembered one used.
3. A file that changed less than two minutes before it was read is not remembered: a later change
   could carry the same times.
4. A file that changes while it is read has no hash: `UnavailableError`.
5. The memory is one small file, replaced by one rename; losing it costs time, nothing else. A
   process without a cache folder has none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dalsegno import UnavailableError
from dalsegno.integrations.common import file_times
from dalsegno.integrations.common.cache_folder import cache_directory, replace_file

CACHE_VERSION = 2
# A few hundred bytes each: the file stays below a megabyte.
MOST_FILES = 2048
THREADS = 8


def cache_file() -> Path | None:
    """Returns where hashes are remembered, None if nowhere."""
    folder = cache_directory()
    return folder / "fingerprints.json" if folder else None


def real_path(path: Path) -> Path:
    """Returns the path of a file without links, as far as the texts of the links lead there.

    Raises:
        OSError: There is no such file, or the links are a circle.
        RuntimeError: The same, in older versions of Python.
    """
    real = path.resolve()
    # A link as `/proc/7/root` leads elsewhere than its text says.
    is_same = real.exists() and real.samefile(path)
    return real if is_same else path


def _stamp(path: Path) -> list[int]:
    """Returns what changes when a file does."""
    facts = path.stat()
    return [facts.st_size, facts.st_dev, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns]


def _entry(stamp: list[int], digest: str) -> dict[str, Any]:
    """Returns what is remembered of a file."""
    return {"boot": file_times.boot_id(), "stamp": stamp, "sha256": digest}


def _hash(path: Path) -> tuple[str, list[int], bool]:
    """Hashes a file; returns the hash, the file's stamp and whether it may be remembered."""
    before, started = _stamp(path), time.time_ns()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if _stamp(path) != before:
        raise UnavailableError(f"{path} changed while it was read")
    settled = started - max(before[3], before[4]) > file_times.SETTLED_NS
    return digest, before, settled and file_times.trusted(path)


def _remembered() -> dict[str, Any]:
    """Returns the remembered hashes, none if the file is missing or not ours."""
    target = cache_file()
    try:
        content = json.loads(target.read_text(encoding="utf-8")) if target else {}
        files = content["files"] if content["version"] == CACHE_VERSION else {}
        return dict(files)
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _remember(entries: dict[str, Any]) -> None:
    """Adds hashes to the memory, newest last; a memory that cannot be written stays as it was."""
    target = cache_file()
    if target is None:
        return
    known = _remembered()
    for name, entry in entries.items():
        known.pop(name, None)
        known[name] = entry
    kept = dict(list(known.items())[-MOST_FILES:])
    with contextlib.suppress(OSError):
        replace_file(target, json.dumps({"version": CACHE_VERSION, "files": kept}))


def _known(entry: object, path: Path) -> str | None:
    """Returns the hash that an entry of the memory gives a file, None if it gives none."""
    if not isinstance(entry, dict) or not isinstance(entry.get("sha256"), str):
        return None
    equal = entry == _entry(_stamp(path), entry["sha256"])
    return entry["sha256"] if equal and file_times.trusted(path) else None


def hash_files(paths: Iterable[Path]) -> dict[Path, str]:
    """Returns the SHA-256 of each file, from the memory where that is certain.

    Args:
        paths: Regular files, or links to some.

    Raises:
        UnavailableError: A file cannot be read or changes meanwhile.
    """
    remembered, result = _remembered(), {}
    todo: dict[Path, list[Path]] = {}
    try:
        for path in paths:
            real = real_path(path)
            if (digest := _known(remembered.get(str(real)), real)) is not None:
                result[path] = digest
            else:
                todo.setdefault(real, []).append(path)
        with ThreadPoolExecutor(THREADS, thread_name_prefix="dalsegno-hash") as threads:
            hashed = list(threads.map(_hash, todo))
    except (OSError, RuntimeError) as error:
        raise UnavailableError(f"the model cannot be read: {error}") from error
    fresh = {}
    for (real, names), (digest, stamp, certain) in zip(todo.items(), hashed, strict=True):
        result |= dict.fromkeys(names, digest)
        if certain:
            fresh[str(real)] = _entry(stamp, digest)
    if fresh:
        _remember(fresh)
    return result
