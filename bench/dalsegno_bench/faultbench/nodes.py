"""Probes of two nodes that share a file system or a bucket: one puts, the other one gets.

Each store of a file system of its own: GlusterFS with two bricks and two mounts, A and B. The store
is opened at A and at B, in a process each, while the probe damages the files of the shared folder,
kills a node, or stops the servers. A get must bring the right bytes or a miss, and end in time. The
objects of a bucket are files of its server, versitygw.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from dalsegno_bench.faultbench import damaging
from dalsegno_bench.faultbench.blocks import batches
from dalsegno_bench.faultbench.cell import BATCH_BLOCKS, Cell, EndedError, Outcome
from dalsegno_bench.faultbench.damage import Files
from dalsegno_bench.faultbench.living import kill_while_it_puts
from dalsegno_bench.faultbench.remote import FailedError, Origin
from dalsegno_bench.shared_fs.mounts import SharedFs
from dalsegno_bench.shared_fs.processes import until

__all__ = ["PROBES", "PROBES_OF_BUCKETS", "NodeProbe", "Nodes", "run"]

BLOCKS, READ_BEFORE, VICTIMS = 96, 24, 6
KILLS, KILL_AFTER_S = 4, 0.3
# A stopped server goes on after this time in any case: no signal ends a process that waits for it.
STOPPED_S = 30.0
STOPPED_GETS = 3


class Nodes:
    """A store at two nodes.

    Attributes:
        a: The store at mount A.
        b: The store at mount B; both share one outcome.
        fs: The file system.
    """

    def __init__(self, origin: Origin, fs: SharedFs, name: str, seed: int) -> None:
        (fs.a / name).mkdir()
        until("B sees the folder", (fs.b / name).is_dir)
        self.fs = fs
        self.a, self.b = (Cell(origin, mount / name, seed) for mount in fs.pair)
        self.b.share(self.a)

    @property
    def cells(self) -> tuple[Cell, Cell]:
        """Both nodes."""
        return self.a, self.b

    def open(self) -> None:
        """Opens the store at both nodes."""
        for cell in self.cells:
            cell.open()

    def close(self) -> None:
        """Closes the store at both nodes."""
        for cell in self.cells:
            cell.close()

    def find(self, cell: Cell, keys: Sequence[bytes]) -> set[bytes]:
        """Gets blocks at a node, again after its housekeeping if some do not come at first."""
        came = set(cell.get(keys))
        left = [key for key in keys if key not in came]
        if left:
            cell.settle()
            came |= set(cell.get(left))
        return came

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops the servers that hold the bytes, for a bounded time."""
        resume = threading.Timer(STOPPED_S, self._resume)
        resume.start()
        try:
            for server in self.fs.storage:
                server.pause()
            yield
        finally:
            resume.cancel()
            self._resume()

    def _resume(self) -> None:
        for server in self.fs.storage:
            server.resume()


def _delete(cell: Cell, files: Files, victims: list[bytes]) -> set[bytes]:
    """Deletes the files of some victims."""
    del cell
    touched: set[bytes] = set()
    for key in victims[: damaging.FILE_VICTIMS]:
        for file in {place.file for place in files.places[key]}:
            touched |= set(files.holding(file))
            file.unlink(missing_ok=True)
    return touched


def _damage(harm: damaging.Harm, nodes: Nodes) -> None:
    """Damages what A put, while both nodes are open and B has read some of it."""
    a, b = nodes.cells
    keys = a.names("shared", BLOCKS)
    nodes.open()
    kept = a.put(keys)
    if len(kept) < len(keys):
        a.note(f"blocks that were refused before any fault: {len(keys) - len(kept)}")
    b.settle()
    b.get(kept[:READ_BEFORE])
    files = Files(a.directory, kept, a.block_bytes, a.facts["pieces"])
    there = [key for key in kept if files.places[key]]
    victims = a.chance.sample(there, VICTIMS) if len(there) >= VICTIMS else []
    touched = harm(a, files, victims) if victims else set()
    if not touched:
        a.outcome.skipped = "its blocks were not found in the shared files: nothing was damaged"
        return
    a.outcome.figures["touched_blocks"] = len(touched)
    came = nodes.find(b, kept)
    b.lose(set(kept) - touched - came, "the fault did not touch, and that the other node lost")
    # The node that missed them computes them again.
    gone = [key for key in kept if key not in came]
    b.put(gone)
    b.lose(set(gone) - set(b.get(gone)), "cannot be stored again")
    nodes.close()
    a.open()
    a.settle()
    # What B read from a file that it had open, nobody stored again.
    whole = (set(kept) - touched) | set(gone)
    a.lose(whole - nodes.find(a, kept), "a new node does not find")


def _kill(nodes: Nodes) -> None:
    """Kills A while it puts, again and again; B asks for all that A acknowledged."""
    a, b = nodes.cells
    b.open()
    kept, asked = kill_while_it_puts(a, KILLS, KILL_AFTER_S)
    b.settle()
    came = nodes.find(b, asked)
    b.lose(set(kept) - came, "were acknowledged, and lost by the kill")
    b.outcome.figures["acknowledged_blocks"] = len(kept)
    gone = [key for key in asked if key not in came]
    b.put(gone)
    b.lose(set(gone) - set(b.get(gone)), "cannot be stored after a kill")
    nodes.close()
    a.find_left_over()


def _stop(nodes: Nodes) -> None:
    """Stops all servers while A puts and B gets; then all goes on."""
    a, b = nodes.cells
    nodes.open()
    kept = a.put(a.names("before", BLOCKS))
    b.settle()
    b.get(kept[:READ_BEFORE])
    with nodes.stopped():
        for part in batches(kept, BATCH_BLOCKS)[-STOPPED_GETS:]:
            b.get(part)
        a.put(a.names("meanwhile", BATCH_BLOCKS))
    end = time.monotonic() + STOPPED_S
    left = set(kept)
    while left and time.monotonic() < end:
        b.settle()
        left -= set(b.get([key for key in kept if key in left]))
    b.lose(left, "do not come back with the servers")


def _lose_mount(nodes: Nodes) -> None:
    """Kills the client behind B's mount: every access to the shared folder fails there."""
    a, b = nodes.cells
    nodes.open()
    kept = a.put(a.names("before", BLOCKS))
    b.settle()
    b.get(kept[:READ_BEFORE])
    nodes.fs.clients[1].kill()
    b.get(kept)
    b.put(b.names("after", BATCH_BLOCKS))
    b.get(b.names("after", BATCH_BLOCKS))
    # The other node is not concerned.
    a.lose(set(kept) - nodes.find(a, kept), "the node whose mount works lost")


@dataclass(frozen=True)
class NodeProbe:
    """A kind of fault of two nodes.

    Attributes:
        name: Its name in the table.
        summary: What it does, in a line.
        work: Does it.
    """

    name: str
    summary: str
    work: Callable[[Nodes], None]


# The last one leaves the file system without a mount.
PROBES: tuple[NodeProbe, ...] = (
    NodeProbe("kill", "the node that puts is killed, four times", _kill),
    NodeProbe(
        "bit-flip", "a bit of each of six shared blocks flips", partial(_damage, damaging.flip)
    ),
    NodeProbe("truncation", "shared files end in a block", partial(_damage, damaging.cut)),
    NodeProbe("zero-length", "shared files are empty", partial(_damage, damaging.empty)),
    NodeProbe("swapped", "shared files trade names", partial(_damage, damaging.swap)),
    NodeProbe("deleted", "shared files are deleted", partial(_damage, _delete)),
    NodeProbe("stopped", "the servers stop for a while", _stop),
    NodeProbe("mount-gone", "the mount of the node that gets fails", _lose_mount),
)


# A bucket is not mounted.
PROBES_OF_BUCKETS = PROBES[:-1]


def run(probe: NodeProbe, origin: Origin, fs: SharedFs, seed: int) -> Outcome:
    """Probes a store in an empty shared folder; whatever it does, there is an outcome."""
    nodes = Nodes(origin, fs, probe.name, seed)
    try:
        probe.work(nodes)
        nodes.close()
    except EndedError:
        pass
    except FailedError as error:
        nodes.a.hang(f"the store does not open: {error}")
    finally:
        for cell in nodes.cells:
            cell.kill_if_open()
    return nodes.a.sum_up()
