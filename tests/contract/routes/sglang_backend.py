"""Through SGLang's backend, driven by SGLang's own controller, threads and host pool.

1. Pages go out from, and come back into, pages of a real host pool that its allocator chooses.
2. Backups and prefetches are queued as SGLang's tree queues them and are carried out by the
   controller's threads; the results are those that the controller reports to the tree.
3. The controller asks only for pages that exist, and takes the pages before the first miss.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import PrefetchOperation
from tests.contract.routes import Route, Session, Shape
from tests.integration.sglang.backend_rig import LOADS_ALL

from dalsegno.integrations.sglang.pools import byte_view
from dalsegno.integrations.sglang.settings import CLASS, MODULE, HiCacheSettings
from dalsegno_bench.sglang.rig import Geometry, Rig

PATIENCE_S = 60
PATTERN = 0x5A
# Pages of the host pool: more than SGLang moves at once, but no more memory than this.
MOST_PAGES = 300
POOL_BYTES = 64 << 20


class _HiCache(Session):
    """A hierarchical cache with our backend."""

    def __init__(self, geometry: Geometry, extra: dict[str, Any]) -> None:
        self._rig = Rig(geometry)
        try:
            self._backend = self._rig.attach("dynamic", extra)
        except RuntimeError:
            self._rig.close()
            raise
        self._controller = self._rig.controller
        self._tokens = geometry.page_tokens
        self.block_bytes = geometry.page_bytes
        self._most = self._rig.host.available_size() // self._tokens // 2
        self._numbers = itertools.count()
        self._storing, self._loading = threading.Lock(), threading.Lock()

    @contextmanager
    def _taken(self, count: int) -> Iterator[torch.Tensor]:
        """Pages of the host pool that no other call uses."""
        indices = self._rig.host.alloc(count * self._tokens)
        assert indices is not None
        try:
            yield indices
        finally:
            self._rig.host.free(indices)

    def _write(self, indices: torch.Tensor, blocks: Sequence[bytes]) -> None:
        """Puts bytes into pages of the host pool."""
        for at, block in enumerate(blocks):
            page = self._rig.host.get_dummy_flat_data_page()
            byte_view(page)[:] = block
            self._rig.host.set_from_flat_data_page(int(indices[at * self._tokens]), page)

    def _read(self, indices: torch.Tensor, count: int) -> list[bytes]:
        """Returns the bytes of pages of the host pool."""
        firsts = indices[:: self._tokens].tolist()[:count]
        pages = (self._rig.host.get_data_page(at, flat=True) for at in firsts)
        return [bytes(byte_view(page.contiguous())) for page in pages]

    def put(self, chain: Sequence[bytes], blocks: Sequence[bytes], first: int = 0) -> list[bool]:
        kept: list[bool] = []
        with self._storing:
            for at in range(0, len(blocks), self._most):
                part = blocks[at : at + self._most]
                hashes = [one.hex() for one in chain[: first + at + len(part)]]
                kept += self._backup(hashes, first + at, part)
        return kept

    def _backup(self, hashes: list[str], first: int, blocks: Sequence[bytes]) -> list[bool]:
        """Backs pages up as the tree does; returns which of them the controller counts."""
        with self._taken(len(blocks)) as indices:
            self._write(indices, blocks)
            self._controller.write_storage(
                indices, [0] * len(indices), hashes[first:], hashes[:first]
            )
            operation = self._controller.ack_backup_queue.get(timeout=PATIENCE_S)
        done = operation.completed_tokens // self._tokens
        return [at < done for at in range(len(blocks))]

    def probe(self, chain: Sequence[bytes]) -> int:
        return int(self._backend.batch_exists([one.hex() for one in chain], None))

    def get(self, chain: Sequence[bytes]) -> list[bytes | None]:
        return self._got(chain, interrupted=False)

    def interrupted_get(self, chain: Sequence[bytes]) -> list[bytes | None]:
        return self._got(chain, interrupted=True)

    def _got(self, chain: Sequence[bytes], *, interrupted: bool) -> list[bytes | None]:
        got: list[bytes | None] = []
        with self._loading:
            hits = list(chain[: self.probe(chain)])
            for at in range(0, len(hits), self._most):
                part = hits[at : at + self._most]
                came = self._prefetch([one.hex() for one in part], interrupted=interrupted)
                got += came
                if len(came) < len(part):
                    break
        return got + [None] * (len(chain) - len(got))

    def _prefetch(self, hashes: list[str], *, interrupted: bool) -> list[bytes]:
        """Prefetches pages as the tree does; returns those that the controller counts."""
        handle = CacheRequestHandle(f"r{next(self._numbers)}", 0)
        operation = PrefetchOperation(handle, [0] * len(hashes) * self._tokens)
        with self._taken(len(hashes)) as indices:
            self._write(indices, [bytes([PATTERN]) * self.block_bytes] * len(hashes))
            operation.hash_value, operation.host_indices = hashes, indices
            self._controller.prefetch_buffer.put(operation)
            if interrupted:
                self._controller.terminate_prefetch(operation)
            done = 0
            while True:
                ack = self._controller.ack_prefetch_queue.get(timeout=PATIENCE_S)
                if ack.completed_tokens is not None:
                    done = max(done, ack.completed_tokens // self._tokens)
                if ack.completed_req:
                    return self._read(indices, done)

    def scribble(self) -> Callable[[], bool] | None:
        buffer = byte_view(self._rig.host.kv_buffer)
        memory = torch.frombuffer(buffer, dtype=torch.uint8)
        memory.fill_(PATTERN)
        return lambda: bool((memory == PATTERN).all())

    def clear(self) -> None:
        self._controller.clear_storage_backend()

    def counters(self) -> dict[str, Any]:
        return self._backend._spaces.counters() or {}

    def close(self) -> None:
        self._rig.close()


@dataclass(frozen=True)
class HiCache(Route):
    """`DalsegnoHiCache` in a layout of the host pool, by one of SGLang's interfaces."""

    name: str
    layout: str = "page_first"
    interface_v1: int = 1
    store: dict[str, object] = field(default_factory=dict)
    threads: str = "one per direction"
    variant: bool = False

    def open(
        self,
        path: Path,
        shape: Shape,
        *,
        identity: str = "a",
        timeout_s: float | None = None,
        **settings: object,
    ) -> Session:
        geometry = Geometry(
            layers=shape.layers,
            heads=shape.heads,
            head_dim=shape.head_dim,
            page_tokens=shape.tokens,
            dtype=shape.dtype,
            layout=self.layout,
        )
        pages = max(8, min(MOST_PAGES, POOL_BYTES // geometry.page_bytes))
        geometry = Geometry(**{**vars(geometry), "tokens": pages * shape.tokens})
        known = HiCacheSettings.names()
        extra: dict[str, Any] = {
            "backend_name": "dalsegno",
            "module_path": MODULE,
            "class_name": CLASS,
            "interface_v1": self.interface_v1,
            "path": str(path),
            **LOADS_ALL,
            "capacity": "24MiB",
            "weights_fingerprint": identity,
            "store": {**self.store, **{k: v for k, v in settings.items() if k not in known}},
            **{name: value for name, value in settings.items() if name in known},
        }
        if timeout_s is not None:
            extra |= {"load_timeout_s": timeout_s, "store_timeout_s": timeout_s}
        return _HiCache(geometry, extra)


ROUTES: list[Route] = [
    HiCache("sglang-psync", store={"io_engine": "psync"}),
    HiCache("sglang-uring", store={"io_engine": "auto"}),
    HiCache("sglang-direct", "page_first_direct", variant=True),
    HiCache("sglang-heads", "page_head", variant=True),
    HiCache("sglang-layers", "layer_first", variant=True),
    HiCache("sglang-copied", interface_v1=0, variant=True),
]
