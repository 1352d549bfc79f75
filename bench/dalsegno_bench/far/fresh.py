"""How long it takes from a put at one host to the first hit at another, with the defaults."""

from __future__ import annotations

import math
import random
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dalsegno
from dalsegno_bench.far.node import BLOCK_BYTES, chains, namespace_of
from dalsegno_bench.far.places import BucketPlace, Place

__all__ = ["measure", "measure_idle", "quantile"]

# Puts come at random moments, on average so far apart.
PAUSE_S = 1.5
STEP_S = 0.02
LIMIT_S = 60.0


def quantile(values: list[float], share: float) -> float:
    """Returns the value below which a share of the values are, the largest for a share of 1."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def measure(place: Place | BucketPlace, local: Path, keys: int) -> dict[str, Any]:
    """Puts blocks at random moments on A, and asks B for each until it loads it.

    Args:
        place: The far directory.
        local: Where the stores keep their logs.
        keys: How many blocks.

    Returns:
        Seconds from the start of the put to the end of the first get that hits.
    """
    at_a, at_b = place.folder("fresh")
    settings = {"capacity": "512MiB", "dram": 0}
    with (
        dalsegno.open(local / "fresh-a", far=str(at_a), **settings) as a,
        dalsegno.open(local / "fresh-b", far=str(at_b), **settings) as b,
    ):
        writer, reader = namespace_of(a), namespace_of(b)
        found = _samples(writer, reader, keys)
    place.remove("fresh")
    return {
        "fresh_p50_s": round(statistics.median(found), 2),
        "fresh_p99_s": round(quantile(found, 0.99), 2),
        "fresh_max_s": round(max(found), 2),
        "fresh_samples": len(found),
    }


def measure_idle(
    place: Place | BucketPlace, local: Path, hosts: int, idle_s: float
) -> dict[str, Any]:
    """Puts a block on A after an idle time, and asks other hosts, each of them for the first time.

    Args:
        place: The far location.
        local: Where the stores keep their logs.
        hosts: How many hosts are asked.
        idle_s: How long nothing is put and no host is asked.

    Returns:
        Seconds from the start of the put to the end of the first get that hits, of each host.
    """
    at_a, at_b = place.folder("idle")
    settings = {"capacity": "512MiB", "dram": 0}
    key, out = next(chains("idle", 1, 1)), [bytearray(BLOCK_BYTES)]
    with ExitStack() as opened:
        writer = opened.enter_context(dalsegno.open(local / "idle-a", far=str(at_a), **settings))
        readers = []
        for host in range(hosts):
            path = local / f"idle-{host}"
            store = opened.enter_context(dalsegno.open(path, far=str(at_b), **settings))
            readers.append(namespace_of(store))
            # Hosts do not poll at the same moment.
            time.sleep(idle_s / 60 / hosts)
        time.sleep(idle_s)
        began, found = time.perf_counter(), list[float]()
        namespace_of(writer).put_batch(key, [key[0] * (BLOCK_BYTES // len(key[0]))])
        while readers and time.perf_counter() < began + LIMIT_S:
            waiting = [one for one in readers if one.get_batch(key, out) != 1]
            found += [time.perf_counter() - began] * (len(readers) - len(waiting))
            readers = waiting
            time.sleep(STEP_S)
        if readers:
            raise TimeoutError(f"{len(readers)} hosts did not find a block within {LIMIT_S:.0f} s")
    place.remove("idle")
    return {
        "idle_p50_s": round(statistics.median(found), 2),
        "idle_max_s": round(max(found), 2),
        "idle_hosts": len(found),
    }


def _samples(writer: dalsegno.Namespace, reader: dalsegno.Namespace, keys: int) -> list[float]:
    chance = random.Random(1)  # noqa: S311 - no secret
    left = [chain[0] for chain in chains("fresh", keys, 1)]
    waiting: dict[bytes, float] = {}
    found: list[float] = []
    out = bytearray(BLOCK_BYTES)
    next_put, deadline = time.perf_counter(), time.perf_counter() + keys * PAUSE_S * 3 + LIMIT_S
    while left or waiting:
        now = time.perf_counter()
        if now > deadline:
            raise TimeoutError(f"{len(waiting)} blocks were not found by the other host")
        if left and now >= next_put:
            key = left.pop()
            waiting[key] = time.perf_counter()
            writer.put_batch([key], [key * (BLOCK_BYTES // len(key))])
            next_put = now + chance.uniform(0, 2 * PAUSE_S)
        for key in [one for one in waiting if reader.probe([one])]:
            if reader.get_batch([key], [out]) == 1:
                assert out[: len(key)] == key, "wrong bytes"
                found.append(time.perf_counter() - waiting.pop(key))
        time.sleep(STEP_S)
    return found
