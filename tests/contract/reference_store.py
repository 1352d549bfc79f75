"""A store in pure Python that keeps the contract of `dalsegno._native`: the oracle of the tests.

It is written to be obviously right, not fast: a dictionary of blocks, a copy of every buffer.

1. It has the names, arguments, results and errors of `_native.pyi`, so it can stand in for it.
2. A block is kept with its SHA-256 and compared when it is read: damage is a miss, never bytes.
3. Blocks are in memory; `close` writes them to one file of the directory and opening reads it.
4. Transfers run on threads of the store and end exactly once, in any order.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pickle
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.contract.reference_parts import Bank, LayerWriter, Namespace, PutReport
from tests.contract.reference_transfer import Transfer
from tests.contract.reference_watch import RemovalWatch

from dalsegno._native import (
    ClosedError,
    CorruptError,
    DalsegnoError,
    FullError,
    IncompatibleError,
    InvalidError,
    PoisonedError,
    UnavailableError,
    parse_bytes,
)

__all__ = [
    "ClosedError",
    "CorruptError",
    "DalsegnoError",
    "FullError",
    "IncompatibleError",
    "InvalidError",
    "LayerWriter",
    "Namespace",
    "PoisonedError",
    "PutReport",
    "RemovalWatch",
    "Store",
    "Transfer",
    "UnavailableError",
    "config_keys",
    "info",
    "list_extents",
    "verify",
]
__version__ = "0.0.0+reference"

BLOCKS_FILE = "reference.blocks"
LOCK_FILE = "LOCK"
CAUSES = ("corrupt", "timeout", "absent")
_SETTINGS = (
    "admission",
    "capacity",
    "dram",
    "dram_admission",
    "durability",
    "extent",
    "header_cache",
    "io_depth",
    "io_engine",
    "io_request",
    "namespaces",
    "segment",
    "staging",
    "transfer_queue",
    "transfer_threads",
)
_COUNTERS = ("put_stored_blocks", "put_bytes", "get_log_blocks", "get_missed_blocks", "get_bytes")


def config_keys() -> list[str]:
    """Names of all settings."""
    return sorted(_SETTINGS)


def _parse_bytes(value: int | str) -> int:
    """Reads a byte count such as `4096` or `"2GiB"`."""
    return value if isinstance(value, int) else parse_bytes(value)


class Store:
    """A store, open in this process and in no other."""

    def __init__(self, path: str, config_json: str) -> None:
        """Opens or creates it."""
        config = json.loads(config_json)
        if unknown := sorted(set(config) - set(_SETTINGS)):
            raise InvalidError(f"unknown setting {unknown[0]!r}")
        self.path, self.closed = path, False
        self._capacity_bytes = _parse_bytes(config.get("capacity") or "1TiB")
        self._queue = int(config.get("transfer_queue") or 256)
        self._lock = _lock(Path(path))
        saved = Path(path) / BLOCKS_FILE
        self.id, self.banks = (
            pickle.loads(saved.read_bytes()) if saved.exists() else (secrets.token_hex(16), {})
        )
        self.guard = threading.RLock()
        self.misses = dict.fromkeys(CAUSES, 0)
        self._counters: dict[str, int] = {}
        self._waiting = 0
        self._watches: list[RemovalWatch] = []
        self._threads = ThreadPoolExecutor(int(config.get("transfer_threads") or 2))

    def check_open(self) -> None:
        """Raises if it was closed."""
        if self.closed:
            raise ClosedError("the store was closed")

    def count(self, name: str, value: int) -> None:
        """Adds to a counter."""
        self._counters[name] = self._counters.get(name, 0) + value

    def _bytes(self) -> int:
        return sum(len(data) for bank in self.banks.values() for _, data in bank.blocks.values())

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more fit; the reference does not evict."""
        return self._bytes() + size <= self._capacity_bytes

    def submit(self, kind: str, work: Callable[[], Any], refused: Any) -> Transfer:
        """Runs work on a thread, or refuses it if too much is waiting."""
        self.check_open()
        del kind  # for subclasses
        transfer = Transfer()
        with self.guard:
            if self._waiting >= self._queue:
                transfer.end(refused, throttled=True)
                return transfer
            self._waiting += 1

        def carry_out() -> None:
            if transfer.cancelled:
                transfer.end(refused)
            else:
                transfer.run(work)
            with self.guard:
                self._waiting -= 1

        self._threads.submit(carry_out)
        return transfer

    def limits(self) -> dict[str, Any]:
        """The bounds."""
        return {"capacity_bytes": self._capacity_bytes, "transfer_queue": self._queue}

    def stats(self) -> dict[str, Any]:
        """All counters and gauges."""
        with self.guard:
            return {
                **dict.fromkeys(_COUNTERS, 0),
                **self._counters,
                "blocks": sum(len(bank.blocks) for bank in self.banks.values()),
                "disk_bytes": self._bytes(),
                "capacity_bytes": self._capacity_bytes,
                "poisoned": False,
                "device": {"reads": "working", "writes": "working"},
                "log": {"misses": dict(self.misses)},
            }

    def namespace(
        self,
        fields: Mapping[str, str],
        *,
        layers: int,
        slice_bytes: int,
        codec: str | None = None,
        element_bytes: int = 2,
    ) -> Namespace:
        """Opens a namespace; how blocks would be stored changes nothing that can be seen here."""
        del codec, element_bytes
        self.check_open()
        if layers < 1 or slice_bytes < 1:
            raise InvalidError("a block has at least one layer of one byte")
        if any(len(tag) > 1024 or len(value) > 1024 for tag, value in fields.items()):
            raise InvalidError("a namespace field is too long")
        text = json.dumps([sorted(fields.items()), layers, slice_bytes])
        name = hashlib.sha256(text.encode()).hexdigest()[:32]
        with self.guard:
            bank = self.banks.setdefault(name, Bank(dict(fields), layers, slice_bytes))
        return Namespace(self, name, bank)

    def namespaces(self) -> list[Namespace]:
        """Returns the namespaces that are known, in the order of their ids."""
        self.check_open()
        with self.guard:
            return [Namespace(self, name, bank) for name, bank in sorted(self.banks.items())]

    def watch_removals(self, capacity: int = 65536) -> RemovalWatch:
        """Starts to note the blocks that leave the store."""
        self.check_open()
        if not 1 <= capacity <= 1 << 24:
            raise InvalidError(f"capacity is {capacity}; it must be 1 to {1 << 24}")
        self._watches.append(RemovalWatch(self, capacity))
        return self._watches[-1]

    def note_removals(self, namespace: str, gone: list[bytes]) -> None:
        """Notes that blocks left."""
        for watch in self._watches:
            for one in gone:
                watch.note((namespace, one))

    def close(self) -> None:
        """Waits for transfers under way and lets go of the directory."""
        if self.closed:
            return
        self._threads.shutdown(wait=True)
        self.closed = True
        target = Path(self.path) / BLOCKS_FILE
        scratch = target.with_suffix(".tmp")
        scratch.write_bytes(pickle.dumps((self.id, self.banks)))
        scratch.replace(target)
        os.close(self._lock)

    def __enter__(self) -> Self:
        """Returns the store."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes it."""
        self.close()


def _lock(path: Path) -> int:
    """Takes the directory for this process."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise UnavailableError(f"cannot use {path}: {error}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise UnavailableError(f"{path} is open in another process") from error
    return handle


def info(path: str) -> dict[str, Any]:
    """Facts about a store that nobody has open."""
    with Store(path, "{}") as store:
        blocks, size = store.stats()["blocks"], store.stats()["disk_bytes"]
        rows = [{"id": name, "fields": bank.fields} for name, bank in store.banks.items()]
        return {"id": store.id, "blocks": blocks, "block_bytes": size, "namespaces": rows}


def list_extents(path: str) -> list[dict[str, Any]]:
    """The namespaces of a store that nobody has open; every block is an extent here."""
    with Store(path, "{}") as store:
        return [
            {"id": name, "extent_rows": [{"first_hash": one.hex()} for one in bank.blocks]}
            for name, bank in store.banks.items()
        ]


def verify(path: str, progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
    """Reads and checks every byte of a store that nobody has open."""
    findings: list[dict[str, Any]] = []
    with Store(path, "{}") as store:
        total = store.stats()["disk_bytes"]
        for bank in store.banks.values():
            for one, (digest, data) in bank.blocks.items():
                if hashlib.sha256(data).digest() != digest:
                    findings.append({"file": BLOCKS_FILE, "offset": 0, "what": one.hex()})
        if progress is not None:
            progress(total, total)
        return {"blocks": store.stats()["blocks"], "findings": findings}


def wait_until(condition: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    """Polls a condition; a helper of tests."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True
