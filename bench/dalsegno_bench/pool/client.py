"""A client process of the bench `pool`: it makes the calls of one contender for some time.

It is a child of the bench. Each line on standard input is one JSON object: what to measure, and for
how long. The answers are `ready`, after calls that warm up, and after a further line one JSON
object.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import random
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dalsegno
from dalsegno_bench.disk.log import aligned
from dalsegno_bench.machine.speed import cpu_s
from dalsegno_bench.pool import workset, zeromq

__all__ = ["main", "open_namespace"]

PAGE_BYTES = 4096
# Choices of a prompt before they repeat.
TURNS = 4096
# Calls before a measurement.
WARM_UP = 2

# A call returns the bytes that it moved.
Call = Callable[[], int]


def open_namespace(path: str, prompts: workset.Prompts) -> dalsegno.Namespace:
    """Opens the namespace of the prompts at a server. The connection lasts as long."""
    return name_blocks(dalsegno.open(path), prompts)


def name_blocks(store: dalsegno.Store, prompts: workset.Prompts) -> dalsegno.Namespace:
    """Returns the namespace of the prompts in a store."""
    return store.namespace({"bench": "pool"}, layers=1, slice_bytes=prompts.block_bytes)


class Turns:
    """Prompts in an order that is random, and another one for each client."""

    def __init__(self, prompts: workset.Prompts, seed: int) -> None:
        chains = [prompts.chain(prompt) for prompt in range(prompts.count)]
        choose = random.Random(seed)  # noqa: S311 - the order of reads
        order = choose.choices(list(enumerate(chains)), k=TURNS)
        self._turns = itertools.cycle(order)

    def next(self) -> tuple[int, list[bytes]]:
        """Returns the next prompt's number and its chain."""
        return next(self._turns)


class Shared:
    """What the calls of this process have in common.

    Args:
        options: Addresses of the servers, the dose and a seed.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.small: workset.Prompts = options.dose.small
        self.large: workset.Prompts = options.dose.large

    def turns(self, prompts: workset.Prompts) -> Turns:
        """Returns prompts in an order of this client."""
        return Turns(prompts, self.options.seed)

    @functools.cached_property
    def memory(self) -> list[memoryview]:
        """Memory for one prompt of large blocks, a buffer for each block."""
        size = self.large.block_bytes
        memory = aligned(self.large.blocks * size)
        return [memory[at * size :][:size] for at in range(self.large.blocks)]

    @functools.cached_property
    def pool(self) -> dalsegno.Namespace:
        """The large blocks in the shared pool, whose pages this process has touched."""
        namespace = open_namespace(self.options.large, self.large)
        for prompt in range(self.large.count):
            with namespace.lease(self.large.chain(prompt)) as lease:
                for block in lease:
                    assert np.frombuffer(block, np.uint8)[::PAGE_BYTES].max() == block[-1]
                    del block
        return namespace

    @functools.cached_property
    def own(self) -> dalsegno.Store:
        """A store of this process alone that has all large blocks, and its share of the memory."""
        dose = self.options.dose
        path = str(Path(self.options.own) / str(self.options.seed))
        capacity = 2 * self.large.total_bytes + (1 << 30)
        share = dose.pool_bytes // 8
        store = dalsegno.open(path, capacity=capacity, dram=share, dram_admission="put")
        namespace = name_blocks(store, self.large)
        for chain, blocks in self.large.contents():
            assert namespace.put_batch(chain, blocks).stored == len(chain)
        for prompt in range(self.large.count):
            assert namespace.get_batch(self.large.chain(prompt), self.memory) == self.large.blocks
        return store


def looks_up(shared: Shared, contender: str, op: str) -> Call:
    """Returns how a contender probes or leases a prompt of small blocks."""
    turns = shared.turns(shared.small)
    if contender == "zmq":
        client = zeromq.Client(shared.options.zmq)

        def probe() -> int:
            return client.probe(turns.next()[1])

        def lease() -> int:
            lease, found = client.acquire(turns.next()[1])
            client.release(lease)
            return len(found)

    else:
        namespace = open_namespace(shared.options.small, shared.small)

        def probe() -> int:
            return namespace.probe(turns.next()[1])

        def lease() -> int:
            with namespace.lease(turns.next()[1]) as leased:
                return len(leased)

    call = {"probe": probe, "lease": lease}[op]

    def checked() -> int:
        found = call()
        assert found == workset.SMALL_BLOCKS, f"{contender}: {found} blocks"
        return 0

    return checked


def views(shared: Shared, use: Callable[[memoryview, int], None]) -> Call:
    """Returns how blocks are used in the pool, each with its number."""
    prompts, turns, pool = shared.large, shared.turns(shared.large), shared.pool

    def use_all() -> int:
        prompt, chain = turns.next()
        with pool.lease(chain) as lease:
            assert len(lease) == len(chain)
            assert not lease.truncated
            for number, block in zip(prompts.numbers(prompt), lease, strict=True):
                use(block, number)
                del block
        return prompts.blocks * prompts.block_bytes

    return use_all


def touch(block: memoryview, number: int) -> None:
    """Reads the first and the last byte."""
    assert block[0] == block[-1] == number & 255


def check_sum(block: memoryview, number: int) -> None:
    """Reads each byte once."""
    words = np.frombuffer(block, np.uint64)
    expected = len(words) * ((number & 255) * 0x0101010101010101)
    assert int(words.sum()) == expected & workset.MASK


def receives(shared: Shared, use: Callable[[memoryview, int], None]) -> Call:
    """Returns how blocks come over TCP into memory of this process, and are used there."""
    prompts, turns, blocks = shared.large, shared.turns(shared.large), shared.memory
    size = prompts.block_bytes
    tcp = socket.create_connection(("127.0.0.1", shared.options.tcp))
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def receive_all() -> int:
        prompt, _ = turns.next()
        for number, block in zip(prompts.numbers(prompt), blocks, strict=True):
            tcp.sendall(number.to_bytes(8, "little"))
            have = 0
            while have < size:
                have += tcp.recv_into(block[have:], size - have, socket.MSG_WAITALL)
            use(block, number)
        return prompts.blocks * size

    return receive_all


def copies(shared: Shared, namespace: dalsegno.Namespace) -> Call:
    """Returns how a store copies blocks into memory of this process."""
    prompts, turns, blocks = shared.large, shared.turns(shared.large), shared.memory

    def copy_all() -> int:
        prompt, chain = turns.next()
        assert namespace.get_batch(chain, blocks) == len(chain)
        for number, block in zip(prompts.numbers(prompt), blocks, strict=True):
            touch(block, number)
        return prompts.blocks * prompts.block_bytes

    return copy_all


def made(shared: Shared, what: str) -> Call:
    """Returns the call with this name: a contender and an operation."""
    contender, _, op = what.partition(" ")
    if op in {"probe", "lease"}:
        return looks_up(shared, contender, op)
    use = check_sum if op == "sum" else touch
    if contender == "tcp":
        return receives(shared, use)
    if contender == "own":
        return copies(shared, name_blocks(shared.own, shared.large))
    return copies(shared, shared.pool) if op == "copy" else views(shared, use)


def own_facts(shared: Shared) -> dict[str, int]:
    """Returns blocks that the own store served from DRAM and from the disk, and its DRAM in use."""
    stats = shared.own.stats()
    return {
        "get_dram_blocks": stats["get_dram_blocks"],
        "get_log_blocks": stats["get_log_blocks"],
        "dram_bytes": stats["dram_bytes"],
    }


def measure(call: Call, seconds: float) -> dict[str, Any]:
    """Calls again and again until the time is over."""
    spent: list[int] = []
    moved = 0
    clock = time.perf_counter_ns
    cpu, begin = cpu_s(), clock()
    end = now = begin
    end += int(seconds * 1e9)
    while now < end:
        start = now
        moved += call()
        now = clock()
        spent.append(now - start)
    cpu = cpu_s() - cpu
    spent.sort()
    return {
        "calls": len(spent),
        "s": (now - begin) / 1e9,
        "cpu_s": cpu,
        "bytes": moved,
        "p50_us": spent[(len(spent) - 1) // 2] / 1e3,
        "p99_us": spent[(len(spent) - 1) * 99 // 100] / 1e3,
    }


def main(argv: Sequence[str]) -> int:
    """Carries out what comes on standard input, until it ends.

    Args:
        argv: One JSON object with the addresses of the servers and a `seed`.
    """
    options = argparse.Namespace(**json.loads(argv[0]))
    options.dose = workset.Dose(**options.dose)
    shared = Shared(options)
    calls: dict[str, Call] = {}
    for line in sys.stdin:
        wanted = json.loads(line)
        what = wanted["what"]
        call = calls.get(what) or calls.setdefault(what, made(shared, what))
        for _ in range(WARM_UP):
            call()
        is_own = what.startswith("own")
        before = own_facts(shared) if is_own else {}
        print("ready", flush=True)
        sys.stdin.readline()
        found = measure(call, wanted["seconds"])
        after = own_facts(shared) if is_own else {}
        print(json.dumps({**found, "own": [before, after]}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
