"""Events outside a store: another process opens it, or a bit of its files flips."""

from __future__ import annotations

import contextlib
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

OPEN_AND_PRINT = """
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
    """Another process that opens a store, and its output: "opened" or the error.

    It owns the store until the block ends, unless it is killed before.
    """
    given = json.dumps({"capacity": "16MiB", "staging": "16MiB", **settings})
    command = [sys.executable, "-c", OPEN_AND_PRINT, str(path), given]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline()


def segment_of(path: Path, extent: dict[str, Any]) -> Path:
    """The file that holds an extent of `list_extents`."""
    return path / f"segment-{extent['segment']:016x}.log"


@dataclass(frozen=True)
class Extent:
    """The position of an extent.

    Attributes:
        first_hash: Its first block.
        file: The segment.
        start: Offset of its header.
        payload: Offset of the first byte of its first block.
        end: Offset of its end.
    """

    first_hash: bytes
    file: Path
    start: int
    payload: int
    end: int


def extents(path: Path) -> list[Extent]:
    """The extents of a store that no process has open."""
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
    """The segment files of a store."""
    return sorted(path.glob("segment-*.log"))


def flip(file: Path, offset: int) -> None:
    """Flips one bit, for direct I/O too."""
    with file.open("rb") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
    overwrite(file, offset, bytes([byte ^ 0x10]))


def overwrite(file: Path, offset: int, content: bytes) -> None:
    """Overwrites a part of a file, for direct I/O too."""
    with file.open("r+b") as stream:
        stream.seek(offset)
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def disk_bytes(path: Path) -> int:
    """Disk space of a directory as the file system counts it. A store at work removes files."""
    total = 0
    for one in path.iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += 512 * one.stat().st_blocks
    return total
