"""Nodes of the tests: a store on a local disk with a far location, and blocks that it checks."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.checkout import ROOT

import dalsegno

LAYERS, SLICE_BYTES, COUNT = 4, 65_536, 24
BLOCK_BYTES = LAYERS * SLICE_BYTES
LIMIT_S = 60.0


def chain(name: str, count: int = COUNT) -> list[bytes]:
    return [hashlib.sha256(f"{name} {at}".encode()).digest() for at in range(count)]


def block(name: bytes) -> bytes:
    """The bytes that belong to a name, and to no other."""
    return name * (BLOCK_BYTES // len(name))


class Node:
    """A store on a local disk with a far location."""

    def __init__(self, path: Path, far: str, **settings: object) -> None:
        base = {"capacity": "64MiB", "dram": 0, "far": far, "far_flush_s": 0.2}
        self.store = dalsegno.open(path, **{**base, **settings})
        fields = {"test": "far"}
        self.namespace = self.store.namespace(fields, layers=LAYERS, slice_bytes=SLICE_BYTES)

    def put(self, hashes: list[bytes]) -> None:
        report = self.namespace.put_batch(hashes, [block(one) for one in hashes])
        assert report.stored == len(hashes)

    def put_again(self, hashes: list[bytes]) -> None:
        """Offers blocks whose publication failed once more."""
        self.namespace.put_batch(hashes, [block(one) for one in hashes])

    def get(self, hashes: list[bytes], timeout_s: float = LIMIT_S) -> int:
        """Loads a prefix and compares every byte; returns its blocks."""
        out = [bytearray(BLOCK_BYTES) for _ in hashes]
        hits = self.namespace.get_batch(hashes, out, timeout_s=timeout_s)
        for name, got in zip(hashes[:hits], out, strict=False):
            assert got == block(name), "wrong bytes"
        return hits

    def published(self) -> int:
        """Returns how many blocks it has shared."""
        far = self.store.stats()["far"]
        assert far is not None
        return far["published"]["blocks"]

    def finds(self, hashes: list[bytes]) -> bool:
        return self.namespace.probe(hashes) == len(hashes)


@contextmanager
def pair(folder: Path, far: str, **settings: object) -> Iterator[tuple[Node, Node]]:
    """Two nodes with empty local disks that share a far location."""
    with ExitStack() as opened:
        made = []
        for name in ("a", "b"):
            made.append(Node(folder / name, far, **settings))
            opened.callback(made[-1].store.close)
        yield made[0], made[1]


def check_conformance(where: Mapping[str, str], *tests: str) -> None:
    """Runs the suite of all tiers on a location.

    Args:
        where: Variables by which the suite finds it.
        tests: Which tests of the suite; all if not given.
    """
    # As in the Makefile: other packages have other features, and would be compiled again.
    command = ["cargo", "test", "--quiet", "--workspace", "--locked", "--test", "all", "--"]
    ran = subprocess.run(
        [*command, *(tests or ["conformance::"])],
        cwd=ROOT,
        env={**os.environ, **where},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
