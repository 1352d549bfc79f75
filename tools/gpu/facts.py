"""Part `facts`: what the GPU and the driver can do, and that bytes are right.

Each cell uses a GPU through the driver's calls alone; see `driver.py`.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dalsegno
from gpu.cells import Cell, Session
from gpu.driver import Device
from gpu.pages import (
    WAIT_S,
    Cache,
    Noise,
    Shape,
    chain,
    fill,
    in_turn,
    namespace_of,
    saves,
    store_settings,
)
from gpu.serving import Serving

GIB = 1 << 30
REGISTER_S = 60.0
TUNED = (4096, 16_384, 32_768, 65_536, 131_072, 524_288)
# A process of its own: the log is complete when it has ended.
TUNING = """
import sys, dalsegno
for piece in sys.argv[2:]:
    dalsegno.Gpu(library=sys.argv[1] or None).tune(int(piece))
"""
_TUNED_LINE = re.compile(
    r'piece_bytes=(\d+) kernel_gb_per_s="?([\d.]+)"? engines_gb_per_s="?([\d.]+)"? way="?([a-z ]+)'
)
# Pages that are compared after each load.
COMPARED = 512


def shape_of(session: Session) -> Shape:
    """Returns the blocks of the checks: as of Llama-3-8B in bfloat16 with 16 tokens a block."""
    if session.is_small:
        return Shape(piece=4096, layers=4, blocks=24)
    return Shape(piece=32_768, layers=32, blocks=128)


def pool_bytes(session: Session, gib: int) -> int:
    """Returns the size of a pool."""
    return (64 << 20) if session.is_small else gib * GIB


def open_gpu(session: Session, device: Device) -> dalsegno.Gpu:
    """Returns the GPU as Dalsegno uses it, in pieces that a test crosses, too."""
    if not device.is_fake:
        return dalsegno.Gpu(library=session.library)
    return dalsegno.Gpu(library=session.library, piece_bytes=1 << 20)


def register(namespace: dalsegno.Namespace, gpu: dalsegno.Gpu, size: int) -> dict[str, Any]:
    """Has the GPU register a pool, and waits.

    Args:
        namespace: Of the store whose pool it is.
        gpu: The GPU.
        size: Bytes of the pool.

    Returns:
        `pool_bytes`, `registered_bytes`, `seconds`, `s_per_gib`, and the GPU's `refusals`.
    """
    before, started = gpu.facts()["registered_bytes"], time.monotonic()
    namespace.register_pool(gpu)
    while time.monotonic() < started + REGISTER_S:
        facts = gpu.facts()
        if not facts["registering"] and facts["registered_bytes"] > before:
            break
        if facts["refusals"] and not facts["registering"]:
            break
        time.sleep(0.001)
    seconds, found = time.monotonic() - started, gpu.facts()
    return {
        "pool_bytes": size,
        "registered_bytes": found["registered_bytes"] - before,
        "seconds": round(seconds, 4),
        "s_per_gib": round(seconds / (size / GIB), 4),
        "refusals": list(found["refusals"]),
    }


def driver(session: Session) -> dict[str, Any]:
    """Returns what the driver says of the GPU, and what `Gpu.tune` measures for some pieces."""
    with Device(session.library) as device:
        found = open_gpu(session, device).facts()
    library = str(session.library or "")
    done = subprocess.run(
        [sys.executable, "-c", TUNING, library, *map(str, TUNED)],
        env={**os.environ, "DALSEGNO_LOG": "info"},
        capture_output=True,
        text=True,
        check=True,
    )
    measured = [
        {
            "piece_bytes": int(piece),
            "kernel_gb_per_s": float(kernel),
            "engines_gb_per_s": float(engines),
            "way": way,
        }
        for piece, kernel, engines, way in _TUNED_LINE.findall(done.stderr)
    ]
    return {"facts": _plain(found), "tuning": measured}


def _plain(facts: dict[str, Any]) -> dict[str, Any]:
    """Returns facts as JSON can have them."""
    return {name: list(one) if isinstance(one, tuple) else one for name, one in facts.items()}


def own_pool(session: Session) -> dict[str, Any]:
    """Registers the pool of a store in this process, and copies blocks both ways."""
    shape, size = shape_of(session), pool_bytes(session, 4)
    with session.folder("own") as place, Device(session.library) as device:
        gpu = open_gpu(session, device)
        with dalsegno.open(place / "store", **store_settings(shape, size)) as store:
            return _check(device, gpu, store, shape, size)


def served_pool(session: Session) -> dict[str, Any]:
    """Registers the pool of a server, which this process maps read-only, and does the same."""
    shape, size = shape_of(session), pool_bytes(session, 8)
    with session.folder("served") as place, Device(session.library) as device:
        settings = store_settings(shape, size)
        log = session.out / "logs" / "facts-served.log"
        with Serving(place / "store", settings, log) as server:
            gpu = open_gpu(session, device)
            with dalsegno.open(server.path) as store:
                found = _check(device, gpu, store, shape, size)
            idle = server.wait_idle(5.0)
        return {**found, "server_leases_afterwards": idle["leases"]}


def _check(
    device: Device, gpu: dalsegno.Gpu, store: dalsegno.Store, shape: Shape, size: int
) -> dict[str, Any]:
    """Registers the pool of a store, copies blocks both ways, and compares them."""
    noise, names = Noise(shape), chain("facts", shape.blocks)
    namespace, cache = namespace_of(store, shape), Cache(device, gpu, shape, noise)
    fill(namespace, names, noise)
    registration = register(namespace, gpu, size)
    wrong = {
        "lease": _lease_load(namespace, cache, names, shape),
        "ordered": _ordered_load(namespace, cache, names, shape),
        "load": _load(namespace, cache, names),
        "save by layer": _save(store, namespace, cache, shape, by_layer=True),
        "save": _save(store, namespace, cache, shape, by_layer=False),
    }
    facts = gpu.facts()
    return {
        "ok": not any(wrong.values()) and not device.violations(),
        "registration": registration,
        "wrong_pages": wrong,
        "violations": device.violations(),
        "buffered_bytes": facts["buffered_bytes"],
    }


def _lease_load(
    namespace: dalsegno.Namespace, cache: Cache, names: list[bytes], shape: Shape
) -> int:
    """Loads from a lease; returns how many pages are wrong, or all if blocks are missing."""
    cache.write_all(is_right=False)
    with namespace.lease(names, timeout_s=WAIT_S) as lease:
        load = lease.load(cache.pages(), timeout_s=WAIT_S)
        load.wait(WAIT_S)
        is_whole = load.result() == shape.blocks == lease.valid_blocks()
    return cache.wrong_pages(COMPARED) if is_whole else shape.blocks


def _ordered_load(
    namespace: dalsegno.Namespace, cache: Cache, names: list[bytes], shape: Shape
) -> int:
    """Reads each layer in the engine's stream as soon as it is ordered; returns wrong pages."""
    cache.write_all(is_right=False)
    wrong = 0
    with namespace.lease(names, timeout_s=WAIT_S) as lease:
        load = lease.load(cache.pages(), timeout_s=WAIT_S)
        for layer in range(shape.layers):
            if not load.order_layer(layer, cache.stream, timeout_s=WAIT_S):
                return shape.blocks
            drawn = (0, shape.blocks // 2, shape.blocks - 1)
            wrong += sum(cache.wrong(block, layer) for block in drawn)
        load.wait(WAIT_S)
        return wrong if load.result() == shape.blocks else shape.blocks


def _load(namespace: dalsegno.Namespace, cache: Cache, names: list[bytes]) -> int:
    """Loads without a lease; returns wrong pages."""
    cache.write_all(is_right=False)
    load = namespace.load(names, cache.pages(), timeout_s=WAIT_S)
    load.wait(WAIT_S)
    return cache.wrong_pages(COMPARED) if load.result() == len(names) else len(names)


def _save(
    store: dalsegno.Store,
    namespace: dalsegno.Namespace,
    cache: Cache,
    shape: Shape,
    *,
    by_layer: bool,
) -> int:
    """Saves pages that are written late, and gets them back; returns wrong blocks."""
    names, noise = chain(f"saved {by_layer}", shape.blocks), Noise(shape)
    cache.write_all(is_right=False)
    begun = saves(namespace, cache, names, store.limits()["extent_bytes"])
    for layer in range(shape.layers):
        for block in range(shape.blocks):
            cache.write(block, layer)
        after = cache.point()
        if by_layer:
            in_turn(
                functools.partial(writer.submit_store_layer, layer, pages, after=after)
                for writer, pages in begun
            )
    if not by_layer:
        in_turn(
            functools.partial(writer.submit_store_blocks, pages, after=after)
            for writer, pages in begun
        )
    for writer, _ in begun:
        writer.commit(timeout_s=WAIT_S)
    right = noise.blocks(0, shape.blocks)
    out = [bytearray(shape.block_bytes) for _ in names]
    there = namespace.get_each(names, out)
    return sum(
        not has or bytes(one) != right[at].tobytes()
        for at, (has, one) in enumerate(zip(there, out, strict=True))
    )


def machine(session: Session) -> dict[str, Any]:
    """Returns what limits the machine sets: memory, disk, locked memory."""
    import resource

    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    memory = dict(line.split(":", 1) for line in lines)
    disk = _disk_speed(session)
    return {
        "memory": {name: memory[name].strip() for name in ("MemTotal", "MemAvailable", "Shmem")},
        "memlock_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "kernel": Path("/proc/version").read_text(encoding="ascii").split()[2],
        "disk": disk,
    }


def _disk_speed(session: Session) -> dict[str, float]:
    """Measures puts and gets of a store without a pool, in GB/s."""
    shape = Shape(piece=32_768, layers=32, blocks=8 if session.is_small else 1024)
    noise, names = Noise(shape), chain("disk", shape.blocks)
    with session.folder("disk") as place:
        settings = {**store_settings(shape, 0), "dram": 0}
        with dalsegno.open(place / "store", **settings) as store:
            namespace = namespace_of(store, shape)
            rows = list(noise.blocks(0, shape.blocks))
            started = time.perf_counter()
            namespace.put_batch(names, rows)
            put_s = time.perf_counter() - started
            started = time.perf_counter()
            hits = namespace.get_batch(names, rows)
            get_s = time.perf_counter() - started
            assert hits == shape.blocks, f"{hits} of {shape.blocks} blocks came back"
    total = shape.total_bytes / 1e9
    return {"put_gb_per_s": round(total / put_s, 2), "get_gb_per_s": round(total / get_s, 2)}


CELLS = (
    Cell("driver", driver, 15),
    Cell("own", own_pool, 30),
    Cell("served", served_pool, 40),
    Cell("machine", machine, 20),
)
