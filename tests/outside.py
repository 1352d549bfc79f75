"""What befalls a store from outside: another process that opens it, and a bit that flips."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def flip(file: Path, offset: int) -> None:
    """Flips one bit."""
    with file.open("r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ 0x10]))
