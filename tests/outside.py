"""What befalls a store from outside: another process that opens it, and a bit that flips."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dalsegno

OPEN_AND_TELL = """
import json, sys, dalsegno
try:
    store = dalsegno.open(sys.argv[1], **json.loads(sys.argv[2]))
    print("opened", flush=True)
    sys.stdin.read()
except dalsegno.UnavailableError as error:
    print(error, flush=True)
"""


@contextmanager
def another_process(path: Path, **settings: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that opens a store, and what it tells: "opened", or why it cannot.

    It owns the store until the block ends, unless it is killed before.
    """
    given = json.dumps({"capacity": "16MiB", "staging": "16MiB", **settings})
    command = [sys.executable, "-c", OPEN_AND_TELL, str(path), given]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline()


def segment_of(path: Path, extent: dict[str, Any]) -> Path:
    """The file in which an extent of `list_extents` lies."""
    return path / f"segment-{extent['segment']:016x}.log"


@dataclass(frozen=True)
class Extent:
    """Where an extent lies.

    Attributes:
        first_hash: Its first block.
        file: The segment.
        start: Offset of its header.
        payload: Offset of the first byte of its first block.
        end: Offset of what comes behind it.
    """

    first_hash: bytes
    file: Path
    start: int
    payload: int
    end: int


def extents(path: Path) -> list[Extent]:
    """The extents of a store that nobody has open."""
    found = []
    for row in dalsegno.list_extents(str(path)):
        for extent in row["extent_rows"]:
            file, start = segment_of(path, extent), extent["offset"]
            with file.open("rb") as stream:
                stream.seek(start + 12)
                header_bytes = int.from_bytes(stream.read(4), "little")
            first_hash = bytes.fromhex(extent["first_hash"])
            end = start + extent["bytes"]
            found.append(Extent(first_hash, file, start, start + header_bytes, end))
    return found


def segments(path: Path) -> list[Path]:
    """The files in which a store's blocks lie."""
    return sorted(path.glob("segment-*.log"))


def flip(file: Path, offset: int) -> None:
    """Flips one bit, also for who reads past the page cache."""
    with file.open("rb") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
    overwrite(file, offset, bytes([byte ^ 0x10]))


def overwrite(file: Path, offset: int, content: bytes) -> None:
    """Writes over a part of a file, also for who reads past the page cache."""
    with file.open("r+b") as stream:
        stream.seek(offset)
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def disk_bytes(path: Path) -> int:
    """Disk space of a directory as the file system counts it."""
    return sum(512 * one.stat().st_blocks for one in path.iterdir())
