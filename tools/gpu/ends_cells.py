"""Part `ends`: prompts whose front is computed while their back is loaded.

Rows have the tokens of the same prompt computed by the same engine next to them. Dalsegno does not
do this on GPUs by itself until these answers were right there, so the cells allow it.
"""

from __future__ import annotations

import functools
from typing import Any

from gpu.cells import Cell, Session
from gpu.engine_cells import ask, forget, warm_up
from gpu.engine_hooks import ALLOW_JUMPS
from gpu.engines import Engine, Setup, Start, of_dalsegno, setup_of

JUMPED = "vllm:kv_offload_dalsegno_jumped_tokens"
# The part of a prompt after which both ends should meet.
FRONTS = (0.1, 0.5, 0.9)
ROUNDS = 3
# Of a prompt that only this part has.
SEED = 7400


def answers(
    session: Session, *, setup: Setup, second_runner: bool, asynchronous: bool
) -> dict[str, Any]:
    """Compares answers of requests that jump, wherever both ends meet, with computed ones."""
    name = f"ends-v{2 if second_runner else 1}-{'async' if asynchronous else 'sync'}"
    start = Start(
        name,
        options={"async_scheduling": asynchronous},
        environment={"VLLM_USE_V2_MODEL_RUNNER": str(int(second_runner)), ALLOW_JUMPS: "1"},
    )
    rows = []
    with session.folder(name) as place:
        extra = {"capacity": setup.capacity, "cpu_bytes_to_use": setup.pool, "load_policy": "auto"}
        start.connector = of_dalsegno(str(place / "store"), "direct", **extra)
        with Engine(session, setup, start) as engine:
            warm_up(engine)
            engine.do("front", part=0.0)
            right = engine.do("ask", n=setup.filler, seed=SEED)
            for part in FRONTS:
                forget(engine)
                engine.do("front", part=part)
                before = engine.do("counters")
                row = engine.do("ask", n=setup.filler, seed=SEED)
                after = engine.do("counters")
                jumped = after.get(JUMPED, 0) - before.get(JUMPED, 0)
                rows.append({"kind": f"meet at {part:g}", "jumped_tokens": jumped, **row})
            # vLLM's own cache has what was jumped over.
            rows.append({"kind": "hit in GPU", **engine.do("ask", n=setup.filler, seed=SEED)})
            # The same runner and scheduler, with another prompt in the same blocks.
            forget(engine)
            engine.do("front", part=0.0)
            rows.append({"kind": "computed again", **engine.do("ask", n=setup.filler, seed=SEED)})
    for row in rows:
        row["right"] = {key: right[key] for key in ("tokens", "top", "digest")}
    return {"rows": rows, "start_s": engine.start_s}


def disk(session: Session, *, setup: Setup) -> dict[str, Any]:
    """Measures first tokens where a prompt is on the disk only, and the engine decides."""
    name, rows = "ends-disk", []
    with session.folder(name) as place:
        pool, extra = setup.small_pool, {"capacity": setup.capacity, "load_policy": "auto"}
        connector = of_dalsegno(str(place / "store"), "direct", cpu_bytes_to_use=pool, **extra)
        start = Start(name, connector, environment={ALLOW_JUMPS: "1"})
        with Engine(session, setup, start) as engine:
            warm_up(engine)
            for n in setup.lengths:
                engine.do("front", part=0.0)
                rows.append(ask(engine, setup, "recompute, and store", n))
                forget(engine)
                rows.append(ask(engine, setup, "recompute", n))
                engine.do("front", part=-1.0)
                for _ in range(ROUNDS):
                    forget(engine)
                    rows.append(ask(engine, setup, "both ends", n))
            counters = engine.do("counters")
    return {"rows": rows, "start_s": engine.start_s, "counters": counters}


# What vLLM does on a GPU only.
NEEDS_GPU = ("ends-v2-async", "ends-v2-sync", "ends-v1-async")


def cells(*, tiny: bool) -> list[Cell]:
    """Returns the cells, the most valuable first."""
    setup = setup_of(tiny=tiny)
    every: list[tuple[str, Any, float]] = []
    for second in (True, False):
        for asynchronous in (True, False):
            name = f"ends-v{2 if second else 1}-{'async' if asynchronous else 'sync'}"
            run = functools.partial(answers, second_runner=second, asynchronous=asynchronous)
            every.append((name, run, 60))
    every.insert(2, ("ends-disk", disk, 110))
    return [
        Cell(name, functools.partial(run, setup=setup), 0.5 * expect_s if tiny else expect_s)
        for name, run, expect_s in every
        if not (tiny and name in NEEDS_GPU)
    ]
