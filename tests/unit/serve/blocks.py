"""Blocks that a client puts and gets; their bytes follow from their hashes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.contract.subjects import chain, contents

import dalsegno

LAYERS, SLICE_BYTES, COUNT = 2, 40_000, 4
BLOCK_BYTES = LAYERS * SLICE_BYTES
HASHES = chain(COUNT)
# What a test waits for at most. It fails only if something hangs.
LIMIT_S = 60


@dataclass
class Blocks:
    """A client with a namespace."""

    store: dalsegno.Store
    space: dalsegno.Namespace

    @property
    def id(self) -> bytes:
        """The namespace as it stands in messages."""
        return bytes.fromhex(self.space.id)

    def fill(self) -> None:
        assert self.space.put_batch(HASHES, contents(HASHES, BLOCK_BYTES)).kept == [True] * COUNT

    def hits(self, timeout_s: float | None = None) -> int:
        """Gets all blocks and compares each that came. Returns how many did."""
        out = [bytearray(BLOCK_BYTES) for _ in HASHES]
        count = self.space.get_batch(HASHES, out, timeout_s=timeout_s)
        assert out[:count] == contents(HASHES, BLOCK_BYTES)[:count], "wrong bytes"
        return count

    def timed(self, timeout_s: float | None = None) -> tuple[int, float]:
        """As `hits`, and how many seconds it took."""
        out = [bytearray(BLOCK_BYTES) for _ in HASHES]
        start = time.perf_counter()
        count = self.space.get_batch(HASHES, out, timeout_s=timeout_s)
        took = time.perf_counter() - start
        assert out[:count] == contents(HASHES, BLOCK_BYTES)[:count], "wrong bytes"
        return count, took


@contextmanager
def opened(socket: str) -> Iterator[Blocks]:
    """A client of the server at a socket, whether or not it is there."""
    with dalsegno.open(socket) as store:
        fields = {"model": "served"}
        yield Blocks(store, store.namespace(fields, layers=LAYERS, slice_bytes=SLICE_BYTES))


def wait_until(condition: Callable[[], bool], what: str, pause_s: float = 0.002) -> float:
    """Waits for a condition. Returns how many seconds it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < LIMIT_S, f"{what}: not within {LIMIT_S} s"
        time.sleep(pause_s)
    return time.monotonic() - start


def show(figure: str) -> None:
    """Prints a figure that the test does not judge: pytest shows it with `-rP`."""
    sys.stdout.write(f"\n{figure}\n")
