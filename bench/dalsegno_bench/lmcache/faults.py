"""LMCache's own L2 adapters for `dalsegno faultbench`, with LMCache's own eviction.

LMCache's factory makes each from the argument of `--l2-adapter`. It is driven as LMCache's
controllers do: submit a task, then wait for its event. A lookup locks the objects that it finds.
They are unlocked after the load, or if they are not wanted.
"""

from __future__ import annotations

import os
import select
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import torch
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class
from lmcache.v1.distributed.storage_controllers.eviction_controller import (
    L2AdapterEvictionState,
    L2EvictionController,
)
from lmcache.v1.platform import consume_fd

from dalsegno_bench.faultbench.adapter import Adapter
from dalsegno_bench.faultbench.disk import MIB
from dalsegno_bench.lmcache.measured import chunk_keys, objects
from dalsegno_bench.object_store.bucket import VIRTUAL_DOMAIN
from dalsegno_bench.object_store.host_names import lead_to

__all__ = ["S3", "FsNative", "RawBlock"]

# What a load must write over: bytes that belong to no block.
POISON = 0x5A
EVICTION = {"eviction_policy": "LRU"}
SECTOR_BYTES = 4096
META_BYTES = 4 * MIB


class _L2(Adapter):
    """An L2 adapter, and the eviction that LMCache's server would run for it."""

    # LMCache looks once a second whether it has to evict.
    settle_s: ClassVar[float] = 1.1

    def __init__(self, directory: Path, *, capacity_bytes: int, block_bytes: int) -> None:
        os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
        self._block_bytes = block_bytes
        line = {**self._line(directory, capacity_bytes, block_bytes), "eviction": EVICTION}
        kind = get_l2_adapter_config_class(line["type"])
        parsed = kind.from_dict(line)
        eviction = kind._parse_eviction_config(line)  # noqa: SLF001 - as its own parser does
        self._adapter: Any = create_l2_adapter(parsed, None)
        state = L2AdapterEvictionState(0, self._adapter, eviction)
        self._eviction: Any = L2EvictionController([state])
        self._eviction.start()
        self._stored: dict[int, Any] = {}

    @abstractmethod
    def _line(self, directory: Path, capacity_bytes: int, block_bytes: int) -> dict[str, Any]:
        """Returns the argument of `--l2-adapter`."""

    def _wait(self, event_fd: int, ask: Callable[[], bool]) -> None:
        """Waits for an event until everything is there; the suite has the time limit."""
        poller = select.poll()
        poller.register(event_fd, select.POLLIN)
        while not ask():
            if poller.poll(100):
                consume_fd(event_fd)

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> list[bool]:
        """See :class:`Adapter`; LMCache reports a task as a whole."""
        return self.put_all([keys], [blocks])[0]

    def put_all(
        self, keys: Sequence[Sequence[bytes]], blocks: Sequence[Sequence[bytes]]
    ) -> list[list[bool]]:
        """See :class:`Adapter`."""
        memory = [self._filled(part) for part in blocks]
        submit = self._adapter.submit_store_task
        tasks = [submit(chunk_keys(names), one) for names, one in zip(keys, memory, strict=True)]

        def ask() -> bool:
            self._stored.update(self._adapter.pop_completed_store_tasks())
            return all(task in self._stored for task in tasks)

        self._wait(self._adapter.get_store_event_fd(), ask)
        done = [self._stored.pop(task).is_successful() for task in tasks]
        return [[kept] * len(names) for names, kept in zip(keys, done, strict=True)]

    def _filled(self, blocks: Sequence[bytes]) -> list[Any]:
        memory = objects(len(blocks), self._block_bytes)
        for one, block in zip(memory, blocks, strict=True):
            one.raw_data.copy_(torch.frombuffer(bytearray(block), dtype=torch.uint8))
        return memory

    def exists(self, keys: Sequence[bytes]) -> list[bool]:
        """See :class:`Adapter`; what it locks is unlocked immediately."""
        names = chunk_keys(keys)
        task = self._adapter.submit_lookup_and_lock_task(names, {})
        found = self._bits([task], "get_lookup_and_lock_event_fd", "query_lookup_and_lock_result")
        there = [found[0].test(at) for at in range(len(keys))]
        locked = [one for one, is_there in zip(names, there, strict=True) if is_there]
        self._adapter.submit_unlock(locked)
        return there

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See :class:`Adapter`."""
        return self.get_all([keys])[0]

    def get_all(self, keys: Sequence[Sequence[bytes]]) -> list[list[bytes | None]]:
        """See :class:`Adapter`."""
        memory = [objects(len(names), self._block_bytes) for names in keys]
        for part in memory:
            for one in part:
                one.raw_data.fill_(POISON)
        submit = self._adapter.submit_load_task
        tasks = [submit(chunk_keys(names), one) for names, one in zip(keys, memory, strict=True)]
        found = self._bits(tasks, "get_load_event_fd", "query_load_result")
        return [
            [
                one.raw_data.numpy().tobytes() if bits.test(at) else None
                for at, one in enumerate(part)
            ]
            for part, bits in zip(memory, found, strict=True)
        ]

    def _bits(self, tasks: Sequence[int], event: str, query: str) -> list[Any]:
        """Waits for tasks; returns their bitmaps."""
        found: dict[int, Any] = {}

        def ask() -> bool:
            for task in tasks:
                if task not in found and (bits := getattr(self._adapter, query)(task)) is not None:
                    found[task] = bits
            return len(found) == len(tasks)

        self._wait(getattr(self._adapter, event)(), ask)
        return [found[task] for task in tasks]

    def close(self) -> None:
        """See :class:`Adapter`."""
        self._eviction.stop()
        self._adapter.close()


class FsNative(_L2):
    """`fs_native`: one file per object, written by C++ threads."""

    settings: ClassVar[str] = "max_capacity_gb and eviction LRU are set"
    temporary: ClassVar[tuple[str, ...]] = ("*.tmp", "*.tmp.*")

    def _line(self, directory: Path, capacity_bytes: int, block_bytes: int) -> dict[str, Any]:
        del block_bytes
        gib = capacity_bytes / (1 << 30)
        return {"type": "fs_native", "base_path": str(directory), "max_capacity_gb": gib}


class RawBlock(_L2):
    """`raw_block`: slots of one size in one file of fixed size, with checkpoints of the index."""

    settings: ClassVar[str] = "a file allocated beforehand; slots fit a block; eviction LRU is set"
    header_bytes: ClassVar[int] = SECTOR_BYTES

    def _line(self, directory: Path, capacity_bytes: int, block_bytes: int) -> dict[str, Any]:
        device = directory / "device"
        if not device.exists():
            with device.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, capacity_bytes)
        return {
            "type": "raw_block",
            "device_path": str(device),
            "slot_bytes": block_bytes + SECTOR_BYTES,
            "meta_total_bytes": META_BYTES,
        }


class S3(_L2):
    """`s3`: an object of each chunk, in a bucket whose objects are the files of `directory`.

    The environment has the address of the server and the credentials. The adapter knows a bucket by
    its host only, so the process needs a name for it, which only root can give.
    """

    settings: ClassVar[str] = "max_capacity_gb and eviction LRU are set; HTTP/1.1"

    def _line(self, directory: Path, capacity_bytes: int, block_bytes: int) -> dict[str, Any]:
        del block_bytes
        endpoint = urlsplit(os.environ["AWS_ENDPOINT_URL"])
        host = f"{directory.name}.{VIRTUAL_DOMAIN}"
        lead_to(str(endpoint.hostname), host)
        return {
            "type": "s3",
            "s3_endpoint": f"{host}:{endpoint.port}",
            "s3_region": os.environ["AWS_REGION"],
            "disable_tls": True,
            "s3_prefer_http2": False,
            "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
            "max_capacity_gb": capacity_bytes / (1 << 30),
        }
