"""Probes that damage files: bytes on a disk may come back different, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dalsegno_bench.faultbench.cell import Cell, Probe
from dalsegno_bench.faultbench.damage import Files
from dalsegno_bench.faultbench.remote import FailedError

__all__ = ["FILE_VICTIMS", "PROBES", "Harm", "cut", "empty", "flip", "swap"]

BLOCKS = 96
# How many blocks are hit by damage that touches one block, and by damage to whole files.
VICTIMS, FILE_VICTIMS = 6, 2

Harm = Callable[[Cell, Files, list[bytes]], set[bytes]]


def flip(cell: Cell, files: Files, victims: list[bytes]) -> set[bytes]:
    """Flips one bit of each victim."""
    return set().union(*(files.flip(key, cell.chance) for key in victims))


def cut(cell: Cell, files: Files, victims: list[bytes]) -> set[bytes]:
    """Truncates the files of some victims in the middle of the victim."""
    del cell
    return set().union(*(files.cut(key) for key in victims[:FILE_VICTIMS]))


def empty(cell: Cell, files: Files, victims: list[bytes]) -> set[bytes]:
    """Empties the files of some victims."""
    del cell
    return set().union(*(files.empty(key) for key in victims[:FILE_VICTIMS]))


def swap(cell: Cell, files: Files, victims: list[bytes]) -> set[bytes]:
    """Has two files trade names, and the blocks of other victims trade places."""
    touched = set()
    header_bytes = cell.facts["header_bytes"]
    for one, other in zip(victims[2::2], victims[3::2], strict=True):
        touched |= files.swap_records(one, other, header_bytes)
    return touched | files.swap_files(victims[0], victims[1])


def _damage(harm: Harm, cell: Cell) -> None:
    """Stores blocks, closes the store, does harm to its files, and sees what it makes of it."""
    keys = cell.names("damaged", BLOCKS)
    cell.open()
    kept = cell.put(keys)
    if len(kept) < len(keys):
        cell.note(f"blocks that were refused before any fault: {len(keys) - len(kept)}")
    cell.close()
    files = Files(cell.directory, kept, cell.block_bytes, cell.facts["pieces"])
    there = [key for key in kept if files.places[key]]
    touched = (
        harm(cell, files, cell.chance.sample(there, VICTIMS)) if len(there) >= VICTIMS else None
    )
    if not touched:
        cell.outcome.skipped = "its blocks were not found in its files, so nothing was damaged"
        return
    cell.outcome.figures["touched_blocks"] = len(touched)
    _look(cell, kept, touched)


def _look(cell: Cell, kept: list[bytes], touched: set[bytes]) -> None:
    """Gets everything twice, stores again what is gone, and gets everything in a new process."""
    try:
        cell.open()
    except FailedError as error:
        cell.note(f"the store does not open any more: {error}")
        cell.lose(kept, "cannot be stored again")
        return
    cell.exists(kept)
    came = set(cell.get(kept))
    again = came & set(cell.get(kept))
    cell.lose(set(kept) - touched - again, "the fault did not touch, and that are lost")
    gone = [key for key in kept if key not in again]
    cell.put(gone)
    cell.lose(set(gone) - set(cell.get(gone)), "cannot be stored again")
    cell.close()
    cell.open()
    cell.lose(set(kept) - set(cell.get(kept)), "are lost at the next start")


PROBES = (
    Probe("bit-flip", "one bit of each of six blocks flips on the disk", partial(_damage, flip)),
    Probe("truncation", "files end in the middle of a block", partial(_damage, cut)),
    Probe("swapped", "files trade names, and blocks places", partial(_damage, swap)),
    Probe("zero-length", "files are empty", partial(_damage, empty)),
)
