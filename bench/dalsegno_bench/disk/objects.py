"""One O_DIRECT file per object: the core of every file backend, without their copies."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

THREADS = 8


class FilePerObject:
    """Stores each object in a file of its own, several at a time.

    Args:
        directory: An existing directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pool = ThreadPoolExecutor(THREADS)

    def put(self, keys: Sequence[bytes], blocks: Sequence[Any]) -> None:
        """Writes every block whole; an existing file is written over."""
        list(self._pool.map(self._put_one, keys, blocks))

    def get(self, keys: Sequence[bytes], out: Sequence[Any]) -> None:
        """Fills every buffer whole."""
        list(self._pool.map(self._get_one, keys, out))

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()

    def _put_one(self, key: bytes, block: Any) -> None:
        self._move(os.pwritev, key, os.O_WRONLY | os.O_CREAT, block)

    def _get_one(self, key: bytes, out: Any) -> None:
        self._move(os.preadv, key, os.O_RDONLY, out)

    def _move(
        self, call: Callable[[int, list[Any], int], int], key: bytes, flags: int, buffer: Any
    ) -> None:
        """Opens a file, reads or writes it whole, and closes it."""
        fd = os.open(self._directory / key.hex(), flags | os.O_DIRECT, 0o600)
        try:
            moved = call(fd, [buffer], 0)
        finally:
            os.close(fd)
        if moved != len(buffer):
            raise OSError(f"{call.__name__} moved {moved} of {len(buffer)} bytes")
