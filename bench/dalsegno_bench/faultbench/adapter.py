"""The interface of a store under test."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

__all__ = ["Adapter"]

THREADS = 8


class Adapter(ABC):
    """A store, open in this process.

    The constructor ``C(directory, *, capacity_bytes, block_bytes)`` opens the store in an existing
    directory, where an earlier process may have left one. An adapter uses the store as its users
    do, with the defaults of its makers where a probe does not need something else, and says in
    ``settings`` what it chose. It never makes the store better than it is: no checks, no retries.

    A call may raise; a put that raises has acknowledged nothing, a get that raises got nothing.
    Calls come one at a time, except those of :meth:`put_all` and :meth:`get_all`.

    Attributes:
        settings: What was chosen, in a few words.
        bounded: Whether the store keeps within ``capacity_bytes``.
        pieces: In how many pieces of equal size the store's files hold a block.
        header_bytes: Bytes right before a block that belong to its record.
        temporary: Patterns of files that must not outlive the call that made them.
        rate: The part of the capacity that may be put before :meth:`settle` is called.
        settle_s: Seconds that :meth:`settle` waits.
    """

    settings: ClassVar[str] = "defaults"
    bounded: ClassVar[bool] = True
    pieces: ClassVar[int] = 1
    header_bytes: ClassVar[int] = 0
    temporary: ClassVar[tuple[str, ...]] = ()
    rate: ClassVar[float] = 0.1
    settle_s: ClassVar[float] = 0.0

    @abstractmethod
    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> list[bool]:
        """Stores blocks, in the order of their prompt; returns which the store acknowledges."""

    @abstractmethod
    def exists(self, keys: Sequence[bytes]) -> list[bool]:
        """Returns which blocks are present, as an engine asks before a get."""

    @abstractmethod
    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Fetches blocks, each for itself; ``None`` is a miss."""

    @abstractmethod
    def close(self) -> None:
        """Closes the store in good order."""

    def put_all(
        self, keys: Sequence[Sequence[bytes]], blocks: Sequence[Sequence[bytes]]
    ) -> list[list[bool]]:
        """Puts many batches, all under way at a time as far as the store lets callers do so."""
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(self.put, keys, blocks))

    def get_all(self, keys: Sequence[Sequence[bytes]]) -> list[list[bytes | None]]:
        """Gets many batches likewise."""
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(self.get, keys))

    def settle(self) -> None:
        """Gives the store the time that its housekeeping needs, such as eviction by the second."""
        time.sleep(self.settle_s)
