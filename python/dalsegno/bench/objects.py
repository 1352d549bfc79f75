"""One O_DIRECT file per object: what every file backend is built on, without their copies."""

import os
from collections.abc import Sequence
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
        flags = os.O_WRONLY | os.O_CREAT | os.O_DIRECT
        fd = os.open(self._directory / key.hex(), flags, 0o600)
        try:
            written = os.pwritev(fd, [block], 0)
        finally:
            os.close(fd)
        if written != len(block):
            raise OSError(f"wrote {written} of {len(block)} bytes")

    def _get_one(self, key: bytes, out: Any) -> None:
        fd = os.open(self._directory / key.hex(), os.O_RDONLY | os.O_DIRECT)
        try:
            read = os.preadv(fd, [out], 0)
        finally:
            os.close(fd)
        if read != len(out):
            raise OSError(f"read {read} of {len(out)} bytes")
