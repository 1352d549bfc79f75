"""Probes of space: a disk that others fill, a cache that is full, and a bound that must hold."""

from __future__ import annotations

import math
import statistics
import time

from dalsegno_bench.faultbench import disk
from dalsegno_bench.faultbench.blocks import batches
from dalsegno_bench.faultbench.cell import BATCH_BLOCKS, Cell, Probe
from dalsegno_bench.faultbench.disk import MIB

__all__ = ["PROBES"]

DISK_BYTES, DISK_CAPACITY, LEFT_BYTES = 192 * MIB, 96 * MIB, 1 * MIB
RECOVERY_S = 6.0
SMALL_BLOCK, SMALL_CAPACITY, SMALL_BATCH = 4096, 32 * MIB, 32
TIMED = 60
# A put on a full cache may take so many seconds; the limit of every call is higher.
SLOW_PUT_S = 5.0
OLD, PINNED_PUTS, ACCEPT_S = 64, 24, 4.0


def _no_space(cell: Cell) -> None:
    """Fills the disk under an open store; later frees the space."""
    with disk.small(cell.directory, DISK_BYTES) as mounted:
        cell.directory, cell.capacity_bytes = mounted / "store", DISK_CAPACITY
        cell.directory.mkdir()
        try:
            _fill_and_free(cell)
        finally:
            cell.close()
            cell.find_left_over()


def _fill_and_free(cell: Cell) -> None:
    cell.open()
    early = cell.put(cell.names("early", 8 * BATCH_BLOCKS))
    before = cell.held()
    ballast = disk.fill(cell.directory.parent, LEFT_BYTES)
    kept: list[bytes] = []
    refused: list[bytes] = []
    for batch in batches(cell.names("full", 32 * BATCH_BLOCKS), BATCH_BLOCKS):
        kept_now = cell.put_timed(batch)[0]
        # A store may evict older blocks for newer ones, but not what it just acknowledged.
        cell.lose(
            set(kept_now) - set(cell.get(kept_now)),
            "were acknowledged on a full disk, and are lost",
        )
        kept += kept_now
        refused += [key for key in batch if key not in kept_now]
    cell.get(early)
    cell.outcome.figures["refused_blocks"] = len(refused)
    ballast.unlink()
    wanted = [*early, *kept, *refused]
    end = time.monotonic() + RECOVERY_S
    while True:
        there = set(cell.get(wanted))
        cell.put([key for key in wanted if key not in there])
        left = set(wanted) - set(cell.get(wanted))
        if not left or time.monotonic() > end:
            break
        time.sleep(0.5)
    cell.lose(left, "cannot be stored though there is space again")
    cell.compare_held(before)


def _paced(cell: Cell, keys: list[bytes]) -> int:
    """Puts blocks no faster than the store can evict; returns the most bytes on disk."""
    step = max(1, int(cell.facts["rate"] * cell.capacity_bytes / cell.block_bytes / BATCH_BLOCKS))
    most = 0
    for number, batch in enumerate(batches(keys, BATCH_BLOCKS), 1):
        kept = cell.put_timed(batch)[0]
        cell.lose(set(kept) - set(cell.get(kept)), "were just acknowledged, and are lost")
        if number % step == 0:
            most = max(most, disk.used_bytes(cell.directory))
            cell.settle()
    return max(most, disk.used_bytes(cell.directory))


def _over(cell: Cell, most: int) -> None:
    """Counts whole MiB over the capacity."""
    cell.outcome.figures["most_mib"] = round(most / MIB, 1)
    cell.outcome.figures["capacity_mib"] = round(cell.capacity_bytes / MIB, 1)
    bound = "" if cell.facts["bounded"] else ", of a store without a bound"
    cell.leak((most - cell.capacity_bytes) // MIB, f"MiB over the capacity{bound}")


def _overrun(cell: Cell) -> None:
    """Puts twice the capacity; the files must keep within it all the time."""
    cell.open()
    count = 2 * cell.capacity_bytes // cell.block_bytes
    _over(cell, _paced(cell, cell.names("overrun", count)))
    last = cell.names("last", BATCH_BLOCKS)
    cell.settle()
    if not cell.put(last):
        cell.hang("a full store takes no put any more")


def _forgotten(cell: Cell) -> None:
    """Fills a store, starts it again, fills it again: the bound holds across starts."""
    most = 0
    count = cell.capacity_bytes // cell.block_bytes
    for number, part in enumerate((0.75, 0.5, 0.5)):
        cell.open()
        most = max(most, _paced(cell, cell.names(f"start {number}", int(part * count))))
        cell.close()
    _over(cell, most)


def _full_cost(cell: Cell) -> None:
    """Compares the time of a put in an empty store with that in a full one of many objects."""
    cell.block_bytes, cell.capacity_bytes = SMALL_BLOCK, SMALL_CAPACITY
    cell.open()
    count = math.ceil(1.5 * cell.capacity_bytes / SMALL_BLOCK)
    parts = batches(cell.names("small", count), SMALL_BATCH)
    step = max(1, int(cell.facts["rate"] * cell.capacity_bytes / SMALL_BLOCK / SMALL_BATCH))
    seconds, refused = [], 0
    for number, batch in enumerate(parts, 1):
        kept, took = cell.put_timed(batch)
        refused += len(batch) - len(kept)
        if kept:
            seconds.append(took)
        if took > SLOW_PUT_S:
            cell.hang(f"a put of {SMALL_BATCH} blocks of 4 KiB took {took:.1f} s")
        if number % step == 0:
            cell.settle()
    empty, full = (statistics.median(part) for part in (seconds[:TIMED], seconds[-TIMED:]))
    cell.outcome.figures |= {
        "empty_ms": round(1000 * empty, 3),
        "full_ms": round(1000 * full, 3),
        "ratio": round(full / empty, 2),
        "objects": count,
        "refused_blocks": refused,
    }


def _pinned(cell: Cell) -> None:
    """Asks a full store for old blocks again and again; it must go on taking new ones."""
    cell.open()
    count = int(1.2 * cell.capacity_bytes / cell.block_bytes)
    keys = cell.names("old", count)
    _paced(cell, keys)
    old = cell.exists(keys)[:OLD]
    cell.outcome.figures["asked_for_blocks"] = len(old)
    waits = 0
    for batch in batches(cell.names("new", PINNED_PUTS * BATCH_BLOCKS), BATCH_BLOCKS):
        end = time.monotonic() + ACCEPT_S
        while True:
            for _ in range(4):
                cell.exists(old)
            if cell.put(batch):
                break
            if time.monotonic() > end:
                cell.hang("a put was refused for as long as old blocks were asked for")
                return
            waits += 1
            time.sleep(0.1)
    cell.outcome.figures["refused_puts"] = waits


PROBES = (
    Probe("no-space", "the disk fills up, then has space again", _no_space),
    Probe("full-cost", "puts into a full store of many small objects", _full_cost),
    Probe("overrun", "twice the capacity is put", _overrun),
    Probe("forgotten", "a nearly full store is started again, twice, and filled", _forgotten),
    Probe("pinned", "old blocks are looked up all the time while a full store is put to", _pinned),
)
