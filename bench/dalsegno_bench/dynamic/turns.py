"""Backends that take turns at a workload, stage by stage, and the figures of each turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from dalsegno_bench.dynamic.served import Process, Served, Setup
from dalsegno_bench.machine import kernel
from dalsegno_bench.workload import Dynamic, Prompt
from dalsegno_bench.workload.prefill import Prefill

MIB = 1 << 20


@dataclass(frozen=True)
class Turn:
    """One backend in one stage.

    Attributes:
        system: Which backend.
        stage: Which stage, from 1; 0 is the warm-up.
        expected: The stage's expected hit rate; 0 in the warm-up.
        ideal_blocks: Blocks that a cache of all prompts would have hit.
        served: What the backend did.
        files: Its files afterwards.
        inodes: Inodes that its turns took so far.
        names_bytes: Memory of the kernel for inodes and names that its turns took so far; ``None``
            if only root may know.
        slab_bytes: Memory of all of the kernel's caches that its turns took so far.
    """

    system: str
    stage: int
    expected: float
    ideal_blocks: int
    served: Served
    files: int
    inodes: int
    names_bytes: int | None
    slab_bytes: int


@dataclass(frozen=True)
class Scale:
    """What the figures are worked out with.

    Attributes:
        plan: The workload.
        block_bytes: Bytes of a block as it was stored.
        prefill: The prefill of what was not loaded.
    """

    plan: Dynamic
    block_bytes: int
    prefill: Prefill

    @property
    def shrunk(self) -> float:
        """How many times smaller a block is than the model's."""
        return self.prefill.kv_bytes_per_token * self.plan.block_tokens / self.block_bytes


def take_turns(
    plan: Dynamic, setups: Sequence[Setup], report: Callable[[int, str, int], None]
) -> list[Turn]:
    """Serves a workload from several backends, each in its own process.

    Only one works at a time. Each stage begins with another one, so that other load of the machine
    hits all alike.

    Args:
        plan: The workload.
        setups: The backends.
        report: Called with stage, system and number of prompts that were served.

    Returns:
        All turns, the warm-up's first.
    """
    turns: list[Turn] = []
    spent = {setup.system: Spent() for setup in setups}
    with ExitStack() as stack:
        processes = []
        for setup in setups:
            processes.append(Process(setup))
            stack.callback(processes[-1].close)
        rates = (0.0, *plan.expected)
        for stage, (rate, prompts) in enumerate(zip(rates, plan.phases(), strict=True)):
            ideal = sum(prompt.shared_blocks for prompt in prompts)
            first = stage % len(processes)
            for process in processes[first:] + processes[:first]:
                setup = process.setup
                served = spent[setup.system].over(process, prompts, stage, report)
                turns.append(
                    Turn(
                        system=setup.system,
                        stage=stage,
                        expected=rate,
                        ideal_blocks=ideal,
                        served=served,
                        files=kernel.count_files(setup.directory),
                        **vars(spent[setup.system]),
                    )
                )
    return turns


@dataclass
class Spent:
    """What the kernel has spent on a backend's turns so far; attributes as of :class:`Turn`."""

    inodes: int = 0
    names_bytes: int | None = 0
    slab_bytes: int = 0

    def over(
        self,
        process: Process,
        prompts: list[Prompt],
        stage: int,
        report: Callable[[int, str, int], None],
    ) -> Served:
        """Has prompts served and adds what the kernel spent meanwhile."""
        setup = process.setup
        before = kernel.look(setup.directory)
        served = process.serve(prompts, lambda count: report(stage, setup.system, count))
        after = kernel.look(setup.directory)
        self.inodes += after.inodes - before.inodes
        self.slab_bytes += after.slab_bytes - before.slab_bytes
        if before.names_bytes is None or after.names_bytes is None or self.names_bytes is None:
            self.names_bytes = None
        else:
            self.names_bytes += after.names_bytes - before.names_bytes
        return served


def figures(turns: Sequence[Turn], scale: Scale) -> dict[str, Any]:
    """Works out the figures of one backend over one or several stages.

    Args:
        turns: Its turns in order.
        scale: What they mean.

    Returns:
        Rates as parts of tokens; ``ttft_ms``: measured load and modelled prefill of the rest;
        ``full_ms``: the same with the load as many times longer as a block is smaller than the
        model's; ``prefill_ms``: the modelled part alone. States (files, memory …) are the last
        turn's; counts and CPU seconds are sums.
    """
    plan, last = scale.plan, turns[-1]
    hits = [hit for turn in turns for hit in turn.served.hit_blocks]
    loads = [load for turn in turns for load in turn.served.load_s]
    prefills = [scale.prefill.seconds(plan.prompt_tokens, hit * plan.block_tokens) for hit in hits]
    pairs = list(zip(loads, prefills, strict=True))
    asked = len(hits) * plan.blocks
    saved, failed, wrong, save_s, user_s, system_s = (
        sum(getattr(turn.served, name) for turn in turns)
        for name in (
            "saved_blocks",
            "failed_blocks",
            "wrong_blocks",
            "save_s",
            "user_s",
            "system_s",
        )
    )
    moved_gb = (sum(hits) + saved - failed) * scale.block_bytes / 1e9
    return {
        "hit_rate": round(sum(hits) / asked, 4),
        "ideal_hit_rate": round(sum(turn.ideal_blocks for turn in turns) / asked, 4),
        "ttft_ms": spread(load + rest for load, rest in pairs),
        "full_ms": spread(load * scale.shrunk + rest for load, rest in pairs),
        "prefill_ms": spread(prefills),
        "load_s": round(sum(loads), 3),
        "save_s": round(save_s, 3),
        "moved_gb": round(moved_gb, 3),
        "user_s": round(user_s, 3),
        "system_s": round(system_s, 3),
        "cpu_s_per_gb": round((user_s + system_s) / moved_gb, 3) if moved_gb else None,
        "failed_blocks": failed,
        "wrong_blocks": wrong,
        "files": last.files,
        "inodes": last.inodes,
        "names_mib": None if last.names_bytes is None else round(last.names_bytes / MIB, 1),
        "slab_mib": round(last.slab_bytes / MIB, 1),
        "rss_mib": round(last.served.rss_bytes / MIB, 1),
        "disk_mib": round(last.served.disk_bytes / MIB, 1),
    }


def spread(seconds: Iterable[float]) -> dict[str, float]:
    """Mean and percentiles, nearest rank, in milliseconds."""
    ordered = sorted(seconds)

    def rank(part: float) -> float:
        return ordered[max(0, math.ceil(part * len(ordered)) - 1)]

    found = {"mean": sum(ordered) / len(ordered), "p50": rank(0.5), "p99": rank(0.99)}
    return {name: round(value * 1e3, 2) for name, value in found.items()}
