"""Part `decode`: what loads do to requests that decode, and what happens when something fails.

Rows of faults have the tokens of the same prompt computed by the same engine next to them: a fault
may cost time, never a token.
"""

from __future__ import annotations

import functools
import mmap
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu.cells import Cell, Session
from gpu.engine_cells import (
    ROUNDS,
    Described,
    ask,
    cells_of,
    fill,
    forget,
    held_by_clients,
    loads,
    serving,
    warm_up,
    with_runners,
)
from gpu.engines import MIB, Engine, Setup, Start, of_dalsegno, of_vllm

DECODED_TOKENS = 256
# Seeds of prompts that only this part has.
DECODED, OTHERS = 7000, 7100
FAILED = "vllm:kv_offload_dalsegno_load_failed_blocks"
STEP_LOADS = "vllm:kv_offload_dalsegno_step_loads"
# Faults are planted in the middle: layers before that are loaded, and computed from, before.
FLIPPED_AT = 32
# So many of the setup's fillers take a small pool twice.
FILLERS = 2


def decode(session: Session, *, setup: Setup, name: str) -> dict[str, Any]:
    """Measures seconds between tokens of a request, while others load and while they do not.

    Args:
        session: Where.
        setup: What engines run.
        name: `direct` for our pool in the engine's process, `cpu-tier` for vLLM's.
    """
    others = [(setup.loaded, OTHERS + at) for at in range(setup.loads)]
    with session.folder("decode") as place:
        connector = of_vllm(setup.pool)
        if name == "direct":
            capacity = setup.capacity
            extra = {"capacity": capacity, "cpu_bytes_to_use": setup.pool}
            connector = of_dalsegno(str(place / "store"), "direct", **extra)
        with Engine(session, setup, Start(f"decode-{name}", connector)) as engine:
            warm_up(engine)
            hits = _store_all(engine, setup, others)
            forget(engine)
            order = {"n": DECODED_TOKENS, "seed": DECODED, "others": others, "alone": setup.alone}
            loading = engine.do("decode", **order)
            # Now vLLM has all of them itself: the same steps without loads.
            in_gpu = engine.do("decode", **order)
            gpu = engine.do("gpu_facts")
    return {
        "expected_external": setup.hits(setup.loaded) * setup.loads,
        "stored_external": hits,
        "loading": loading,
        "in_gpu": in_gpu,
        "gpu": gpu,
        "start_s": engine.start_s,
    }


def _store_all(engine: Engine, setup: Setup, prompts: Sequence[tuple[int, int]]) -> int:
    """Asks prompts until the tier has all of their blocks; returns the tokens that were hits."""
    for _ in range(3):
        found = 0
        for n, seed in prompts:
            found += int(engine.do("ask", n=n, seed=seed, tokens=1)["external"])
        if found >= setup.hits(setup.loaded) * len(prompts):
            break
        forget(engine)
    return found


def faults(session: Session, *, setup: Setup, start: Start) -> dict[str, Any]:
    """Damages stored blocks, and compares the answers with those that were computed.

    Three prompts are stored, and then others until the pool has none of the three. A slice of a
    middle layer of a middle block of two of them is damaged on disk. The engine loads the first one
    ahead of its step; then, with loads inside steps, the second one and the whole one.
    """
    with session.folder("faults") as place:
        store = place / "store"
        connector = of_dalsegno(
            str(store),
            "direct",
            capacity=setup.capacity,
            cpu_bytes_to_use=setup.small_pool,
            max_step_load_s=60.0,
            store={"scrub_rate": 0, "merge_rate": 0},
        )
        with Engine(session, setup, replace(start, connector=connector)) as engine:
            warm_up(engine)
            engine.do("in_steps", allowed=False)
            prompts = [(setup.short, seed) for seed in (7200, 7201, 7202)]
            right = [engine.do("ask", n=n, seed=seed) for n, seed in prompts]
            evict(engine, setup)
            damaged = [flip(store, one["sample"]) for one in right[:2]]
            rows = [_after(engine, "damaged, ahead", prompts[0], right[0])]
            engine.do("in_steps", allowed=True)
            rows.append(_after(engine, "damaged, in step", prompts[1], right[1]))
            rows.append(_after(engine, "whole, in step", prompts[2], right[2]))
    for row, count in zip(rows, damaged, strict=False):
        row["flipped_bytes"] = count
    return {"rows": rows, "start_s": engine.start_s}


def graphs(session: Session, *, setup: Setup) -> dict[str, Any]:
    """Compares answers of an engine that computes with CUDA graphs, as engines do by default.

    It captures them when it starts, while the pool is being registered. Only steps that decode are
    graphs, so that nothing has to be compiled.
    """
    name, n = "graphs", setup.short
    options = {
        "enforce_eager": False,
        "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
    }
    with session.folder(name) as place:
        extra = {"capacity": setup.capacity, "cpu_bytes_to_use": setup.pool}
        connector = of_dalsegno(str(place / "store"), "direct", **extra)
        with Engine(session, setup, Start(name, connector, options)) as engine:
            at_start = engine.do("gpu_facts")
            warm_up(engine)
            rows = fill(engine, setup, n)
            rows += loads(engine, setup, n, ROUNDS)
            gpu = engine.do("gpu_facts")
    for row in rows[1:]:
        row["right"] = {key: rows[0][key] for key in ("tokens", "top", "digest")}
    return {"rows": rows, "start_s": engine.start_s, "at_start": at_start, "gpu": gpu}


def evict(engine: Engine, setup: Setup) -> None:
    """Stores other prompts until the small pool has none of those before."""
    for seed in range(FILLERS):
        engine.do("ask", n=setup.filler, seed=7300 + seed, tokens=1)


def _after(
    engine: Engine, kind: str, prompt: tuple[int, int], right: dict[str, Any]
) -> dict[str, Any]:
    """Asks a prompt again; returns a row with the counters that have grown."""
    forget(engine)
    before = engine.do("counters")
    row = {"kind": kind, **engine.do("ask", n=prompt[0], seed=prompt[1])}
    after = engine.do("counters")
    for name, key in (("failed_blocks", FAILED), ("step_loads", STEP_LOADS)):
        row[name] = after.get(key, 0) - before.get(key, 0)
    return {**row, "right": {key: right[key] for key in ("tokens", "top", "digest")}}


def flip(store: Path, sample: str) -> int:
    """Flips a byte of a stored slice wherever the store has it; returns how often it was found.

    Args:
        store: The directory of the store.
        sample: The first bytes of the slice, in hexadecimal digits.
    """
    wanted, count = bytes.fromhex(sample), 0
    for segment in sorted(store.rglob("segment-*.log")) if wanted else ():
        with segment.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
            at = content.find(wanted)
            while at >= 0:
                content[at + FLIPPED_AT] ^= 0xFF
                count += 1
                at = content.find(wanted, at + 1)
            content.flush()
            os.fsync(file.fileno())
    return count


def killed(session: Session, *, setup: Setup) -> dict[str, Any]:
    """Kills an engine while it loads from a server, and lets the next one ask the same."""
    n = setup.loaded
    with (
        session.folder("killed") as place,
        serving(session, setup, "killed", place / "store") as server,
    ):
        connector = of_dalsegno(server.path, "direct", cpu_bytes_to_use=64 * MIB)
        with Engine(session, setup, Start("killed", connector)) as engine:
            warm_up(engine)
            rows = fill(engine, setup, n)
            forget(engine)
            code = _kill_while_loading(engine, n)
        held = held_by_clients(server)
        with Engine(session, setup, Start("killed-next", connector)) as following:
            warm_up(following)
            forget(following)
            row = ask(following, setup, "after the kill", n)
    row["right"] = {key: rows[0][key] for key in ("tokens", "top", "digest")}
    return {"exit_code": code, "server_afterwards": held, "rows": [row]}


def _kill_while_loading(engine: Engine, n: int) -> int:
    """Lets the engine kill itself while it loads; returns its exit code, -9 if it did."""
    try:
        engine.do("kill_while_loading", n=n, seed=n)
    except Exception:  # noqa: BLE001 - it cannot answer
        return engine.wait_killed()
    return 0


# What vLLM does on a GPU only: its own tiers, and the second model runner.
NEEDS_GPU = ("latency-cpu-tier", "faults-v2-async", "faults-v2-sync")


def cells(*, tiny: bool) -> list[Cell]:
    """Returns the cells, the most valuable first."""
    every: list[Described] = [
        ("latency-direct", functools.partial(decode, name="direct"), 100),
        ("graphs", graphs, 75),
        *with_runners("faults", faults, 75),
        ("latency-cpu-tier", functools.partial(decode, name="cpu-tier"), 100),
    ]
    every.insert(4, ("killed", killed, 130))
    return cells_of(every, NEEDS_GPU, tiny=tiny)
