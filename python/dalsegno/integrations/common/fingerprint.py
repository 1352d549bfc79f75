"""What a model's weights are, whatever their folder is called.

The fingerprint is the SHA-256 of every byte of every weight file. Samples, sizes or times would be
cheaper and would let two sets of weights that differ elsewhere share blocks: wrong answers.

1. A file's hash is remembered under its path together with size, device, inode, mtime and ctime
   (nanoseconds); all must agree. Nobody can set a ctime, so a replaced file is read again even if
   its size and mtime were kept.
2. A file that changed less than two seconds before it was read is not remembered: a second change
   could carry the same times.
3. A file that changes while it is read has no fingerprint: `UnavailableError`.
4. The memory is one small file, replaced by one rename; losing it costs time, nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dalsegno import IncompatibleError, UnavailableError

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".ckpt")
CACHE_VERSION = 1
# A few hundred bytes each: the file stays below a megabyte.
MOST_FILES = 2048
THREADS = 8
_SETTLED_NS = 2_000_000_000


def cache_file() -> Path:
    """Returns where hashes are remembered: `$XDG_CACHE_HOME/dalsegno/fingerprints.json`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dalsegno" / "fingerprints.json"


def weight_files(model: Path) -> list[Path]:
    """Returns the weight files of a model, sorted by name.

    Args:
        model: Folder of the model, or its only file.

    Raises:
        IncompatibleError: There are none.
    """
    if model.is_file():
        return [model]
    found = sorted(path for path in model.glob("*") if path.suffix in SUFFIXES and path.is_file())
    if not found:
        raise IncompatibleError(
            f"{model} holds no weight file ({', '.join(SUFFIXES)}), so it is unknown whether two "
            f"engines have the same weights; set weights_fingerprint to say so yourself"
        )
    return found


def _stamp(path: Path) -> list[int]:
    """Returns what changes when a file does."""
    facts = path.stat()
    return [facts.st_size, facts.st_dev, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns]


def _hash(path: Path) -> tuple[str, list[int], bool]:
    """Hashes a file; returns the hash, the file's stamp and whether it may be remembered."""
    before, started = _stamp(path), time.time_ns()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if _stamp(path) != before:
        raise UnavailableError(f"{path} changed while it was read")
    return digest, before, started - max(before[3], before[4]) > _SETTLED_NS


def _remembered() -> dict[str, Any]:
    """Returns the remembered hashes, none if the file is missing or not ours."""
    try:
        content = json.loads(cache_file().read_text(encoding="utf-8"))
        files = content["files"] if content["version"] == CACHE_VERSION else {}
        return dict(files)
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _remember(entries: dict[str, Any]) -> None:
    """Adds hashes to the memory, newest last; a memory that cannot be written stays as it was."""
    known = _remembered()
    for name, entry in entries.items():
        known.pop(name, None)
        known[name] = entry
    kept = dict(list(known.items())[-MOST_FILES:])
    target = cache_file()
    with contextlib.suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(prefix=".fingerprints-", dir=target.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"version": CACHE_VERSION, "files": kept}, file)
            Path(scratch).replace(target)
        except OSError:
            Path(scratch).unlink(missing_ok=True)


def hash_files(paths: Iterable[Path]) -> dict[Path, str]:
    """Returns the SHA-256 of each file, from the memory where that is certain.

    Raises:
        UnavailableError: A file cannot be read or changes meanwhile.
    """
    real = {path: path.resolve() for path in paths}
    known, result, todo = _remembered(), {}, []
    try:
        for path, target in real.items():
            entry = known.get(str(target))
            if isinstance(entry, dict) and entry.get("stamp") == _stamp(target):
                result[path] = str(entry["sha256"])
            else:
                todo.append(path)
        with ThreadPoolExecutor(THREADS, thread_name_prefix="dalsegno-hash") as threads:
            hashed = list(threads.map(_hash, [real[path] for path in todo]))
    except OSError as error:
        raise UnavailableError(f"the weights cannot be read: {error}") from error
    result |= {path: digest for path, (digest, _, _) in zip(todo, hashed, strict=True)}
    fresh = {
        str(real[path]): {"stamp": stamp, "sha256": digest}
        for path, (digest, stamp, settled) in zip(todo, hashed, strict=True)
        if settled
    }
    if fresh:
        _remember(fresh)
    return result


def weights_fingerprint(model: Path) -> str:
    """Returns what stands for the weights of a model: 64 hexadecimal digits.

    The names of the files belong to it, their folder does not.

    Args:
        model: Folder of the model, or its only file.

    Raises:
        IncompatibleError: There are no weight files.
        UnavailableError: A file cannot be read or changes meanwhile.
    """
    hashes = hash_files(weight_files(model))
    named = sorted((path.name, digest) for path, digest in hashes.items())
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()


def local_model(name: str, revision: str | None, download_dir: str | None) -> Path:
    """Returns the folder or file from which an engine read a model.

    Args:
        name: The model as the engine was given it: a path or a name on the hub.
        revision: Revision on the hub.
        download_dir: The engine's setting of that name.

    Raises:
        IncompatibleError: There is none on this machine.
    """
    path = Path(name)
    if path.exists():
        return path
    try:
        hub = importlib.import_module("huggingface_hub")
        found = hub.snapshot_download(
            name, revision=revision, cache_dir=download_dir, local_files_only=True
        )
        return Path(found)
    except Exception as error:
        raise IncompatibleError(
            f"the weights of {name!r} are not on this machine, so it is unknown whether another "
            f"engine has the same; set weights_fingerprint to say so yourself"
        ) from error
