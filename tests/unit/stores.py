"""Stores for the tests of Python's border and of the command, and the command run as a process."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dalsegno

LAYERS, SLICE_BYTES, BLOCKS = 2, 5000, 3
SECTOR = 4096
# Fields, layers, bytes of a slice.
NAMESPACES: list[tuple[dict[str, str], int, int]] = [
    ({"model": "m[red]", "salt": "tab\tand \x1b[31mcolour"}, LAYERS, SLICE_BYTES),
    ({"model": "n"}, 1, 64),
]


@dataclass
class Answer:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Answer]


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dalsegno.cli", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **options)


def chain(count: int, prompt: str = "a") -> list[bytes]:
    return [hashlib.sha256(f"{prompt}{index}".encode()).digest() for index in range(count)]


def open_store(path: Path, **settings: object) -> dalsegno.Store:
    return dalsegno.open(path, capacity="16MiB", segment="1MiB", staging="16MiB", **settings)


def fill(path: Path, **settings: object) -> None:
    """Makes a store of two namespaces: four blocks of two layers, four of one."""
    with open_store(path, **settings) as store:
        one, two = (
            store.namespace(fields, layers=layers, slice_bytes=slice_bytes)
            for fields, layers, slice_bytes in NAMESPACES
        )
        one.put_batch(chain(BLOCKS), [os.urandom(one.block_bytes) for _ in range(BLOCKS)])
        one.put_batch(chain(1, "b"), [os.urandom(one.block_bytes)])
        two.put_batch(chain(4), [os.urandom(64) for _ in range(4)])


def extents(path: Path) -> list[dict[str, Any]]:
    """The extents of the larger namespace, first the one of three blocks."""
    rows = [row for row in dalsegno.list_extents(str(path)) if row["layers"] == LAYERS]
    return sorted(rows[0]["extent_rows"], key=lambda extent: -extent["blocks"])
