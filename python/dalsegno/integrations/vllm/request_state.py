"""What a tier knows about a request: which of its blocks the store has.

1. A key is looked up in the store once per request; vLLM asks for all keys again on every step that
   a request waits, and those answers come from a dictionary.
2. Keys are looked up in batches, in prompt order if vLLM knows it, and in vLLM's direction:
   forwards, and backwards for sliding windows.
3. A key whose load failed is a miss for as long as the request lives: asking again would defer the
   request forever.
4. How much is loaded is decided once per request, and again after a preemption.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from dalsegno.integrations.vllm import compat
from dalsegno.integrations.vllm.inputs import Content, names

if TYPE_CHECKING:
    from dalsegno.integrations.vllm.advice import Advice

# Keys per look-up in the store: some hundred microseconds, far below an engine step.
BATCH_KEYS = 256


class RequestState:
    """The keys of one request."""

    __slots__ = (
        "_index",
        "_order",
        "_positions",
        "_seen",
        "advice",
        "bypass",
        "content",
        "failed",
        "is_scheduled",
        "known",
        "loads",
        "saved_s",
        "unannounced",
        "waited_enough",
        "waited_s",
        "waiting_since",
    )

    def __init__(
        self,
        positions: Mapping[bytes, int],
        *,
        bypass: bool = False,
        content: Content | None = None,
    ) -> None:
        """Makes the state of a new request.

        Args:
            positions: End token of each key of the request, as far as vLLM knows; it grows.
            bypass: Whether the store must not serve or keep anything of this request.
            content: Its media, which vLLM's hashes do not commit to.
        """
        self.bypass, self.content = bypass, content
        self.known: dict[bytes, bool] = {}
        self.failed: set[bytes] = set()
        # How often each block was loaded for this request.
        self.loads: dict[bytes, int] = {}
        # Since when its lookups are deferred, how long they were before, and whether it is enough.
        self.waiting_since: float | None = None
        self.waited_s = 0.0
        self.waited_enough = False
        # Whether vLLM has scheduled it, and loaded blocks that KV events do not name yet.
        self.is_scheduled = False
        self.unannounced: list[bytes] = []
        # What is loaded for it, once that was decided, and what loads had saved when it came.
        self.advice: Advice | None = None
        self.saved_s = 0.0
        self._positions = positions
        self._order: dict[bytes, list[bytes]] = {}
        self._index: dict[bytes, int] = {}
        self._seen = 0

    def fresh_copy(self) -> RequestState:
        """Returns the state of the same request without any knowledge."""
        fresh = RequestState(self._positions, bypass=self.bypass, content=self.content)
        # vLLM schedules for the first time once.
        fresh.is_scheduled = self.is_scheduled
        fresh.saved_s = self.saved_s
        return fresh

    def names(self, keys: Sequence[bytes]) -> list[bytes]:
        """Returns the names of some of its blocks in the store."""
        return names(self.content, keys, self._positions)

    def learn(self, keys: Iterable[bytes], present: Iterable[bool]) -> None:
        """Notes which keys the store has."""
        for key, found in zip(keys, present, strict=True):
            self.known[key] = found and key not in self.failed

    def fail(self, keys: Iterable[bytes]) -> None:
        """Notes keys that could not be loaded: they stay a miss."""
        for key in keys:
            self.failed.add(key)
            self.known[key] = False

    def count_loads(self, keys: Iterable[bytes]) -> None:
        """Notes that a load of some blocks starts."""
        for key in keys:
            self.loads[key] = self.loads.get(key, 0) + 1

    def forget_misses(self) -> None:
        """Lets a preempted request begin again, except with keys whose load failed."""
        self.waiting_since, self.waited_s, self.waited_enough = None, 0.0, False
        self.loads.clear()
        self.advice = None
        self.known = {
            key: found for key, found in self.known.items() if found or key in self.failed
        }

    def position(self, key: bytes) -> int | None:
        """Returns the end token of a key in the prompt, if vLLM knows it."""
        return self._positions.get(key)

    def place(self, key: bytes) -> tuple[list[bytes], int] | None:
        """Returns the keys of a key's group in the order of the prompt, and where it is."""
        self._sort()
        at = self._index.get(key)
        return None if at is None else (self._order[key[-compat.GROUP_BYTES :]], at)

    def _sort(self) -> None:
        """Sorts the keys into their groups, if vLLM added some since."""
        if len(self._positions) != self._seen:
            self._seen, self._order = len(self._positions), {}
            for one in sorted(self._positions, key=self._positions.__getitem__):
                self._order.setdefault(one[-compat.GROUP_BYTES :], []).append(one)
            self._index = {
                one: index for keys in self._order.values() for index, one in enumerate(keys)
            }

    def chains(self) -> list[list[bytes]]:
        """Returns the keys of each group in the order of the prompt, as far as vLLM knows it."""
        self._sort()
        return list(self._order.values())

    def batch(self, key: bytes) -> list[bytes]:
        """Returns the keys to look up when one is asked for: it and its unknown neighbours."""
        place = self.place(key)
        if place is None:
            return [key]
        keys, at = place
        backwards = at + 1 < len(keys) and keys[at + 1] in self.known
        first = max(0, at + 1 - BATCH_KEYS) if backwards else at
        around = keys[first : first + BATCH_KEYS]
        return [one for one in around if one == key or one not in self.known]

    def before(self, key: bytes) -> bytes | None:
        """Returns the key that comes right before another in its group, if vLLM knows it."""
        place = self.place(key)
        if place is None or place[1] == 0:
            return None
        keys, at = place
        return keys[at - 1]
