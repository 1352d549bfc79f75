"""The reference store's watch of removals."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.contract.reference_store import Store


class RemovalWatch:
    """A subscription to the blocks that leave a store."""

    def __init__(self, store: Store, capacity: int) -> None:
        """Starts with an empty queue."""
        self._store, self._capacity, self._gap = store, capacity, False
        self._left: list[tuple[str, bytes]] = []

    def note(self, block: tuple[str, bytes]) -> None:
        """Notes that a block left."""
        if len(self._left) < self._capacity:
            self._left.append(block)
        else:
            self._gap = True

    @property
    def waiting(self) -> int:
        """How many blocks wait to be taken."""
        return len(self._left) + self._gap

    def take(self, limit: int) -> tuple[dict[str, list[bytes]], bool]:
        """Takes the blocks that left first."""
        if self._store.closed:
            return {}, False
        gone: dict[str, list[bytes]] = {}
        with self._store.guard:
            taken, self._left = self._left[:limit], self._left[limit:]
            for name, one in dict.fromkeys(taken):
                if one not in self._store.banks[name].blocks:
                    gone.setdefault(name, []).append(one)
            complete, self._gap = not self._gap, False
        return gone, complete
