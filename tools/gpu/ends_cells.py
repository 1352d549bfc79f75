"""Part `ends`: prompts whose front is computed while their back is loaded.

Rows have the tokens of the same prompt computed by the same engine next to them. Dalsegno does not
do this on GPUs by itself until these answers were right there, so the cells allow it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpu.cells import Cell, Session
from gpu.engine_cells import ask, cells_of, forget, warm_up, with_runners
from gpu.engine_hooks import ALLOW_JUMPS
from gpu.engines import Engine, Setup, Start, of_dalsegno

JUMPED = "vllm:kv_offload_dalsegno_jumped_tokens"
# The part of a prompt after which both ends should meet.
FRONTS = (0.1, 0.5, 0.9)
ROUNDS = 3
# Of a prompt that only this part has.
SEED = 7400


def answers(session: Session, *, setup: Setup, start: Start) -> dict[str, Any]:
    """Compares answers of requests that jump, wherever both ends meet, with computed ones."""
    rows = []
    with session.folder(start.name) as place:
        extra = {"capacity": setup.capacity, "cpu_bytes_to_use": setup.pool, "load_policy": "auto"}
        connector = of_dalsegno(str(place / "store"), "direct", **extra)
        environment = {**start.environment, ALLOW_JUMPS: "1"}
        own = replace(start, connector=connector, environment=environment)
        with Engine(session, setup, own) as engine:
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
    every = with_runners("ends", answers, 60)
    every.insert(2, ("ends-disk", disk, 110))
    return cells_of(every, NEEDS_GPU, tiny=tiny)
