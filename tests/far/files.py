"""What tests do with the files of two mounts."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
BLOCK_BYTES = 4096


def write(path: Path, content: bytes, *, direct: bool = False, sync: bool = False) -> None:
    """Writes a new file.

    Args:
        path: The file.
        content: Its bytes; whole blocks if `direct`.
        direct: Whether to use O_DIRECT.
        sync: Whether to sync the file and its folder.
    """
    flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | (os.O_DIRECT if direct else 0)
    # O_DIRECT needs aligned memory.
    with mmap.mmap(-1, max(len(content), 1)) as aligned:
        aligned[: len(content)] = content
        file = os.open(path, flags, 0o600)
        try:
            with memoryview(aligned) as view:
                done = 0
                while done < len(content):
                    with view[done : len(content)] as left:
                        done += os.write(file, left)
            if sync:
                os.fsync(file)
        finally:
            os.close(file)
    if sync:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_direct(path: Path) -> bytes:
    """Reads a file of whole blocks with O_DIRECT."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        size = os.fstat(file).st_size
        content = bytearray()
        with mmap.mmap(-1, 1 << 20) as aligned:
            while len(content) < size:
                count = os.preadv(file, [aligned], len(content))
                if count == 0:
                    break
                content += aligned[:count]
        return bytes(content)
    finally:
        os.close(file)


def in_background(call: Callable[[], T]) -> Future[T]:
    """Calls a function in a thread of its own.

    No signal ends a call that waits for a mount, so the thread of the tests never makes one that
    may hang. The call ends with the mount.
    """
    result: Future[T] = Future()

    def work() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            result.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return result


def race(rounds: int, calls: tuple[Callable[[int], None], Callable[[int], None]]) -> list[set[int]]:
    """Calls two functions at the same time, round by round.

    Args:
        rounds: How often.
        calls: Functions of the round that raise FileExistsError where the other one was first.

    Returns:
        The rounds that the first function won, and those of the second.
    """
    start = threading.Barrier(2)

    def won_by(call: Callable[[int], None]) -> set[int]:
        won = set()
        for number in range(rounds):
            start.wait(60)
            try:
                call(number)
            except FileExistsError:
                continue
            won.add(number)
        return won

    running = [in_background(partial(won_by, call)) for call in calls]
    return [one.result(timeout=100) for one in running]
