"""The baselines of the bench that SGLang does not have."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
from sglang.srt.mem_cache.storage.sim_storage import SimHiCacheStorage


class NoBytes(SimHiCacheStorage):  # type: ignore[misc]
    """SGLang's simulated backend, which keeps keys and moves no bytes, on the second interface."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        """Takes what SGLang hands to a backend from outside."""
        del kwargs
        super().__init__(storage_config)


class FilePerPage(HiCacheStorage):  # type: ignore[misc]
    """One file per page in one directory, `path` of the extra configuration.

    What SGLang's own file backend would be on the second interface: pages are written from and read
    into the host pool by `writev` and `readv`, through the kernel's page cache. Like SGLang's, it
    syncs nothing, checks nothing and never evicts.
    """

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        """Makes the directory."""
        del kwargs
        self._folder = Path(storage_config.extra_config["path"])
        self._folder.mkdir(parents=True, exist_ok=True)

    def _pages(self, keys: Sequence[str], host_indices: Any) -> Iterator[tuple[Path, list[Any]]]:
        """Yields each page's file and its parts in memory."""
        addresses, sizes = self.mem_pool_host.get_page_buffer_meta(host_indices)
        parts = [
            (ctypes.c_char * size).from_address(address)
            for address, size in zip(addresses, sizes, strict=True)
        ]
        each = len(parts) // len(keys)
        for at, key in enumerate(keys):
            yield self._folder / key, parts[at * each : (at + 1) * each]

    def batch_set_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Writes pages that have no file yet."""
        del extra_info
        return [
            file.exists() or _write(file, parts) for file, parts in self._pages(keys, host_indices)
        ]

    def batch_get_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Reads pages."""
        del extra_info
        return [_read(file, parts) for file, parts in self._pages(keys, host_indices)]

    def clear(self) -> None:
        """Removes all files."""
        for file in self._folder.iterdir():
            file.unlink()

    def exists(self, key: str) -> bool:
        """Returns whether a page has a file."""
        return (self._folder / key).exists()

    def _not_called(self, *_: Any, **__: Any) -> Any:
        """Belongs to the oldest interface; this backend is attached with a later one."""
        raise NotImplementedError

    get = batch_get = set = batch_set = _not_called


def _moved(call: Callable[[int, list[Any]], int], fd: int, parts: list[Any]) -> bool:
    """Moves all parts of a page; a page above 2 GiB, or a part of one, is none."""
    return call(fd, parts) == sum(map(len, parts))


def _write(file: Path, parts: list[Any]) -> bool:
    """Writes a page under another name and renames it."""
    scratch = file.with_suffix(".tmp")
    fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        done = _moved(os.writev, fd, parts)
    finally:
        os.close(fd)
    if done:
        scratch.rename(file)
    return done


def _read(file: Path, parts: list[Any]) -> bool:
    """Reads a page, if it has a file."""
    try:
        fd = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return _moved(os.readv, fd, parts)
    finally:
        os.close(fd)
