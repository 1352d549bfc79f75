"""Part `engines`: time to the first token of real vLLM, by the tier that has the prompt.

Rows have a `kind`: `recompute`, `hit in GPU`, or `load` from the tier of the cell, after vLLM has
forgotten its own KV cache or in a new process. Each prompt of a length is the same in all cells.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpu.cells import Cell, Session
from gpu.engines import MIB, Engine, Setup, Start, of_dalsegno, of_vllm, setup_of
from gpu.serving import Serving

WARM_UP_TOKENS = 150
# How often a prompt is asked until all of its blocks are stored.
MOST_FILLS = 4
ROUNDS = 3
# How long a server may take to notice that a client is gone, in seconds.
LEASES_S = 30.0
# The folder that `direct-pool` leaves to `direct-serve` and `direct-disk`.
KEPT = "direct-store"
# A cell of an engine: its name, what measures it, and its seconds on a GPU machine.
Described = tuple[str, Callable[..., dict[str, Any]], float]


def ask(engine: Engine, setup: Setup, kind: str, n: int) -> dict[str, Any]:
    """Asks the prompt of a length; returns a row, with what can be loaded of it."""
    most = {"most_hits": setup.hits(n), "cached_bytes": setup.cached_bytes(n)}
    return {"kind": kind, **most, **engine.do("ask", n=n, seed=n)}


def forget(engine: Engine) -> None:
    """Lets vLLM forget its own KV cache."""
    answer = engine.do("forget")
    assert answer["forgotten"], "vLLM did not forget its KV cache: blocks are in use"


def warm_up(engine: Engine, *, loads: bool = True) -> None:
    """Runs each kind of work once, with a prompt that no row has."""
    for _ in range(2):
        engine.do("ask", n=WARM_UP_TOKENS, seed=0)
        if loads:
            forget(engine)
    engine.do("wait_registered")


def fill(engine: Engine, setup: Setup, n: int) -> list[dict[str, Any]]:
    """Asks a prompt until the tier has all of its blocks; returns the rows.

    The last row is the first load. A tier may refuse blocks that come faster than it writes them.
    """
    rows = [ask(engine, setup, "recompute, and store", n)]
    for _ in range(MOST_FILLS):
        forget(engine)
        rows.append(ask(engine, setup, "load", n))
        if rows[-1]["external"] >= setup.hits(n):
            break
        rows[-1]["kind"] = "load in part, and store"
    return rows


def loads(engine: Engine, setup: Setup, n: int, rounds: int) -> list[dict[str, Any]]:
    """Asks a prompt that the tier has; returns the rows."""
    rows = []
    for _ in range(rounds):
        forget(engine)
        rows.append(ask(engine, setup, "load", n))
    return rows


def plain(session: Session, *, setup: Setup) -> dict[str, Any]:
    """Measures an engine without a connector: what it computes, and what it still has."""
    rows = []
    with Engine(session, setup, Start("plain")) as engine:
        warm_up(engine)
        for n in setup.lengths:
            rows.append(ask(engine, setup, "recompute", n))
            forget(engine)
            rows.append(ask(engine, setup, "recompute", n))
            rows += [ask(engine, setup, "hit in GPU", n) for _ in range(ROUNDS)]
        return {"rows": rows, "start_s": engine.start_s}


def one_engine(
    session: Session, *, setup: Setup, name: str, connector: dict[str, Any]
) -> dict[str, Any]:
    """Measures a tier in the engine's process: it is filled, and then loaded from."""
    rows = []
    with Engine(session, setup, Start(name, connector)) as engine:
        warm_up(engine)
        for n in setup.lengths:
            rows += fill(engine, setup, n)
            rows += loads(engine, setup, n, ROUNDS - 1)
        gpu, counters = engine.do("gpu_facts"), engine.do("counters")
        return {"rows": rows, "start_s": engine.start_s, "gpu": gpu, "counters": counters}


def second_engine(
    session: Session, *, setup: Setup, name: str, connector: dict[str, Any], first: str = "load"
) -> dict[str, Any]:
    """Measures a new process that loads what an earlier one has stored.

    Args:
        session: Where.
        setup: What engines run.
        name: Of the cell.
        connector: vLLM's `kv_transfer_config`.
        first: The kind of the first load of a prompt. If it is `load`, there is no other.
    """
    rows = []
    with Engine(session, setup, Start(f"{name}-loads", connector)) as engine:
        warm_up(engine)
        for n in setup.lengths:
            forget(engine)
            rows.append(ask(engine, setup, first, n))
            rows += loads(engine, setup, n, ROUNDS if first != "load" else 0)
        gpu, counters = engine.do("gpu_facts"), engine.do("counters")
        return {"rows": rows, "start_s": engine.start_s, "gpu": gpu, "counters": counters}


def fill_only(
    session: Session, *, setup: Setup, name: str, connector: dict[str, Any]
) -> list[dict[str, Any]]:
    """Lets an engine store all prompts; returns the rows, none of them of the kind `load`."""
    rows = []
    with Engine(session, setup, Start(f"{name}-fills", connector)) as engine:
        warm_up(engine)
        for n in setup.lengths:
            rows += fill(engine, setup, n)
    for row in rows:
        row["kind"] = row["kind"].replace("load", "load by the first engine")
    return rows


def cpu_tier(session: Session, *, setup: Setup) -> dict[str, Any]:
    """Measures vLLM's CPU tier."""
    return one_engine(session, setup=setup, name="cpu-tier", connector=of_vllm(setup.pool))


def direct_pool(session: Session, *, setup: Setup) -> dict[str, Any]:
    """Measures the direct path with a pool in the engine's process."""
    place = session.scratch / KEPT
    shutil.rmtree(place, ignore_errors=True)
    connector = _direct(setup, place, setup.pool)
    return one_engine(session, setup=setup, name="direct-pool", connector=connector)


def _direct(setup: Setup, place: Path, pool: int, **extra: Any) -> dict[str, Any]:
    """Returns our connector on the direct path, with a store in the engine's process."""
    own = {"capacity": setup.capacity, "cpu_bytes_to_use": pool, **extra}
    return of_dalsegno(str(place), "direct", **own)


def auto_pool(session: Session, *, setup: Setup) -> dict[str, Any]:
    """Lets the engine decide what it loads from a pool in its process."""
    rows = []
    with session.folder("auto-pool") as place:
        connector = _direct(setup, place / "store", setup.pool, load_policy="auto")
        with Engine(session, setup, Start("auto-pool", connector)) as engine:
            warm_up(engine)
            for n in setup.lengths:
                rows.append(ask(engine, setup, "recompute, and store", n))
                for _ in range(ROUNDS):
                    forget(engine)
                    rows.append(ask(engine, setup, "auto", n))
            counters = engine.do("counters")
    return {"rows": rows, "start_s": engine.start_s, "counters": counters}


def auto_disk(session: Session, *, setup: Setup) -> dict[str, Any]:
    """Lets a new engine decide what it loads from the directory that `direct-pool` has left."""
    rows = _stored(session, setup, "auto-disk")
    connector = _direct(setup, session.scratch / KEPT, setup.small_pool, load_policy="auto")
    with Engine(session, setup, Start("auto-disk", connector)) as engine:
        warm_up(engine)
        for n in setup.lengths:
            for _ in range(ROUNDS):
                forget(engine)
                rows.append(ask(engine, setup, "auto", n))
        counters = engine.do("counters")
    return {"rows": rows, "start_s": engine.start_s, "counters": counters}


def _stored(session: Session, setup: Setup, name: str) -> list[dict[str, Any]]:
    """Fills the directory that `direct-pool` leaves, if it is not there; returns the rows."""
    place = session.scratch / KEPT
    if place.exists():
        return []
    connector = _direct(setup, place, setup.pool)
    return fill_only(session, setup=setup, name=name, connector=connector)


def direct_disk(session: Session, *, setup: Setup) -> dict[str, Any]:
    """Measures a new process over the directory that `direct-pool` has left, with a small pool.

    The directory is removed: the disk has space for few of them.
    """
    rows = _stored(session, setup, "direct-disk")
    connector = _direct(setup, session.scratch / KEPT, setup.small_pool)
    found = second_engine(session, setup=setup, name="direct-disk", connector=connector)
    shutil.rmtree(session.scratch / KEPT, ignore_errors=True)
    return {**found, "rows": rows + found["rows"]}


def direct_serve(session: Session, *, setup: Setup) -> dict[str, Any]:
    """Measures a new process with a server over the directory that `direct-pool` has left.

    The first load of each prompt is from the server's disk, the others are from its pool.
    """
    name = "direct-serve"
    rows = _stored(session, setup, name)
    with serving(session, setup, name, session.scratch / KEPT) as server:
        connector = of_dalsegno(server.path, "direct", cpu_bytes_to_use=64 * MIB)
        found = second_engine(
            session, setup=setup, name=name, connector=connector, first="load from its disk"
        )
        held = held_by_clients(server)
    return {**found, "rows": rows + found["rows"], "server_afterwards": held}


def tiered_serve(session: Session, *, setup: Setup) -> dict[str, Any]:
    """Measures the tiered path: a new process loads from the pool of a server."""
    name = "tiered-serve"
    with (
        session.folder(name) as place,
        serving(session, setup, name, place / "store") as server,
    ):
        size = max(64 * MIB, setup.pool // 2)
        connector = of_dalsegno(server.path, "tiered", cpu_bytes_to_use=size)
        rows = fill_only(session, setup=setup, name=name, connector=connector)
        found = second_engine(session, setup=setup, name=name, connector=connector)
        held = held_by_clients(server)
    return {**found, "rows": rows + found["rows"], "server_afterwards": held}


def serving(session: Session, setup: Setup, name: str, place: Path) -> Serving:
    """Starts a server whose pool has all prompts."""
    settings: dict[str, object] = {
        "dram": setup.pool,
        "dram_admission": "put",
        "capacity": setup.capacity,
    }
    return Serving(place, settings, session.out / "logs" / f"{name}-server.log")


def held_by_clients(server: Serving) -> dict[str, Any]:
    """Returns what the server still keeps for its clients, a while after they have ended."""
    idle = server.wait_idle(LEASES_S)
    return {key: idle[key] for key in ("leases", "view_bytes", "clients")}


def fs_tier(session: Session, *, setup: Setup) -> dict[str, Any]:
    """Measures vLLM's `fs` tier: a new process loads from its files."""
    with session.folder("fs-tier") as place:
        connector = of_vllm(setup.pool, place / "files")
        rows = fill_only(session, setup=setup, name="fs-tier", connector=connector)
        found = second_engine(session, setup=setup, name="fs-tier", connector=connector)
    return {**found, "rows": rows + found["rows"]}


def with_runner(prefix: str, *, second_runner: bool, asynchronous: bool) -> Start:
    """Returns how an engine with one of vLLM's model runners is started, named after that.

    Args:
        prefix: Of its name.
        second_runner: Whether it has the second one.
        asynchronous: Whether a step is scheduled before the one before it has ended.
    """
    name = f"{prefix}-v{2 if second_runner else 1}-{'async' if asynchronous else 'sync'}"
    environment = {"VLLM_USE_V2_MODEL_RUNNER": str(int(second_runner))}
    return Start(name, None, {"async_scheduling": asynchronous}, environment)


def with_runners(prefix: str, run: Callable[..., Any], expect_s: float) -> list[Described]:
    """Returns cells of engines with each model runner, with and without asynchronous scheduling.

    Args:
        prefix: Of their names.
        run: Measures, given the start of its engine.
        expect_s: How long one takes on a GPU machine, in seconds.
    """
    starts = [
        with_runner(prefix, second_runner=second, asynchronous=asynchronous)
        for second in (True, False)
        for asynchronous in (True, False)
    ]
    return [(start.name, functools.partial(run, start=start), expect_s) for start in starts]


def cells_of(every: Sequence[Described], needs_gpu: Sequence[str], *, tiny: bool) -> list[Cell]:
    """Returns the cells of engines.

    Args:
        every: Their names, what measures them, and how long they take on a GPU machine.
        needs_gpu: Names of those that a CPU cannot run.
        tiny: Whether the engines run a tiny model on the CPU.
    """
    setup = setup_of(tiny=tiny)
    return [
        Cell(name, functools.partial(run, setup=setup), 0.5 * expect_s if tiny else expect_s)
        for name, run, expect_s in every
        if not (tiny and name in needs_gpu)
    ]


# vLLM's own tiers copy between host memory and a GPU only.
NEEDS_GPU = ("cpu-tier", "fs-tier")


def cells(*, tiny: bool) -> list[Cell]:
    """Returns the cells, the most valuable first."""
    every = (
        ("plain", plain, 75),
        ("cpu-tier", cpu_tier, 80),
        ("direct-pool", direct_pool, 90),
        ("direct-serve", direct_serve, 95),
        ("auto-pool", auto_pool, 90),
        ("auto-disk", auto_disk, 80),
        ("direct-disk", direct_disk, 75),
        ("tiered-serve", tiered_serve, 150),
        ("fs-tier", fs_tier, 160),
    )
    return cells_of(every, NEEDS_GPU, tiny=tiny)
