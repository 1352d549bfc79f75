"""One O_DIRECT file per object, as plain as it gets: the yardstick for stores that are files."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from dalsegno_bench.disk.objects import FilePerObject
from dalsegno_bench.faultbench.adapter import Adapter

__all__ = ["Files"]


class Files(Adapter):
    """The file per object of `dalsegno bench log`; files are the index, and nothing is removed."""

    settings: ClassVar[str] = "O_DIRECT, written in place, no bound"
    bounded: ClassVar[bool] = False

    def __init__(self, directory: Path, *, capacity_bytes: int, block_bytes: int) -> None:
        del capacity_bytes
        self._directory, self._block_bytes = directory, block_bytes
        self._files = FilePerObject(directory)

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> list[bool]:
        """See :class:`Adapter`."""
        memory = [self._memory() for _ in keys]
        for one, block in zip(memory, blocks, strict=True):
            one[:] = block
        done = []
        for key, one in zip(keys, memory, strict=True):
            try:
                self._files.put([key], [one])
            except OSError:
                done.append(False)
            else:
                done.append(True)
        return done

    def exists(self, keys: Sequence[bytes]) -> list[bool]:
        """See :class:`Adapter`."""
        return [(self._directory / key.hex()).exists() for key in keys]

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See :class:`Adapter`."""
        got: list[bytes | None] = []
        for key in keys:
            memory = self._memory()
            try:
                self._files.get([key], [memory])
            except OSError:
                got.append(None)
            else:
                got.append(memory[:])
        return got

    def close(self) -> None:
        """See :class:`Adapter`."""
        self._files.close()

    def _memory(self) -> mmap.mmap:
        """Returns aligned memory of a block's size."""
        return mmap.mmap(-1, self._block_bytes)
