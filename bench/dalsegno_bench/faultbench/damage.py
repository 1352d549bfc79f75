"""Damage to the files of a closed store, and which blocks it touches.

Blocks are found by their content. A block counts as touched if any of its bytes changed or is gone.
A store may lose those, but no others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from dalsegno_bench.faultbench import disk
from dalsegno_bench.faultbench.blocks import content

__all__ = ["Files", "Place"]

# As much of a piece as is searched for; then the whole piece is compared.
NEEDLE_BYTES = 32


@dataclass(frozen=True)
class Place:
    """Where a piece of a block is stored.

    Attributes:
        file: The file.
        offset: In it.
        size: Bytes.
    """

    file: Path
    offset: int
    size: int


class Files:
    """The files of a store, and where its blocks are in them.

    Attributes:
        places: Key -> where the block's pieces are; every copy of a piece is listed.
    """

    def __init__(
        self, directory: Path, keys: Sequence[bytes], block_bytes: int, pieces: int
    ) -> None:
        """Searches the files for the blocks of ``keys``, each of which is cut into ``pieces``."""
        self.places: dict[bytes, list[Place]] = {key: [] for key in keys}
        size = block_bytes // pieces
        wanted = {}
        for key in keys:
            whole = content(key, block_bytes)
            wanted[key] = [whole[at : at + size] for at in range(0, block_bytes, size)]
        for file in disk.files(directory):
            data = file.read_bytes()
            for key, parts in wanted.items():
                self.places[key] += [
                    Place(file, offset, size) for part in parts for offset in _found(data, part)
                ]

    def holding(self, file: Path) -> list[bytes]:
        """Returns the keys of the blocks that have a piece in a file."""
        return [key for key, at in self.places.items() if any(one.file == file for one in at)]

    def flip(self, key: bytes, chance: Random) -> set[bytes]:
        """Flips one bit in every copy of a block; returns the keys of the blocks touched."""
        number = chance.randrange(len(self.places[key]))
        size = self.places[key][number].size
        inside, bit = chance.randrange(NEEDLE_BYTES, size), 1 << chance.randrange(8)
        for place in self.places[key]:
            with place.file.open("r+b") as file:
                file.seek(place.offset + inside)
                byte = file.read(1)[0]
                file.seek(place.offset + inside)
                file.write(bytes([byte ^ bit]))
        return {key}

    def cut(self, key: bytes) -> set[bytes]:
        """Truncates the file of a block in the block's middle; returns as :meth:`flip`."""
        place = self.places[key][-1]
        end = place.offset + place.size // 2
        os.truncate(place.file, end)
        return self._touching(place.file, end, sys.maxsize)

    def empty(self, key: bytes) -> set[bytes]:
        """Empties the file of a block; returns as :meth:`flip`."""
        file = self.places[key][0].file
        os.truncate(file, 0)
        return set(self.holding(file))

    def swap_files(self, one: bytes, other: bytes) -> set[bytes]:
        """Has the files of two blocks trade names; returns as :meth:`flip`."""
        first, second = self.places[one][0].file, self.places[other][0].file
        if first == second:
            return set()
        aside = first.with_name("aside")
        first.rename(aside)
        second.rename(first)
        aside.rename(second)
        return {*self.holding(first), *self.holding(second)}

    def swap_records(self, one: bytes, other: bytes, header_bytes: int) -> set[bytes]:
        """Has two blocks trade places, headers right before them included."""
        touched = set()
        for first, second in zip(self.places[one], self.places[other], strict=False):
            records = []
            for place in (first, second):
                with place.file.open("rb") as file:
                    file.seek(place.offset - header_bytes)
                    records.append(file.read(place.size + header_bytes))
            for place, record in zip((second, first), records, strict=True):
                with place.file.open("r+b") as file:
                    file.seek(place.offset - header_bytes)
                    file.write(record)
                start = place.offset - header_bytes
                touched |= self._touching(place.file, start, place.offset + place.size)
        return touched

    def _touching(self, file: Path, start: int, end: int) -> set[bytes]:
        """Returns the keys of the blocks that have a byte in this span of a file."""
        return {
            key
            for key, at in self.places.items()
            if any(p.file == file and p.offset < end and start < p.offset + p.size for p in at)
        }


def _found(data: bytes, part: bytes) -> list[int]:
    """Returns where a piece occurs in a file's bytes."""
    found, at = [], data.find(part[:NEEDLE_BYTES])
    while at >= 0:
        if data[at : at + len(part)] == part:
            found.append(at)
        at = data.find(part[:NEEDLE_BYTES], at + 1)
    return found
