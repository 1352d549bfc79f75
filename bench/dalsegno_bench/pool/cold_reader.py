"""A process of the bench `cold` that gets prompts, with one thread or several.

It is a child of the bench. It prints `ready`. Each line on standard input is then one JSON value:
`null` asks how many blocks the store has read from its disk; an object says which parts of a prompt
to get, one in each thread.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dalsegno
from dalsegno_bench.disk.log import aligned
from dalsegno_bench.machine.speed import cpu_s
from dalsegno_bench.pool.client import name_blocks
from dalsegno_bench.pool.workset import Prompts

__all__ = ["main"]


class Reader:
    """An open store, and memory for a part of a prompt.

    Args:
        options: The store's path and options, the blocks, and how many of them fit into memory.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.prompts = Prompts(**options.prompts)
        self.store = dalsegno.open(options.path, **options.settings)
        self.namespace = name_blocks(self.store, self.prompts)
        size = self.prompts.block_bytes
        memory = aligned(options.most_blocks * size)
        self.memory = [memory[at * size :][:size] for at in range(options.most_blocks)]

    def run(self, prompt: int, parts: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Gets parts of a prompt at the same time. Each is the first block, and the one behind."""
        chain, numbers = self.prompts.chain(prompt), self.prompts.numbers(prompt)
        offset = parts[0][0]

        def get(part: Sequence[int]) -> None:
            first, end = part
            memory = self.memory[first - offset : end - offset]
            assert self.namespace.get_batch(chain[first:end], memory) == end - first

        with ThreadPoolExecutor(len(parts)) as threads:
            cpu, begin = cpu_s(), time.perf_counter()
            list(threads.map(get, parts))
            end, cpu = time.perf_counter(), cpu_s() - cpu
        wanted = numbers[offset : parts[-1][1]]
        for number, block in zip(wanted, self.memory, strict=False):
            assert block[0] == block[-1] == number & 255
        return {"begin": begin, "end": end, "cpu_s": cpu}

    def log_blocks(self) -> int:
        """Blocks that the store has read from its disk."""
        return int(self.store.stats()["get_log_blocks"])


def main(argv: Sequence[str]) -> int:
    """Carries out what comes on standard input, until it ends.

    Args:
        argv: One JSON object: see :class:`Reader`.
    """
    reader = Reader(argparse.Namespace(**json.loads(argv[0])))
    print("ready", flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        found = reader.run(**wanted) if wanted else reader.log_blocks()
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
