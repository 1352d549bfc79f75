"""Backup to storage and prefetch from it through SGLang's own controller.

It is a child of `dalsegno bench sglang`, which reads its output: one JSON object. Every round
visits the backends in another order. Each gets the same prompts, an empty directory and the same
host pool. Bytes are compared after every prefetch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dalsegno.integrations.sglang.settings import CLASS, MODULE
from dalsegno_bench.machine import kernel
from dalsegno_bench.machine.speed import cpu_s
from dalsegno_bench.sglang.baselines import FilePerPage, NoBytes
from dalsegno_bench.sglang.rig import Geometry, Rig

BACKENDS = ("dalsegno", "file", "v1file", "sim")
GIB = 1 << 30


@dataclass(frozen=True)
class Phase:
    """What was timed of one backend in one round.

    Attributes:
        backend: Which.
        phase: `backup`; `prefetch`, with what the backup left in memory: files in the page cache,
            blocks in the store's DRAM tier; or `prefetch_cold`, with nothing there.
        gib_per_s: GiB a second.
        cpu_s_per_gib: CPU seconds of this process, the kernel's on its behalf included.
    """

    backend: str
    phase: str
    gib_per_s: float
    cpu_s_per_gib: float


def extra_of(backend: str, folder: Path, options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Returns SGLang's name of a backend and its extra configuration."""
    if backend == "file":
        os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = str(folder)
        return "file", {}
    dynamic = {"backend_name": backend, "interface_v1": 1, "path": str(folder)}
    if backend == "sim":
        dynamic |= {"module_path": NoBytes.__module__, "class_name": NoBytes.__name__}
        # No bytes and no delays: what is left is SGLang itself.
        dynamic |= {"sim_write_gbps": 0, "sim_op_latency_us": 0}
    elif backend == "v1file":
        dynamic |= {"module_path": FilePerPage.__module__, "class_name": FilePerPage.__name__}
    else:
        memory = {"dram": f"{options.dram_mib}MiB", "dram_admission": "put"}
        store = {**memory, **json.loads(options.store)}
        dynamic |= {"module_path": MODULE, "class_name": CLASS, "weights_fingerprint": "bench"}
        dynamic |= {"capacity": f"{options.capacity_gib}GiB", "store": store}
        # What is measured is loading.
        dynamic |= {"load_policy": "always", "keep_profile": False}
    return "dynamic", dynamic


class Bench:
    """The cache, and the prompts that go through it."""

    def __init__(self, page_tokens: int, options: argparse.Namespace) -> None:
        self.options = options
        self.geometry = Geometry(
            layers=options.layers,
            heads=options.heads,
            head_dim=options.head_dim,
            page_tokens=page_tokens,
            layout=options.layout,
            tokens=options.sequences * options.tokens + 4 * page_tokens,
        )
        self.rig = Rig(self.geometry)
        self.prompts = [
            [(at * 7919 + number * 104_729) % 50_000 for at in range(options.tokens)]
            for number in range(options.sequences)
        ]
        self.digests: list[str] = []

    def visit(self, backend: str, folder: Path) -> list[Phase]:
        """Backs all prompts up and prefetches them twice."""
        name, extra = extra_of(backend, folder, self.options)
        self.rig.attach(name, extra)
        self._warm_up()
        self._to_host(self.prompts)
        os.sync()
        phases = [self._timed(backend, "backup"), self._timed(backend, "prefetch")]
        self.rig.detach()
        kernel.forget_pages(folder)
        # What a backend keeps in memory of its own went with it; the simulated one keeps nothing
        # else.
        if backend == "sim":
            return phases
        self.rig.attach(name, extra)
        phases.append(self._timed(backend, "prefetch_cold"))
        self.rig.detach()
        return phases

    def _warm_up(self) -> None:
        """Moves as many other prompts, so that the backend's memory is there already.

        Fresh memory costs a virtual machine up to some seconds per GiB, for every backend.
        """
        others = [[1_000_000 + one for one in prompt] for prompt in self.prompts]
        self._to_host(others)
        for other in others:
            self.rig.to_storage(other)
        self.rig.controller.clear_storage_backend()

    def _to_host(self, prompts: Sequence[Sequence[int]]) -> None:
        """Has prompts in the host pool, and nothing else there."""
        self.rig.flush()
        self.digests = [self.rig.insert(one, seed) for seed, one in enumerate(prompts)]
        for prompt in prompts:
            self.rig.to_host(prompt)

    def _timed(self, backend: str, phase: str) -> Phase:
        """Moves all prompts one way."""
        seconds = cpu = 0.0
        if phase != "backup":
            self.rig.flush()
        for number, prompt in enumerate(self.prompts):
            before = cpu_s()
            if phase == "backup":
                seconds += self.rig.to_storage(prompt)
            else:
                came = self.rig.prefetch(prompt)
                seconds += came.seconds
            cpu += cpu_s() - before
            if phase != "backup":
                self._compare(backend, number, came.tokens)
        gib = len(self.prompts) * self.options.tokens * self.geometry.token_bytes / GIB
        return Phase(backend, phase, gib / seconds, cpu / gib)

    def _compare(self, backend: str, number: int, tokens: int) -> None:
        """Checks that a whole prompt came, with the right bytes."""
        if tokens != self.options.tokens:
            raise SystemExit(f"{backend}: {tokens} of {self.options.tokens} tokens came back")
        if backend != "sim" and self.rig.to_device(self.prompts[number]) != self.digests[number]:
            raise SystemExit(f"{backend}: prompt {number} came back with other bytes")


def main(argv: Sequence[str]) -> int:
    """Runs it; the last line printed is one JSON object.

    Args:
        argv: One JSON object: the options of `dalsegno bench sglang`, and the `folder` to work in.
    """
    options = argparse.Namespace(**json.loads(argv[0]))
    found: dict[str, list[dict[str, Any]]] = {}
    for page_tokens in options.pages:
        bench = Bench(page_tokens, options)
        rows = found.setdefault(f"page{page_tokens}", [])
        for number in range(options.rounds):
            turn = number % len(BACKENDS)
            for backend in BACKENDS[turn:] + BACKENDS[:turn]:
                folder = Path(tempfile.mkdtemp(prefix="dalsegno-sglang-", dir=options.folder))
                try:
                    phases = bench.visit(backend, folder)
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                rows += [vars(phase) for phase in phases]
                for one in phases:
                    sys.stderr.write(f"pages of {page_tokens}: {one}\n")
        bench.rig.close()
        del bench
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
