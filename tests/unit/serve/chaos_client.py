"""A process that uses a served store in every way, and compares every byte that it gets.

It is started as a program with the path of the socket, a seed and a file. When the file is there,
and it had hits, it prints its counts and ends. A wrong byte or an exception makes it exit with 1.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tests.contract.subjects import chain, content

import dalsegno

# Layers and bytes of a slice: less than a unit of the pool, one, two, and many.
SHAPES = [(2, 1000), (1, 65_536), (2, 50_000), (3, 100_000)]
PROMPTS, TRUNK, LENGTH = 24, 2, 8
TIMEOUTS_S = [None, None, 0.0, 0.002, 0.05, 1.0]
MOST_LEASES = 4


@lru_cache(maxsize=800)
def right(one: bytes, size: int) -> bytes:
    return content(one, size)


def prompt(number: int) -> list[bytes]:
    """Prompts share their first blocks, eight at a time."""
    return chain(TRUNK, f"trunk {number % 5}") + chain(LENGTH - TRUNK, f"prompt {number}")


def spaces(store: dalsegno.Store) -> list[dalsegno.Namespace]:
    return [
        store.namespace({"model": "chaos"}, layers=layers, slice_bytes=slice_bytes)
        for layers, slice_bytes in SHAPES
    ]


class ChaosClient:
    """A client that does something at random, again and again."""

    def __init__(self, store: dalsegno.Store, seed: int) -> None:
        self.dice = random.Random(seed)
        self.spaces = spaces(store)
        self.counts: Counter[str] = Counter()
        self.leases: list[tuple[dalsegno.Lease, list[bytes], int]] = []
        self.ways = {
            self.put: 5,
            self.submit_put: 1,
            self.write_layers: 1,
            self.get: 5,
            self.get_each: 2,
            self.submit_get: 2,
            self.load: 1,
            self.look: 1,
            self.lease: 4,
            self.read_lease: 6,
            self.remove: 1,
        }

    def step(self) -> None:
        """Does one thing."""
        [way] = self.dice.choices(list(self.ways), list(self.ways.values()))
        space, hashes = self.dice.choice(self.spaces), prompt(self.dice.randrange(PROMPTS))
        way(space, hashes)
        self.counts[way.__name__] += 1

    def compare(
        self, hashes: Sequence[bytes], got: Sequence[bytes | bytearray], size: int, what: str
    ) -> None:
        """Every byte of these blocks must be right."""
        for one, block in zip(hashes, got, strict=True):
            assert block == right(one, size), f"wrong bytes by {what}, {size} bytes, {one.hex()}"
        self.counts["hits"] += len(hashes)

    def timeout(self) -> float | None:
        return self.dice.choice(TIMEOUTS_S)

    def buffers(self, space: dalsegno.Namespace) -> list[bytearray]:
        return [bytearray(space.block_bytes) for _ in range(LENGTH)]

    def blocks(self, space: dalsegno.Namespace, hashes: list[bytes]) -> list[bytes]:
        return [right(one, space.block_bytes) for one in hashes]

    def put(self, space: dalsegno.Namespace, hashes: list[bytes]) -> None:
        space.put_batch(hashes, self.blocks(space, hashes), timeout_s=self.timeout())

    def submit_put(self, space: dalsegno.Namespace, hashes: list[bytes]) -> None:
        transfer = space.submit_put(hashes, self.blocks(space, hashes), timeout_s=self.timeout())
        if self.dice.random() < 0.2:
            transfer.cancel()
        assert transfer.wait(60)
        transfer.result()

    def write_layers(self, space: dalsegno.Namespace, hashes: list[bytes]) -> None:
        writer, size = space.layer_writer(hashes), space.slice_bytes
        rows = self.blocks(space, hashes[writer.first :])
        for layer in range(space.layers):
            writer.store_layer(layer, [row[layer * size :][:size] for row in rows])
        # A commit says so if the server is away.
        with contextlib.suppress(dalsegno.UnavailableError):
            writer.commit(timeout_s=self.timeout())

    def get(self, space: dalsegno.Namespace, hashes: list[bytes]) -> None:
        out = self.buffers(space)
        count = space.get_batch(hashes, out, timeout_s=self.timeout())
        self.compare(hashes[:count], out[:count], space.block_bytes, "get_batch")

    def get_each(self, space: dalsegno.Namespace, hashes: list[bytes]) -> None:
        out = self.buffers(space)
        self.dice.shuffle(hashes)
        found = space.get_each(hashes, out, timeout_s=self.timeout())
        hits = [at for at, is_there in enumerate(found) if is_there]
        self.compare([hashes[i] for i in hits], [out[i] for i in hits], space.block_bytes, "each")

    def submit_get(self, space: dalsegno.Namespace, hashes: list[bytes]) -> None:
        out = self.buffers(space)
        transfer = space.submit_get(hashes, out, each=True, timeout_s=self.timeout())
        assert transfer.wait(60)
        hits = [at for at, is_there in enumerate(transfer.result()) if is_there]
        self.compare([hashes[i] for i in hits], [out[i] for i in hits], space.block_bytes, "submit")

    def load(self, space: dalsegno.Namespace, hashes: list[bytes]) -> None:
        out = self.buffers(space)
        load = space.load(hashes, out, timeout_s=self.timeout())
        layer = self.dice.randrange(space.layers)
        is_ready = load.wait_layer(layer, timeout_s=60)
        assert load.wait(60)
        count = load.result()
        assert is_ready is not True or count == LENGTH, "a layer was ready and its block is a miss"
        self.compare(hashes[:count], out[:count], space.block_bytes, "load")

    def look(self, space: dalsegno.Namespace, hashes: list[bytes]) -> None:
        assert 0 <= space.probe(hashes) <= LENGTH
        assert len(space.contains(hashes)) == len(space.peek(hashes)) == LENGTH
        space.touch(hashes)

    def lease(self, space: dalsegno.Namespace, hashes: list[bytes]) -> None:
        lease = space.lease(hashes, timeout_s=self.timeout())
        self.leases.append((lease, hashes, space.block_bytes))
        if len(self.leases) > MOST_LEASES:
            old, _, _ = self.leases.pop(self.dice.randrange(MOST_LEASES))
            old.release()

    def read_lease(self, _: dalsegno.Namespace, __: list[bytes]) -> None:
        """Copies first, and then asks which blocks were still in their places."""
        if self.leases:
            lease, hashes, size = self.dice.choice(self.leases)
            copies = [bytes(view) for view in lease]
            valid = lease.valid_blocks()
            self.compare(hashes[:valid], copies[:valid], size, "lease")
            self.counts["leased hits"] += valid

    def remove(self, space: dalsegno.Namespace, hashes: list[bytes]) -> None:
        # It says so if the server is away, or if there is no space to record the removal.
        with contextlib.suppress(dalsegno.UnavailableError, dalsegno.FullError):
            space.remove(hashes[TRUNK:][: self.dice.randrange(3)], timeout_s=self.timeout())


def main(socket: str, seed: str, end: str) -> None:
    """Works until the file `end` is there, and further until it had hits of both kinds."""
    parent = os.getppid()
    with dalsegno.open(socket) as store:
        client = ChaosClient(store, int(seed))
        longest_s = 0.0
        while not (Path(end).exists() and client.counts["hits"] and client.counts["leased hits"]):
            if os.getppid() != parent:
                sys.exit("the test is gone")
            if not store.served:
                # Misses are quick, and others need the processor.
                time.sleep(0.005)
            start = time.monotonic()
            client.step()
            longest_s = max(longest_s, time.monotonic() - start)
        client.leases.clear()
    sys.stdout.write(json.dumps({**client.counts, "longest_s": longest_s}))


if __name__ == "__main__":
    main(*sys.argv[1:])
