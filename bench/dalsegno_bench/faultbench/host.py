"""The process that a store lives in, and the one it is forked from.

An engine takes seconds to import, and a probe opens a store several times. So one process imports
the adapter and then only forks: each fork opens the store once, serves calls, and is killed or
asked to end. Nothing is opened before the fork.

A connection carries ``(call, arguments)`` one way and ``(whether it worked, value or error)`` back.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any

from dalsegno_bench.faultbench.adapter import Adapter
from dalsegno_bench.faultbench.blocks import content, judge

FACTS = ("settings", "bounded", "pieces", "header_bytes", "temporary", "rate")


def load(adapter: str) -> type[Adapter]:
    """Imports an adapter.

    Raises:
        ImportError: The store's package is missing, or one it needs.
    """
    module, _, name = adapter.partition(":")
    found: type[Adapter] = getattr(importlib.import_module(module), name)
    return found


class Served:
    """One opened store, and the calls that come over the connection."""

    def __init__(self, adapter: type[Adapter]) -> None:
        self._class = adapter
        self._store: Any = None
        self._block_bytes = 0

    def open(self, directory: str, capacity_bytes: int, block_bytes: int) -> None:
        """Opens the store."""
        self._block_bytes = block_bytes
        make: Callable[..., Adapter] = self._class
        self._store = make(Path(directory), capacity_bytes=capacity_bytes, block_bytes=block_bytes)

    def put(self, keys: Sequence[bytes]) -> tuple[list[bool], float]:
        """Puts blocks; returns what was acknowledged, and after how many seconds."""
        blocks = [content(key, self._block_bytes) for key in keys]
        began = time.perf_counter()
        return self._store.put(keys, blocks), time.perf_counter() - began

    def timed_get(self, keys: Sequence[bytes]) -> tuple[list[str], float]:
        """Gets blocks and judges each; returns after how many seconds they were there, too."""
        began = time.perf_counter()
        got = self._store.get(keys)
        seconds = time.perf_counter() - began
        return self._judged(keys, got), seconds

    def put_all(self, batches: Sequence[Sequence[bytes]]) -> list[list[bool]]:
        """Puts many batches at a time."""
        blocks = [[content(key, self._block_bytes) for key in keys] for keys in batches]
        acknowledged: list[list[bool]] = self._store.put_all(batches, blocks)
        return acknowledged

    def get(self, keys: Sequence[bytes]) -> list[str]:
        """Gets blocks, and judges each."""
        return self._judged(keys, self._store.get(keys))

    def get_all(self, batches: Sequence[Sequence[bytes]]) -> list[list[str]]:
        """Gets many batches at a time."""
        got = self._store.get_all(batches)
        return [self._judged(keys, came) for keys, came in zip(batches, got, strict=True)]

    def exists(self, keys: Sequence[bytes]) -> list[bool]:
        """Returns which blocks are present."""
        present: list[bool] = self._store.exists(keys)
        return present

    def settle(self) -> None:
        """Lets the store do its housekeeping."""
        self._store.settle()

    def held(self) -> dict[str, int]:
        """Counts what the process holds: open files and threads."""
        return {
            "open files": len(list(Path("/proc/self/fd").iterdir())),
            "threads": len(list(Path("/proc/self/task").iterdir())),
        }

    def close(self) -> None:
        """Closes the store."""
        self._store.close()

    def _judged(self, keys: Sequence[bytes], got: Sequence[bytes | None]) -> list[str]:
        return [judge(key, one, self._block_bytes) for key, one in zip(keys, got, strict=True)]


def serve(connection: Connection, served: Served) -> None:
    """Answers calls until the other side hangs up."""
    while True:
        try:
            call, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = (True, getattr(served, call)(*arguments))
        except Exception as error:  # noqa: BLE001 - what a store raises is what we look at
            answer = (False, f"{type(error).__name__}: {error}")
        connection.send(answer)


def main(descriptor: int, adapter: str) -> None:
    """Imports an adapter, then forks a process for each request.

    Args:
        descriptor: A connection, inherited; what is forked gets one of its own over it.
        adapter: Its ``module:class``.
    """
    connection = Connection(descriptor)
    try:
        found = load(adapter)
    except BaseException as error:  # noqa: BLE001 - an engine's import may even exit
        connection.send((False, f"{type(error).__name__}: {error}"))
        return
    connection.send((True, {name: getattr(found, name) for name in FACTS}))
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        if isinstance(request, int):
            connection.send(os.waitstatus_to_exitcode(os.waitpid(request, 0)[1]))
            continue
        handle = recv_handle(connection)
        pid = os.fork()
        if pid == 0:
            connection.close()
            serve(Connection(handle), Served(found))
            sys.stderr.flush()
            os._exit(0)
        os.close(handle)
        connection.send(pid)
