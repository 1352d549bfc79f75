"""Dalsegno through its public API: index in memory or in files, behind a server, on two nodes."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import dalsegno
from dalsegno_bench.faultbench.adapter import Adapter

__all__ = ["BucketNode", "InFiles", "InMemory", "Node", "Served"]

Index = Literal["memory", "lsm"]

SERVER_START_S = 30
PUBLISH_S, LOAD_S = 15.0, 10.0
PR_SET_PDEATHSIG = 1


class InMemory(Adapter):
    """A store with the defaults, except that it has no DRAM tier, which would hide the disk."""

    settings: ClassVar[str] = "defaults; dram=0"
    pieces: ClassVar[int] = 4
    index: ClassVar[Index] = "memory"

    def __init__(self, directory: Path, *, capacity_bytes: int, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._store = self._open(directory / "store", capacity_bytes)
        self._blocks = self._store.namespace(
            {"bench": "faults"}, layers=self.pieces, slice_bytes=block_bytes // self.pieces
        )

    def _open(self, path: Path, capacity_bytes: int) -> dalsegno.Store:
        return dalsegno.open(path, capacity=capacity_bytes, dram=0, index=self.index)

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> list[bool]:
        """See :class:`Adapter`."""
        return self._blocks.put_batch(keys, blocks).kept

    def exists(self, keys: Sequence[bytes]) -> list[bool]:
        """See :class:`Adapter`."""
        return self._blocks.contains(keys)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See :class:`Adapter`."""
        out = [bytearray(self._block_bytes) for _ in keys]
        came = self._blocks.get_each(keys, out)
        return [bytes(block) if there else None for block, there in zip(out, came, strict=True)]

    def put_all(
        self, keys: Sequence[Sequence[bytes]], blocks: Sequence[Sequence[bytes]]
    ) -> list[list[bool]]:
        """See :class:`Adapter`; what is throttled is refused."""
        transfers = [
            self._blocks.submit_put(names, given) for names, given in zip(keys, blocks, strict=True)
        ]
        for one in transfers:
            one.wait()
        return [
            [False] * len(names) if one.throttled else one.result().kept
            for names, one in zip(keys, transfers, strict=True)
        ]

    def get_all(self, keys: Sequence[Sequence[bytes]]) -> list[list[bytes | None]]:
        """See :class:`Adapter`; what is throttled is a miss."""
        out = [[bytearray(self._block_bytes) for _ in names] for names in keys]
        transfers = [
            self._blocks.submit_get(names, buffers, each=True)
            for names, buffers in zip(keys, out, strict=True)
        ]
        for one in transfers:
            one.wait()
        came = [
            [False] * len(buffers) if one.throttled else one.result()
            for one, buffers in zip(transfers, out, strict=True)
        ]
        return [
            [bytes(block) if there else None for block, there in zip(buffers, present, strict=True)]
            for buffers, present in zip(out, came, strict=True)
        ]

    def close(self) -> None:
        """See :class:`Adapter`."""
        self._store.close()


class InFiles(InMemory):
    """The same with ``index="lsm"``."""

    settings: ClassVar[str] = 'index="lsm"; dram=0'
    index: ClassVar[Index] = "lsm"


class Served(InMemory):
    """The same behind `dalsegno serve`, which dies when this process does."""

    settings: ClassVar[str] = "dalsegno serve --pool 4MiB; dram_admission=get"

    def _open(self, path: Path, capacity_bytes: int) -> dalsegno.Store:
        command = [sys.executable, "-m", "dalsegno.cli", "serve", str(path), "--pool", "4MiB"]
        command += ["--capacity", str(capacity_bytes), "--set", "dram_admission=get"]
        self._server = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - the process has one thread here
        )
        store = dalsegno.open(f"unix:{path / 'serve' / 'socket'}")
        until = time.monotonic() + SERVER_START_S
        while not store.served:
            if self._server.poll() is not None or time.monotonic() > until:
                store.close()
                raise dalsegno.UnavailableError("the server does not start")
            time.sleep(0.02)
        return store

    def close(self) -> None:
        """See :class:`Adapter`."""
        super().close()
        self._server.terminate()
        self._server.wait()


class Node(InMemory):
    """A node whose far directory is the given one, and whose local directory is empty and its own.

    A put is acknowledged when its blocks are published, as only then another node can have them.
    """

    settings: ClassVar[str] = "far directory, far_flush_s=0.2, dram=0, an empty local directory"
    # Other nodes look for new packs every two seconds.
    settle_s: ClassVar[float] = 2.5
    temporary: ClassVar[tuple[str, ...]] = (".*.tmp",)

    def _open(self, path: Path, capacity_bytes: int) -> dalsegno.Store:
        self._published = 0
        far = {"far": self._place(path.parent), "far_flush_s": 0.2}
        return dalsegno.open(tempfile.mkdtemp(), capacity=capacity_bytes, dram=0, **far)

    def _place(self, shared: Path) -> str:
        """The far location, by the shared folder."""
        return str(shared)

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> list[bool]:
        """See :class:`Adapter`; waits until the blocks are published."""
        report = self._blocks.put_batch(keys, blocks)
        wanted = self._published + report.stored
        until = time.monotonic() + PUBLISH_S
        while self._count() < wanted:
            if time.monotonic() > until:
                return [False] * len(keys)
            time.sleep(0.02)
        self._published = wanted
        return report.kept

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See :class:`Adapter`; with the time limit that our integrations set by default."""
        out = [bytearray(self._block_bytes) for _ in keys]
        came = self._blocks.get_each(keys, out, timeout_s=LOAD_S)
        return [bytes(block) if there else None for block, there in zip(out, came, strict=True)]

    def _count(self) -> int:
        far = self._store.stats()["far"]
        assert far is not None
        return far["published"]["blocks"]


class BucketNode(Node):
    """The same in a bucket that is the shared folder, and whose objects are its files.

    The environment has the address of the server and the credentials.
    """

    settings: ClassVar[str] = "bucket, far_flush_s=0.2, dram=0, an empty local directory"

    def _place(self, shared: Path) -> str:
        """See :class:`Node`."""
        return f"s3://{shared.name}/store"


def _die_with_parent() -> None:
    libc: Any = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
