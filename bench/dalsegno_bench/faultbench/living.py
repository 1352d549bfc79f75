"""Probes of process and load: the process is killed, and far too many calls come together."""

from __future__ import annotations

import time

from dalsegno_bench.faultbench.blocks import batches
from dalsegno_bench.faultbench.cell import BATCH_BLOCKS, Cell, Probe
from dalsegno_bench.faultbench.disk import MIB

__all__ = ["PROBES"]

KILLS, KILL_BATCHES = 6, 12
# A kill comes at most so many seconds after so many batches of a round were answered.
FIRST_BATCHES, KILL_AFTER_S = 2, 0.05
STAGED_BATCHES, STAGED_BLOCKS = 96, 16
STAGED_CAPACITY = 384 * MIB
STAGED_LIMIT_S = 60.0


def kill_while_it_puts(cell: Cell, kills: int, within_s: float) -> tuple[list[bytes], list[bytes]]:
    """Opens the store and kills it while it puts, again and again.

    Args:
        cell: The store.
        kills: How often.
        within_s: It is killed at most so many seconds after its first batches are there.

    Returns:
        The blocks that it acknowledged, and all that it was asked to put.
    """
    kept: list[bytes] = []
    asked: list[bytes] = []
    for number in range(kills):
        cell.open()
        parts = batches(cell.names(f"round {number}", KILL_BATCHES * BATCH_BLOCKS), BATCH_BLOCKS)
        for batch in parts:
            cell.send("put", batch)
        answers = [cell.answer("put") for _ in range(FIRST_BATCHES)]
        time.sleep(cell.chance.uniform(0, within_s))
        answers += cell.kill()
        for batch, (acknowledged, _) in zip(parts, answers, strict=False):
            kept += [key for key, done in zip(batch, acknowledged, strict=True) if done]
        asked += [key for batch in parts for key in batch]
    return kept, asked


def _kill(cell: Cell) -> None:
    """Kills the store while it puts, opens it again, and asks for all it had acknowledged."""
    kept, asked = kill_while_it_puts(cell, KILLS, KILL_AFTER_S)
    cell.open()
    came = set(cell.get(asked))
    cell.lose(set(kept) - came, "were acknowledged, and lost by the kill")
    cell.outcome.figures["acknowledged_blocks"] = len(kept)
    gone = [key for key in asked if key not in came]
    cell.put(gone)
    cell.lose(set(gone) - set(cell.get(gone)), "cannot be stored after a kill")
    cell.close()
    cell.find_left_over()


def _stage(cell: Cell) -> None:
    """Puts, then gets, far more bytes at a time than a store stages; then all works as before."""
    cell.capacity_bytes = STAGED_CAPACITY
    cell.open()
    first = cell.names("first", BATCH_BLOCKS)
    cell.put(first)
    cell.get(first)
    before = cell.held()
    parts = batches(cell.names("staged", STAGED_BATCHES * STAGED_BLOCKS), STAGED_BLOCKS)
    began = time.perf_counter()
    kept = cell.put_all(parts, STAGED_LIMIT_S)
    cell.outcome.figures["put_seconds"] = round(time.perf_counter() - began, 2)
    cell.outcome.figures["refused_blocks"] = STAGED_BATCHES * STAGED_BLOCKS - len(kept)
    began = time.perf_counter()
    came = set(cell.get_all(parts, STAGED_LIMIT_S))
    cell.outcome.figures["get_seconds"] = round(time.perf_counter() - began, 2)
    # What was refused or throttled for load is no loss: it must work when asked for alone.
    missing = [key for key in kept if key not in came]
    cell.lose(set(missing) - set(cell.get(missing)), "were acknowledged under load, and are lost")
    after = cell.names("after", 4 * BATCH_BLOCKS)
    cell.lose(set(after) - set(cell.put(after)), "cannot be stored after the load")
    cell.lose(set(after) - set(cell.get(after)), "were stored after the load, and are lost")
    cell.compare_held(before)
    cell.close()
    cell.find_left_over()


PROBES = (
    Probe("kill", "the process is killed while it puts, six times", _kill),
    Probe("staging", "96 MiB are put, then got, all at a time", _stage),
)
