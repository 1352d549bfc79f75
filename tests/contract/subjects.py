"""What the contract is checked on: the store with several settings, served, and the reference.

A check asks a :class:`Subject` for a store and knows nothing else about it. A subject says here
whether it has files of its own (``files``) and whether it evicts blocks (``evicts``).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from tests.contract import reference_store
from tests.outside import Extent, extents, flip, segments
from tests.served import LIMIT_S, POOL, SIZES, ServerProcess

import dalsegno


@dataclass(frozen=True)
class Subject:
    """A store under test.

    Attributes:
        name: As it stands in the name of a test.
        settings: What it is opened with.
        files: Whether its data lie in the files of docs/formats/log.md.
        evicts: Whether it makes room by giving up blocks, instead of refusing new ones.
    """

    name: str
    settings: Mapping[str, object] = field(default_factory=dict)
    files: bool = True
    evicts: bool = True

    def open(self, path: Path, **more: object) -> dalsegno.Store:
        return dalsegno.open(path, **{**SIZES, **self.settings, **more})

    def verify(self, path: Path) -> list[dict[str, Any]]:
        """What an offline check finds."""
        return cast("list[dict[str, Any]]", dalsegno.verify(str(path))["findings"])

    def place(self, path: Path, first_hash: bytes) -> tuple[Path, int, int]:
        """The file, start and end of the extent that begins with a block."""
        extent = beginning_with(path, first_hash)
        return extent.file, extent.start, extent.end

    def damage(self, path: Path, first_hash: bytes) -> None:
        """Flips one bit in the first byte of a block that was put alone."""
        extent = beginning_with(path, first_hash)
        flip(extent.file, extent.payload)

    def lose(self, path: Path) -> None:
        """Removes all data, as somebody would who needs room."""
        for file in segments(path):
            file.unlink()


def beginning_with(path: Path, first_hash: bytes) -> Extent:
    """The extent that begins with a block."""
    found = next((one for one in extents(path) if one.first_hash == first_hash), None)
    assert found is not None, "the block was not stored at the start of an extent"
    return found


class Reference(Subject):
    """The oracle, checked as well: what it gets wrong, every other test would."""

    def open(self, path: Path, **more: object) -> dalsegno.Store:
        store = reference_store.Store(str(path), json.dumps({**self.settings, **more}))
        # It has the names, arguments, results and errors of the real one.
        return cast("dalsegno.Store", store)

    def verify(self, path: Path) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", reference_store.verify(str(path))["findings"])

    def damage(self, path: Path, first_hash: bytes) -> None:
        with reference_store.Store(str(path), "{}") as store:
            for bank in store.banks.values():
                if first_hash in bank.blocks:
                    digest, data = bank.blocks[first_hash]
                    bank.blocks[first_hash] = (digest, bytes([data[0] ^ 1]) + data[1:])

    def lose(self, path: Path) -> None:
        (path / reference_store.BLOCKS_FILE).unlink()


class ServedStore:
    """A client, and the server behind it: both are closed together."""

    def __init__(self, client: dalsegno.Store, server: ServerProcess) -> None:
        self._client, self._server = client, server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def close(self) -> None:
        self._client.close()
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Served(Subject):
    """A store behind a server. Each open starts one with the settings of that open.

    The server ends with the client, so that a test can check and damage its files then.
    """

    def open(self, path: Path, **more: object) -> dalsegno.Store:
        server = self._start(path, {**SIZES, **self.settings, **more})
        client = dalsegno.open(path)
        assert client.served
        # It has the names, arguments, results and errors of the client.
        return cast("dalsegno.Store", ServedStore(client, server))

    def _start(self, path: Path, settings: Mapping[str, object]) -> ServerProcess:
        """Starts a server. One whose client died owns the directory until it has ended."""
        until = time.monotonic() + LIMIT_S
        while True:
            try:
                return ServerProcess(path, settings)
            except dalsegno.UnavailableError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)


SUBJECTS = [
    Subject("psync", {"io_engine": "psync", "dram": 0}),
    Subject("uring", {"io_engine": "auto", "dram": 0}),
    Subject("durable", {"durability": "batch", "dram": 0}),
    Subject("dram at get", {"dram": "4MiB", "dram_admission": "get"}),
    Subject("dram at put", {"dram": "4MiB", "dram_admission": "put"}),
    Served("served", POOL),
    Reference("reference", {"capacity": "24MiB"}, files=False, evicts=False),
]


@dataclass
class Box:
    """One store's directory, how it is opened, and whether a test damaged it."""

    subject: Subject
    path: Path
    damaged: bool = False

    def open(self, **settings: object) -> dalsegno.Store:
        return self.subject.open(self.path, **settings)

    @contextmanager
    def namespace(
        self, layers: int = 2, slice_bytes: int = 1000, **settings: object
    ) -> Iterator[dalsegno.Namespace]:
        """Opens the store, and one namespace in it."""
        with self.open(**settings) as store:
            yield store.namespace({"model": "m"}, layers=layers, slice_bytes=slice_bytes)

    def damage(self, first_hash: bytes) -> None:
        self.damaged = True
        self.subject.damage(self.path, first_hash)

    def lose(self) -> None:
        self.damaged = True
        self.subject.lose(self.path)


def chain(count: int, prompt: str = "a") -> list[bytes]:
    """The hashes of a prompt's blocks; prompts of other names share none."""
    return [hashlib.sha256(f"{prompt}/{index}".encode()).digest() for index in range(count)]


def content(one: bytes, size: int) -> bytes:
    """The bytes of a block: like a model's, they follow from its hash."""
    return hashlib.shake_128(one).digest(size)


def contents(hashes: Sequence[bytes], size: int) -> list[bytes]:
    return [content(one, size) for one in hashes]
