"""Stores with one deliberate fault each, which the suite must detect."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from dalsegno_bench.faultbench.adapter import Adapter


class Sound(Adapter):
    """A file per block, which appears whole or not at all: a kill does it no harm."""

    pieces = 1
    temporary = ("*.new", "*.left")

    def __init__(self, directory: Path, *, capacity_bytes: int, block_bytes: int) -> None:
        self._directory, self._most = directory, capacity_bytes // block_bytes
        self._block_bytes = block_bytes
        for torn in directory.glob("*.new"):
            torn.unlink()

    def _path(self, key: bytes) -> Path:
        return self._directory / key.hex()

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> list[bool]:
        for key, block in zip(keys, blocks, strict=True):
            path = self._path(key)
            path.with_suffix(".new").write_bytes(block)
            path.with_suffix(".new").replace(path)
        files = sorted(self._directory.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for path in files[: -self._most]:
            path.unlink()
        return [True] * len(keys)

    def exists(self, keys: Sequence[bytes]) -> list[bool]:
        return [self._path(key).exists() for key in keys]

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._path(key).read_bytes() if self._path(key).exists() else None for key in keys]

    def close(self) -> None:
        pass


class Wrong(Sound):
    """Returns the bytes of another block."""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        got = super().get(keys)
        return got[1:] + got[:1]


class Forgetful(Sound):
    """Keeps a part of its blocks only in memory."""

    def __init__(self, directory: Path, *, capacity_bytes: int, block_bytes: int) -> None:
        super().__init__(directory, capacity_bytes=capacity_bytes, block_bytes=block_bytes)
        self._kept: dict[bytes, bytes] = {}

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> list[bool]:
        self._kept |= {keys[0]: blocks[0]}
        super().put(keys[1:], blocks[1:])
        return [True] * len(keys)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        got = super().get(keys)
        return [self._kept.get(key, one) for key, one in zip(keys, got, strict=True)]


class Hanging(Sound):
    """Never returns from a get."""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        time.sleep(3600)
        return super().get(keys)


class Crashing(Sound):
    """Crashes on the first lookup."""

    def exists(self, keys: Sequence[bytes]) -> list[bool]:
        os.kill(os.getpid(), signal.SIGSEGV)
        return super().exists(keys)


class Refusing(Sound):
    """Refuses every block once it is full."""

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> list[bool]:
        if len(list(self._directory.iterdir())) + len(keys) > self._most:
            return [False] * len(keys)
        return super().put(keys, blocks)


class Leaking(Sound):
    """Leaves a scratch file and threads behind."""

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> list[bool]:
        (self._directory / "scratch.left").touch()
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        return super().put(keys, blocks)


class Unbounded(Sound):
    """Promises a bound and has none."""

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> list[bool]:
        self._most = 1 << 30
        return super().put(keys, blocks)


class Hidden(Sound):
    """Inverts every byte, so that the suite cannot recognise a block in its files."""

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> list[bool]:
        return super().put(keys, [_turned_over(block) for block in blocks])

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None if one is None else _turned_over(one) for one in super().get(keys)]


def _turned_over(block: bytes) -> bytes:
    return bytes(block).translate(bytes(range(255, -1, -1)))


class Jammed(Sound):
    """Never returns from a put of many blocks."""

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> list[bool]:
        if len(keys) > 8:
            time.sleep(3600)
        return super().put(keys, blocks)


class Sulking(Sound):
    """Refuses every block once its disk was full."""

    sulks = False

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> list[bool]:
        try:
            return [False] * len(keys) if self.sulks else super().put(keys, blocks)
        except OSError:
            self.sulks = True
            return [False] * len(keys)


class Slow(Sound):
    """Enforces its bound periodically, with one long scan of all its files."""

    puts = 0

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> list[bool]:
        self.puts += 1
        if self.puts % 100 == 0:
            time.sleep(1.2)
        for key, block in zip(keys, blocks, strict=True):
            self._path(key).write_bytes(block)
        return [True] * len(keys)


class Unaware(Sound):
    """Counts only the blocks put since its start."""

    def __init__(self, directory: Path, *, capacity_bytes: int, block_bytes: int) -> None:
        super().__init__(directory, capacity_bytes=capacity_bytes, block_bytes=block_bytes)
        self._most += len(list(directory.iterdir()))
