"""One node in a process of its own: it publishes blocks that it has, or loads those of another.

``python -m dalsegno_bench.far.node write|read OPTIONS`` prints one JSON object: bytes, seconds and
CPU seconds of what is measured.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dalsegno
from dalsegno_bench.disk.log import aligned
from dalsegno_bench.machine.speed import cpu_s

__all__ = ["BLOCK_BYTES", "PACK_BYTES", "chains", "main", "namespace_of"]

LAYERS, SLICE_BYTES = 8, 64 << 10
BLOCK_BYTES = LAYERS * SLICE_BYTES
# Blocks of a put: an extent of 8 MiB.
PUT_BLOCKS = 16
# About 2,000 tokens of a model with 128 KiB a token.
GET_BLOCKS = 512
PACK_BYTES = 32 << 20
# Packs before the clock starts: as many as a store fills and writes at a time.
WARM_PACKS = 5
STEP_S, LOOK_S, LIMIT_S = 0.01, 0.03, 120.0


def chains(name: str, blocks: int, per_chain: int) -> Iterator[list[bytes]]:
    """Yields the names of blocks in order, in parts of a prompt."""
    hashes = [hashlib.sha256(f"{name} {at}".encode()).digest() for at in range(blocks)]
    for first in range(0, blocks, per_chain):
        yield hashes[first : first + per_chain]


def namespace_of(store: dalsegno.Store, layers: int = LAYERS) -> dalsegno.Namespace:
    """Returns the namespace of the bench."""
    slice_bytes = BLOCK_BYTES // layers
    return store.namespace({"bench": "far"}, layers=layers, slice_bytes=slice_bytes)


def sent(store: dalsegno.Store) -> dict[str, Any] | None:
    """Returns what a store has sent to a bucket; None if its far location is a directory."""
    far = store.stats()["far"]
    assert far is not None
    requests = far["requests"]
    return None if requests is None else dict(requests)


def published(store: dalsegno.Store) -> Any:
    """Returns the counters of what a store has published."""
    far = store.stats()["far"]
    assert far is not None
    return far["published"]


def until(what: str, ready: Any) -> None:
    """Waits for a condition in short steps."""
    deadline = time.monotonic() + LIMIT_S
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {LIMIT_S:.0f} s")
        time.sleep(STEP_S)


def wait_for_packs(store: dalsegno.Store, last: int) -> float:
    """Waits until so many packs are published; returns the CPU seconds that looking took."""
    start, cpu = time.perf_counter(), time.thread_time()
    while (done := published(store)["packs"]) < last:
        if time.perf_counter() - start > LIMIT_S:
            raise TimeoutError(f"{done} of {last} packs were published within {LIMIT_S:.0f} s")
        time.sleep(LOOK_S)
    return time.thread_time() - cpu


def write(options: argparse.Namespace) -> dict[str, Any]:
    """Puts blocks into the log of a store, then measures how fast they are published.

    With ``far_write="second-put"`` the second put of a block writes nothing to the log and only
    offers the block to the far tier. The clock starts after some packs, which brought the memory of
    packs into use. It stops when the last full pack is published, so that no wait for a pack to
    fill up is measured.
    """
    packs = WARM_PACKS + options.packs
    local, blocks = options.local, packs * PACK_BYTES // BLOCK_BYTES
    capacity = 2 * blocks * BLOCK_BYTES + (512 << 20)
    memory = aligned(PUT_BLOCKS * BLOCK_BYTES)
    buffers = [memory[at * BLOCK_BYTES :][:BLOCK_BYTES] for at in range(PUT_BLOCKS)]
    parts = list(chains(options.name, blocks, PUT_BLOCKS))
    with dalsegno.open(local, capacity=capacity, dram=0) as store:
        namespace = namespace_of(store)
        for number, chain in enumerate(parts):
            memory[:8] = number.to_bytes(8, "little")
            assert namespace.put_batch(chain, buffers).stored == len(chain)
    settings: dict[str, Any] = {"far": str(options.far), "far_workers": options.workers}
    settings |= {"far_write": "second-put", "far_flush_s": 30}
    with dalsegno.open(local, capacity=capacity, dram=0, **settings) as store:
        namespace = namespace_of(store)
        warm = WARM_PACKS * PACK_BYTES // BLOCK_BYTES // PUT_BLOCKS
        for chain in parts[:warm]:
            assert namespace.put_batch(chain, buffers).stored == 0
        until("packs are published", lambda: published(store)["packs"] >= WARM_PACKS)
        before = published(store)
        cpu, start = cpu_s(), time.perf_counter()
        for chain in parts[warm:]:
            assert namespace.put_batch(chain, buffers).stored == 0
        looking = wait_for_packs(store, packs)
        seconds, cpu = time.perf_counter() - start, cpu_s() - cpu - looking
        moved = published(store)["bytes"] - before["bytes"]
        requests = sent(store)
    result = {"bytes": moved, "s": seconds, "cpu_s": cpu, "blocks": len(parts) * PUT_BLOCKS}
    return {**result, "sent": requests}


def read(options: argparse.Namespace) -> dict[str, Any]:
    """Loads all blocks with an empty local directory: in order, or one by one in any order."""
    blocks = options.packs * PACK_BYTES // BLOCK_BYTES
    parts = list(chains(options.name, blocks, min(GET_BLOCKS, blocks)))
    if options.scattered:
        parts = [[one] for chain in parts for one in chain]
        random.Random(1).shuffle(parts)  # noqa: S311 - an order, no secret
    memory = aligned(len(parts[0]) * BLOCK_BYTES)
    buffers = [memory[at * BLOCK_BYTES :][:BLOCK_BYTES] for at in range(len(parts[0]))]
    settings = {"far": str(options.far), "far_workers": options.workers}
    with dalsegno.open(options.local, capacity="1GiB", dram=0, **settings) as store:
        namespace = namespace_of(store)
        until("all is found", lambda: all(namespace.probe(one) == len(one) for one in parts))
        before = sent(store)
        cpu, start = cpu_s(), time.perf_counter()
        for chain in parts:
            assert namespace.get_batch(chain, buffers[: len(chain)]) == len(chain)
        seconds, cpu = time.perf_counter() - start, cpu_s() - cpu
        far = store.stats()["far"]
        assert far is not None
        return {
            "bytes": blocks * BLOCK_BYTES,
            "s": seconds,
            "cpu_s": cpu,
            "fetched_bytes": far["fetched_bytes"],
            "requests": far["read_requests"],
            "sent": sent(store),
            "sent_before": before,
        }


def main(argv: Sequence[str]) -> int:
    """Runs one node."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("write", "read"))
    parser.add_argument("--far", required=True)
    parser.add_argument("--local", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--packs", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--scattered", action="store_true", help="loads one block at a time")
    options = parser.parse_args(argv)
    print(json.dumps(write(options) if options.mode == "write" else read(options)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
