"""How full a pool gets with blocks of nine sizes."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import dalsegno
from dalsegno_bench.disk.log import aligned
from dalsegno_bench.pool.processes import serving
from dalsegno_bench.pool.workset import Dose, hash_of

__all__ = ["fill", "weights"]

# Multiples of 64 KiB, the unit of a pool, so that `dram_bytes` has no rounding.
SIZES_KIB = (64, 128, 320, 512, 1024, 1280, 2304, 4096, 8192)
WEIGHTS = (8, 6, 6, 6, 4, 3, 2, 2, 1)
# Puts after which the weights are turned around, as when another model is served.
SHIFT_PUTS = 200
SAMPLE_PUTS = 8
# Of the puts, one in so many is followed by a use of an earlier block.
USE_ONE_IN = 5


def weights(put: int) -> tuple[int, ...]:
    """Returns how likely each size is for a put."""
    return WEIGHTS[:: -1 if put // SHIFT_PUTS % 2 else 1]


def fill(folder: Path, dose: Dose) -> dict[str, Any]:
    """Puts blocks of nine sizes, many times what the pool has; returns how full it was.

    Args:
        folder: Where the store goes.
        dose: Size of the pool, which is half that of others, and how much is put.
    """
    pool_bytes = dose.pool_bytes // 2
    capacity = 4 * pool_bytes + (1 << 30)
    with serving(folder, pool_bytes, capacity) as (_, path), dalsegno.open(path) as store:
        return _fill(store, pool_bytes, dose.fill_pools * pool_bytes)


def _fill(store: dalsegno.Store, pool_bytes: int, wanted_bytes: int) -> dict[str, Any]:
    namespaces = [
        store.namespace({"bench": "pool", "size": str(kib)}, layers=1, slice_bytes=kib << 10)
        for kib in SIZES_KIB
    ]
    memory, choose = aligned(SIZES_KIB[-1] << 10), random.Random(7)  # noqa: S311 - test data
    put_bytes = puts = 0
    samples: list[tuple[int, float]] = []
    done: list[tuple[dalsegno.Namespace, bytes]] = []
    while put_bytes < wanted_bytes:
        namespace = choose.choices(namespaces, weights(puts))[0]
        chain = [hash_of(puts)]
        put_bytes += namespace.block_bytes
        assert namespace.put_batch(chain, [memory[: namespace.block_bytes]]).stored == 1
        done.append((namespace, chain[0]))
        if choose.randrange(USE_ONE_IN) == 0:
            used, name = choose.choice(done[-100:])
            used.probe([name])
        puts += 1
        if puts % SAMPLE_PUTS == 0:
            samples.append((put_bytes, store.stats()["dram_bytes"] / pool_bytes))
    stats = store.stats()
    # It is full long before, and steady after a third.
    steady = [share for put, share in samples if 3 * put > wanted_bytes]
    return {
        "arena_full": round(statistics.median(steady), 4),
        "arena_full_least": round(min(steady), 4),
        "throttled_share": round(stats["dram_throttled_blocks"] / puts, 5),
        "full_puts": puts,
        "full_evicted_blocks": stats["dram_evicted_blocks"],
    }
