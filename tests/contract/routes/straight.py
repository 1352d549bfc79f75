"""Direct calls of the store, with both I/O engines and with DRAM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.contract.routes import Route, Session, Shape

import dalsegno

PATTERN = 0xA5


class _Straight(Session):
    """A namespace of an open store."""

    def __init__(self, store: dalsegno.Store, shape: Shape, identity: str) -> None:
        fields = {name: str(value) for name, value in asdict(shape).items()}
        self._store = store
        self._space = store.namespace(
            {"weights": identity, **fields}, layers=shape.layers, slice_bytes=shape.slice_bytes
        )
        self._targets: list[bytearray] = []
        self.block_bytes = self._space.block_bytes

    def put(self, chain: Sequence[bytes], blocks: Sequence[bytes], first: int = 0) -> list[bool]:
        return list(self._space.put_batch(chain, blocks, first=first).kept)

    def probe(self, chain: Sequence[bytes]) -> int:
        return int(self._space.probe(chain))

    def get(self, chain: Sequence[bytes]) -> list[bytes | None]:
        return self._got(chain, interrupted=False)

    def interrupted_get(self, chain: Sequence[bytes]) -> list[bytes | None]:
        return self._got(chain, interrupted=True)

    def _got(self, chain: Sequence[bytes], *, interrupted: bool) -> list[bytes | None]:
        self._targets = out = [bytearray(self.block_bytes) for _ in chain]
        transfer = self._space.submit_get(chain, out, each=True)
        if interrupted:
            transfer.cancel()
        assert transfer.wait(60)
        report = transfer.result()
        return [bytes(one) if there else None for one, there in zip(out, report, strict=True)]

    def scribble(self) -> Callable[[], bool] | None:
        pattern = bytes([PATTERN]) * self.block_bytes
        targets = self._targets
        for one in targets:
            one[:] = pattern
        return lambda: all(one == pattern for one in targets)

    def clear(self) -> None:
        self._space.remove()

    def counters(self) -> dict[str, Any]:
        return dict(self._store.stats())

    def close(self) -> None:
        self._store.close()


class _Hurried(_Straight):
    """The same with a deadline on every call."""

    def __init__(
        self, store: dalsegno.Store, shape: Shape, identity: str, timeout_s: float
    ) -> None:
        super().__init__(store, shape, identity)
        self._timeout_s = timeout_s

    def put(self, chain: Sequence[bytes], blocks: Sequence[bytes], first: int = 0) -> list[bool]:
        report = self._space.put_batch(chain, blocks, first=first, timeout_s=self._timeout_s)
        return list(report.kept)

    def get(self, chain: Sequence[bytes]) -> list[bytes | None]:
        self._targets = out = [bytearray(self.block_bytes) for _ in chain]
        report = self._space.get_each(chain, out, timeout_s=self._timeout_s)
        return [bytes(one) if there else None for one, there in zip(out, report, strict=True)]


@dataclass(frozen=True)
class Straight(Route):
    """The store's own interface."""

    name: str
    settings: dict[str, object] = field(default_factory=dict)

    def open(
        self,
        path: Path,
        shape: Shape,
        *,
        identity: str = "a",
        timeout_s: float | None = None,
        **settings: object,
    ) -> Session:
        store = dalsegno.open(path, **{"capacity": "24MiB", **self.settings, **settings})
        try:
            if timeout_s is not None:
                return _Hurried(store, shape, identity, timeout_s)
            return _Straight(store, shape, identity)
        except BaseException:
            store.close()
            raise


ROUTES: list[Route] = [
    Straight("psync", {"io_engine": "psync", "dram": 0}),
    Straight("uring", {"io_engine": "auto", "dram": 0}),
    Straight("lsm", {"index": "lsm", "dram": 0}),
    Straight("dram", {"dram": "4MiB"}),
]
