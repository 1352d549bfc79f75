"""How long it takes from a put at one host to the first hit at another, with the defaults."""

from __future__ import annotations

import math
import random
import statistics
import time
from pathlib import Path
from typing import Any

import dalsegno
from dalsegno_bench.far.node import BLOCK_BYTES, chains, namespace_of
from dalsegno_bench.far.places import BucketPlace, Place

__all__ = ["measure", "quantile"]

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
