"""Part `transfers`: how fast blocks move between a pool and the GPU, by the size of their pieces.

A cell is one size with one kind of pool: `own`, of a store in this process, or `served`, of a
server, which this process maps read-only. Rates are medians of several copies, in 10**9 bytes per
second.
"""

from __future__ import annotations

import functools
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dalsegno
from gpu.cells import Cell, Session, median
from gpu.driver import Device
from gpu.facts import open_gpu, register
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

KIB, MIB = 1 << 10, 1 << 20
PIECES = (4, 16, 32, 64, 128, 256, 512, 1024)
LAYERS = 32
LOAD_BYTES, SAVE_BYTES = 512 * MIB, 256 * MIB
REPEATS = 9
# A client leases at most an eighth of a pool.
OF_SERVED_POOL = 9
COMPARED = 64


@contextmanager
def opened(session: Session, shape: Shape, *, served: bool) -> Iterator[tuple[Any, Any, int]]:
    """Gives a store, the server that has it or None, and the bytes of its pool.

    Args:
        session: Where.
        shape: The blocks that it is made for.
        served: Whether a server has it.
    """
    # Each block takes whole units of the pool.
    total = max(shape.total_bytes, shape.blocks * 64 * KIB)
    pool = max(64 * MIB, (OF_SERVED_POOL if served else 3) * total)
    settings = store_settings(shape, pool)
    with session.folder("transfers") as place:
        if not served:
            with dalsegno.open(place / "store", **settings) as store:
                yield store, None, pool
            return
        log = session.out / "logs" / "transfers-served.log"
        with (
            Serving(place / "store", settings, log) as server,
            dalsegno.open(server.path) as store,
        ):
            yield store, server, pool


def measure(session: Session, *, piece: int, served: bool) -> dict[str, Any]:
    """Measures one size of pieces with one kind of pool.

    Args:
        session: Where.
        piece: Bytes of the keys, or of the values, of one layer of one block.
        served: Whether a server has the pool.
    """
    layers = 4 if session.is_small else LAYERS
    total = MIB if session.is_small else LOAD_BYTES
    shape = Shape.of_total(piece, layers, total)
    with (
        opened(session, shape, served=served) as (store, server, pool),
        Device(session.library) as device,
    ):
        cache = Cache(device, open_gpu(session, device), shape, Noise(shape))
        found = _Bench(session, shape, store, server, cache).run(pool)
        found["violations"] = device.violations()
    wrong = sum(row.get("wrong_pages", 0) for row in found["rows"])
    return {**found, "ok": not wrong and not found["violations"]}


class _Bench:
    """Copies the blocks of one shape again and again."""

    def __init__(
        self,
        session: Session,
        shape: Shape,
        store: dalsegno.Store,
        server: Serving | None,
        cache: Cache,
    ) -> None:
        self._session, self._shape, self._store = session, shape, store
        self._server, self._cache, self._gpu = server, cache, cache.gpu
        self._names = chain("transfers", shape.blocks)
        self._namespace = namespace_of(store, shape)
        self._saved = 0

    def run(self, pool: int) -> dict[str, Any]:
        """Measures all ways; returns rows."""
        fill(self._namespace, self._names, Noise(self._shape))
        rows = [self._loads("buffered"), self._saves("buffered")]
        registration = register(self._namespace, self._gpu, pool)
        # What the GPU does before it has measured anything, and then what it chooses.
        rows += [self._loads("registered")]
        before = self._gpu.facts()["kernel_below_bytes"]
        self._gpu.tune(self._shape.piece)
        after = self._gpu.facts()
        rows += [self._loads("tuned"), self._loads("tuned, without a lease")]
        rows += [self._saves("tuned"), self._saves("tuned, by layer")]
        return {
            "piece_bytes": self._shape.piece,
            "blocks": self._shape.blocks,
            "bytes": self._shape.total_bytes,
            "registration": registration,
            "kernel_below_bytes": {"before": before, "tuned": after["kernel_below_bytes"]},
            "batched_copies": after["batched_copies"],
            "rows": rows,
        }

    def _loads(self, way: str) -> dict[str, Any]:
        """Measures loads of all blocks; the first one is compared and does not count."""
        load = self._load_leased if way != "tuned, without a lease" else self._load_unleased
        row = self._repeat("load", way, load)
        return {**row, "wrong_pages": self._cache.wrong_pages(COMPARED)}

    def _load_leased(self) -> int:
        with self._namespace.lease(self._names, timeout_s=WAIT_S) as lease:
            return self._load_into(lease.load)

    def _load_unleased(self) -> int:
        return self._load_into(functools.partial(self._namespace.load, self._names))

    def _load_into(self, begin: Callable[..., Any]) -> int:
        load = begin(self._cache.pages(), timeout_s=WAIT_S)
        load.wait(WAIT_S)
        count: int = load.result()
        assert count == self._shape.blocks, f"{count} of {self._shape.blocks} blocks were loaded"
        return count * self._shape.block_bytes

    def _saves(self, way: str) -> dict[str, Any]:
        """Measures copies out of the cache, all layers at once, or one after the other.

        The put that follows is not measured.
        """
        by_layer = way.endswith("by layer")
        return self._repeat("save", way, functools.partial(self._save, by_layer=by_layer))

    def _save(self, *, by_layer: bool) -> int:
        most = max(1, SAVE_BYTES // self._shape.block_bytes)
        self._saved += 1
        names = chain(f"saved {self._saved}", self._shape.blocks)[:most]
        extent = self._store.limits()["extent_bytes"]
        begun = saves(self._namespace, self._cache, names, extent)
        after = self._cache.point()
        if by_layer:
            in_turn(
                functools.partial(writer.submit_store_layer, layer, pages, after=after)
                for layer in range(self._shape.layers)
                for writer, pages in begun
            )
        else:
            in_turn(
                functools.partial(writer.submit_store_blocks, pages, after=after)
                for writer, pages in begun
            )
        return len(names) * self._shape.block_bytes

    def _repeat(self, kind: str, way: str, copy: Callable[[], int]) -> dict[str, Any]:
        """Copies several times; returns rate and CPU seconds for each 10**9 bytes."""
        rates, cpu, served_cpu, size = [], 0.0, 0.0, 0
        buffered = self._gpu.facts()["buffered_bytes"]
        copy()
        repeats = 1 if self._session.is_small else REPEATS
        for _ in range(repeats):
            self._session.check_time()
            started, spent, other = time.perf_counter(), _cpu_s(), self._server_cpu_s()
            size = copy()
            rates.append(size / (time.perf_counter() - started) / 1e9)
            cpu += _cpu_s() - spent
            served_cpu += self._server_cpu_s() - other
        copied = repeats * size / 1e9
        return {
            "kind": kind,
            "way": way,
            "gb_per_s": round(median(rates), 3),
            "fastest_gb_per_s": round(max(rates), 3),
            "cpu_s_per_gb": round(cpu / copied, 4),
            "server_cpu_s_per_gb": round(served_cpu / copied, 4),
            "buffered_bytes": self._gpu.facts()["buffered_bytes"] - buffered,
        }

    def _server_cpu_s(self) -> float:
        return 0.0 if self._server is None else self._server.cpu_s()


def _cpu_s() -> float:
    """Returns the CPU seconds of this process, in all threads."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


def cells(*, small: bool) -> list[Cell]:
    """Returns all cells, or a few for a test."""
    pieces = (4, 64) if small else PIECES
    return [
        Cell(
            f"{'served' if served else 'own'}-{kib}k",
            functools.partial(measure, piece=kib * KIB, served=served),
            12 if served else 8,
        )
        for served in (False, True)
        for kib in pieces
    ]
