"""Through LMCache's L2 interface: our adapter, driven as LMCache's controllers drive it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.contract.routes import Route, Session, Shape
from tests.integration.lmcache.objects import Driver, key, layout, memory

from dalsegno.integrations.lmcache import DalsegnoL2Adapter


class _L2(Session):
    """An adapter, and memory as LMCache hands it over."""

    def __init__(self, adapter: DalsegnoL2Adapter, shape: Shape) -> None:
        self._driver = Driver(adapter)
        self._shape = (2, shape.layers, shape.tokens, shape.heads * shape.head_dim)
        self._dtype = shape.dtype
        self.block_bytes = int(memory(self._shape, self._dtype).get_size())

    def put(self, chain: Sequence[bytes], blocks: Sequence[bytes], first: int = 0) -> list[bool]:
        keys = [key(one) for one in chain[first:]]
        objects = [memory(self._shape, self._dtype, block) for block in blocks]
        self._driver.store(keys, objects)
        # The first lookup reports only whether all are present; the second one reports which.
        return self._driver.lookup(keys)

    def probe(self, chain: Sequence[bytes]) -> int:
        described = layout(self._shape, self._dtype)
        found = self._driver.lookup([key(one) for one in chain], described)
        return next((at for at, there in enumerate(found) if not there), len(found))

    def get(self, chain: Sequence[bytes]) -> list[bytes | None]:
        return self._got(chain, interrupted=False)

    def interrupted_get(self, chain: Sequence[bytes]) -> list[bytes | None]:
        return self._got(chain, interrupted=True)

    def _got(self, chain: Sequence[bytes], *, interrupted: bool) -> list[bytes | None]:
        objects = [memory(self._shape, self._dtype) for _ in chain]
        came = self._driver.load([key(one) for one in chain], objects, interrupted=interrupted)
        return [
            bytes(one.byte_array) if there else None
            for one, there in zip(objects, came, strict=True)
        ]

    def clear(self) -> None:
        self._driver.forget_all(layout(self._shape, self._dtype))

    def counters(self) -> dict[str, Any]:
        return dict(self._driver.adapter.report_status().get("store", {}))

    def failed_blocks(self) -> int:
        return int(self._driver.adapter.report_status()["counters"]["store_failed_objects"])

    def close(self) -> None:
        self._driver.adapter.close()


@dataclass(frozen=True)
class L2(Route):
    """LMCache's L2 adapters."""

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
        # LMCache's layouts have only the product of heads and head_dim: other heads, other weights.
        weights = f"{identity} of {shape.heads} heads"
        given: dict[str, Any] = {"path": str(path), "weights_fingerprint": weights}
        given["store"] = {"capacity": "24MiB", **self.settings, **settings}
        if timeout_s is not None:
            given |= {"load_timeout_s": timeout_s, "store_timeout_s": timeout_s}
        return _L2(DalsegnoL2Adapter(given), shape)


ROUTES: list[Route] = [
    L2("lmcache-psync", {"io_engine": "psync"}),
    L2("lmcache-uring", {"io_engine": "auto"}),
]
