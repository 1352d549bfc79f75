"""Objects of LMCache's memory, and an adapter driven as LMCache's controllers drive it."""

from __future__ import annotations

import hashlib
import select
import time
from collections.abc import Sequence
from typing import Any

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.platform import consume_fd

from dalsegno.integrations.lmcache import DalsegnoL2Adapter
from dalsegno.integrations.lmcache.spaces import Layout

SHAPE = (2, 2, 16, 64)
OBJECT_BYTES = 2 * 2 * 16 * 64 * 2
PATIENCE_S = 30.0


def key(chunk_hash: bytes, **changes: Any) -> ObjectKey:
    """A key of LMCache's, by default of the one rank of a model that is served by one process."""
    given = {"model_name": "org/model", "kv_rank": 0x01000100, **changes}
    return ObjectKey(chunk_hash=chunk_hash, **given)


def keys(count: int, prompt: str = "a", **changes: Any) -> list[ObjectKey]:
    """The keys of a prompt's chunks."""
    hashes = [hashlib.sha256(f"{prompt}{number}".encode()).digest() for number in range(count)]
    return [key(one, **changes) for one in hashes]


def memory(
    shape: Sequence[int] = SHAPE, dtype: str = "bfloat16", content: bytes | None = None
) -> TensorMemoryObj:
    """An object of LMCache's memory, full of zeros unless content is given."""
    number = getattr(torch, dtype)
    size = torch.Size(shape).numel() * number.itemsize
    raw = torch.zeros(size, dtype=torch.uint8)
    if content is not None:
        raw.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    meta = MemoryObjMetadata(
        shape=torch.Size(shape),
        dtype=number,
        address=0,
        phy_size=size,
        fmt=MemoryFormat.KV_2LTD,
        ref_count=1,
        shapes=[torch.Size(shape)],
        dtypes=[number],
    )
    return TensorMemoryObj(raw, meta, parent_allocator=None)


def content(of: ObjectKey) -> bytes:
    """The bytes that belong to a key, of the default shape."""
    return (hashlib.sha256(of.chunk_hash).digest() * (OBJECT_BYTES // 32))[:OBJECT_BYTES]


def filled(of: Sequence[ObjectKey], **shape: Any) -> list[TensorMemoryObj]:
    """Objects that hold what belongs to the keys."""
    return [memory(content=content(one), **shape) for one in of]


def layout(shape: Sequence[int] = SHAPE, dtype: str = "bfloat16") -> MemoryLayoutDesc:
    """LMCache's description of the objects of a group in a lookup."""
    return MemoryLayoutDesc([torch.Size(shape)], [getattr(torch, dtype)])


class Driver:
    """Waits for an adapter's signals and fetches what it reports."""

    def __init__(self, adapter: DalsegnoL2Adapter) -> None:
        self.adapter = adapter
        self._stored: dict[int, Any] = {}

    def _until(self, event_fd: int, ask: Any) -> Any:
        """Polls until there is a result; another thread may consume the signal."""
        poller = select.poll()
        poller.register(event_fd, select.POLLIN)
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if poller.poll(2):
                consume_fd(event_fd)
            if (answer := ask()) is not None:
                return answer
        raise AssertionError("the adapter reported nothing")

    def store(self, of: Sequence[ObjectKey], objects: Sequence[Any]) -> Any:
        """Stores objects; returns LMCache's result."""
        number = self.adapter.submit_store_task(list(of), list(objects))
        return self.stored(number)

    def stored(self, number: int) -> Any:
        """Waits for a store task that is under way."""

        def ask() -> Any:
            self._stored.update(self.adapter.pop_completed_store_tasks())
            return self._stored.pop(number, None)

        return self._until(self.adapter.get_store_event_fd(), ask)

    def lookup(self, of: Sequence[ObjectKey], described: Any = None) -> list[bool]:
        """Looks keys up; `described` is an object's layout, if LMCache passes it."""
        number = self.adapter.submit_lookup_and_lock_task(
            list(of), {} if described is None else {0: described}
        )
        bitmap = self._until(
            self.adapter.get_lookup_and_lock_event_fd(),
            lambda: self.adapter.query_lookup_and_lock_result(number),
        )
        self.adapter.submit_unlock(bitmap.gather(list(of)))
        return [bitmap.test(place) for place in range(len(of))]

    def load(
        self, of: Sequence[ObjectKey], objects: Sequence[Any], *, interrupted: bool = False
    ) -> list[bool]:
        """Loads objects, or cancels the load immediately as the adapter does when it is closed."""
        number = self.adapter.submit_load_task(list(of), list(objects))
        if interrupted:
            self.adapter._loading.cancel()
        return self.loaded(number, len(of))

    def loaded(self, number: int, count: int) -> list[bool]:
        """Waits for a load task that is under way."""
        bitmap = self._until(
            self.adapter.get_load_event_fd(), lambda: self.adapter.query_load_result(number)
        )
        return [bitmap.test(place) for place in range(count)]

    def holds(self, of: Sequence[ObjectKey]) -> list[bool]:
        """Loads objects of the default shape and checks the bytes of each hit."""
        objects = [memory() for _ in of]
        came = self.load(of, objects)
        assert all(
            bytes(one.byte_array) == content(name)
            for one, name, there in zip(objects, of, came, strict=True)
            if there
        )
        return came

    def forget_all(self, described: MemoryLayoutDesc | None = None) -> None:
        """Removes every object of the adapter's identity, or of one layout of it.

        LMCache itself deletes by key alone.
        """
        opened = self.adapter._backend.current
        if opened is None:
            return
        wanted = None if described is None else Layout.of_description(described).text()
        for (_, layout, _), namespace in opened.namespaces.items():
            if wanted in (None, layout):
                namespace.remove()
