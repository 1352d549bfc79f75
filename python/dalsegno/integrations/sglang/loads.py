"""Which pages that the store has are loaded: those that are predicted to come sooner than computed.

SGLang looks pages up on one thread and loads them on another one, and its scheduler reports steps
on a third one.

1. The lock is never held during I/O.
2. A load is under way only while it runs. A page that was promised and is never asked for (another
   rank has fewer, the request was aborted) counts as queued for a few seconds.
3. No request waits so that a tier is measured again (`rereads.py`).
4. Where steps cannot be measured, whatever hits is loaded. What fails here never fails a load.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dalsegno import merge_located
from dalsegno.integrations.common.deciding import LoadDecider
from dalsegno.integrations.common.rereads import Rereads
from dalsegno.integrations.common.steps import StepTime, StepWork
from dalsegno.integrations.common.wishes import Runs, Wish, part
from dalsegno.integrations.sglang import costs, steps
from dalsegno.integrations.sglang.pools import PoolPages
from dalsegno.integrations.sglang.settings import HiCacheSettings
from dalsegno.integrations.sglang.transfers import Moved
from dalsegno.profiles import TIERS

logger = logging.getLogger("sglang.dalsegno")
T = TypeVar("T")

# SGLang may ask in batches of so many pages, and goes on after a full one.
BATCH_PAGES = 128
# Promises that are remembered.
MOST_PROMISES = 64
# SGLang starts a load when its scheduler looks next, after the step that it computes.
START_S = 2.0


@dataclass
class _Chain:
    """Batches of one prompt that were taken whole: SGLang asks about the next one.

    Attributes:
        first: Pages before them.
        runs: Their tiers.
        promises: The first page of each batch.
        end: Their last page.
    """

    first: int
    runs: list[tuple[str, int]] = field(default_factory=list)
    promises: set[bytes] = field(default_factory=set)
    end: bytes = b""

    @property
    def pages(self) -> int:
        """How many there are."""
        return sum(count for _, count in self.runs)


@dataclass
class _Promise:
    """Pages that SGLang was promised and has not loaded.

    Attributes:
        hashes: The pages.
        runs: Their tiers.
        limit_s: Seconds after which their load is given up.
        until: When they are forgotten, and their load is given up once it has begun.
        has_begun: Whether the first of them were loaded.
    """

    hashes: Sequence[bytes]
    runs: list[tuple[str, int]]
    limit_s: float
    until: float
    has_begun: bool = False


class Loads:
    """Decides for one backend, and measures its loads."""

    def __init__(self, settings: HiCacheSettings, config: Any, store: Callable[[], Any]) -> None:
        """Starts without knowing what a page is.

        Args:
            settings: Of the backend.
            config: SGLang's `HiCacheStorageConfig`.
            store: Returns the open store; None without one.
        """
        self._settings, self._config, self._store = settings, config, store
        self._lock = threading.Lock()
        self._decider: LoadDecider | None = None
        self._rereads: Rereads | None = None
        self._has_failed = False
        self._numbers = itertools.count()
        self._promised: OrderedDict[bytes, _Promise] = OrderedDict()
        self._chain = _Chain(0)

    def open(self, pages: PoolPages) -> None:
        """Prepares to decide about pages of the KV. Never raises: then whatever hits is loaded.

        Args:
            pages: Of the KV pool. One without bytes only stands for others.
        """
        problem = "" if steps.are_seen() else "SGLang's scheduler is not known in this process"
        try:
            if pages.shape.block_bytes:
                decider = costs.decider(self._settings, self._config, pages)
                self._decider, self._rereads = decider, Rereads(decider)
                steps.listen(self)
            else:
                problem = "the pages of the KV have no bytes of their own"
        except Exception as error:  # noqa: BLE001 - it serves as it would without costs
            problem = repr(error)
        if problem and self._settings.load_policy == "auto":
            logger.warning("Dalsegno loads every hit, as costs cannot be measured: %s", problem)

    def begin_step(self, work: StepWork | None) -> None:
        """Says to the store what a step does."""
        decider = self._decider
        if decider is not None:
            self._safely(lambda: decider.phases.begin_step(self._store(), work), None)

    def note_step(self, step: StepTime) -> None:
        """Learns how long a step took."""
        decider = self._decider
        if decider is not None:
            with self._lock:
                decider.note_step(step)

    def choose(
        self,
        space: Any,
        hashes: Sequence[bytes],
        found: int,
        before: Sequence[bytes] = (),
        beside: int = 0,
    ) -> int:
        """Returns how many of the leading pages that the store has are loaded.

        SGLang asks about all whole pages behind those that it has, so the prompt is assumed to end
        one token after them. If it asks in batches, the next batch of the same prompt continues the
        one before, and its load does not begin again.

        Args:
            space: The namespace of the pages; None if they have none.
            hashes: The pages that SGLang asks about.
            found: How many leading ones the store has.
            before: The pages before them, as far as SGLang passes them; it leaves out some. Without
                them the prompt is assumed to begin here: computing is assumed to be too cheap.
            beside: Bytes of other pools that must be loaded as well.
        """
        decider, policy = self._decider, self._settings.load_policy
        if policy == "never" or not found:
            return 0
        knows = decider is not None and space is not None and steps.are_seen()
        if policy == "always" or decider is None or not knows or costs.nobody_waits():
            return found
        runs = merge_located([space.locate(hashes[:found])], found)

        def decide() -> int:
            wish, taken = self._decide(decider, hashes, runs, before, beside)
            if self._rereads is not None:
                self._rereads.take()
                if taken < found:
                    rest, loaded = part(runs, taken), part(runs, 0, taken)
                    computed_s = decider.computed_s(wish)
                    self._rereads.offer([space], hashes[taken:found], rest, computed_s, loaded)
            return taken

        return self._safely(decide, found)

    def _safely(self, work: Callable[[], T], otherwise: T) -> T:
        """Does something with the lock; an exception is logged once, and harmless."""
        try:
            with self._lock:
                return work()
        except Exception as error:  # noqa: BLE001 - it serves as it would without costs
            if not self._has_failed:
                self._has_failed = True
                logger.warning("Dalsegno cannot measure or predict loads: %r", error)
            return otherwise

    def _decide(
        self,
        decider: LoadDecider,
        hashes: Sequence[bytes],
        runs: list[tuple[str, int]],
        before: Sequence[bytes],
        beside: int,
    ) -> tuple[Wish, int]:
        """Returns what could be loaded, and how many of these pages are; the lock is held."""
        chain, self._chain = self._chain, _Chain(0)
        if not before or before[-1] != chain.end:
            chain = _Chain(len(before))
        own = {*chain.promises, hashes[0]}
        promised = self._bytes(decider.engine.block_bytes, own)
        promised[runs[0][0]] += beside
        tokens = decider.engine.block_tokens
        wish = Wish(
            _joined(chain.runs, runs),
            chain.first * tokens,
            (chain.first + chain.pages + len(hashes)) * tokens + 1,
            waiting=steps.waiting(),
            promised=promised,
            is_beside=steps.is_computing(),
            longest=steps.longest(),
        )
        decided = decider.decide(wish)
        taken = max(0, decided.blocks - chain.pages)
        if taken:
            limit_s = decider.limit_s(decided, self._settings.load_timeout_s)
            self._promise(hashes[:taken], runs, limit_s)
            if taken == len(hashes) and taken % BATCH_PAGES == 0:
                self._chain = _Chain(chain.first, list(wish.runs), own, hashes[-1])
        return wish, taken

    def _bytes(self, page_bytes: int, own: set[bytes]) -> dict[str, int]:
        """Returns the bytes that were promised, by tier, but for some promises."""
        now = time.monotonic()
        for key in [key for key, one in self._promised.items() if one.until < now]:
            del self._promised[key]
        promised = dict.fromkeys(TIERS, 0)
        for key, one in self._promised.items():
            for tier, count in one.runs if key not in own else ():
                promised[tier] += count * page_bytes
        return promised

    def _promise(self, hashes: Sequence[bytes], runs: Runs, limit_s: float) -> None:
        """Remembers pages that SGLang will load."""
        until = time.monotonic() + START_S + limit_s
        kept = part(runs, 0, len(hashes))
        self._promised[hashes[0]] = _Promise(hashes, kept, limit_s, until)
        while len(self._promised) > MOST_PROMISES:
            self._promised.popitem(last=False)

    def measured(
        self,
        space: Any,
        hashes: Sequence[bytes],
        move: Callable[[float | None], Moved],
        *,
        is_kv: bool,
    ) -> Moved:
        """Loads pages of a pool, and learns how long that took.

        Args:
            space: Their namespace.
            hashes: The pages.
            move: Loads them; it gets the seconds after which the rest is given up, or None.
            is_kv: Whether they may have been promised.
        """
        decider = self._decider
        if decider is None or not hashes:
            return move(None)
        runs, number = merge_located([space.locate(hashes)], len(hashes)), next(self._numbers)
        sizes: dict[str, int] = {}
        for tier, count in runs:
            sizes[tier] = sizes.get(tier, 0) + count * space.block_bytes

        def begin() -> float | None:
            decider.begin_bytes(number, sizes)
            if self._rereads is not None:
                self._rereads.note_loaded(runs)
            return self._begin(hashes) if is_kv else None

        timeout_s = self._safely(begin, None)
        began_at, seconds, is_whole = time.monotonic(), 0.0, False
        try:
            moved = move(timeout_s)
            seconds, is_whole = time.monotonic() - began_at, moved.pages == len(hashes)
        finally:
            self._safely(lambda: decider.end_load(number, seconds, is_whole=is_whole), None)
        return moved

    def _begin(self, hashes: Sequence[bytes]) -> float | None:
        """Notes that promised pages are loaded; returns the seconds until that is given up."""
        promise = self._promised.pop(hashes[0], None)
        if promise is None:
            return None
        now = time.monotonic()
        if not promise.has_begun:
            promise.has_begun, promise.until = True, now + promise.limit_s
        rest = promise.hashes[len(hashes) :]
        if rest:
            promise.runs = part(promise.runs, len(hashes), len(promise.hashes))
            promise.hashes = rest
            self._promised[rest[0]] = promise
        return min(self._settings.load_timeout_s, max(1e-3, promise.until - now))

    def close(self) -> None:
        """Keeps what was learned; no load may be under way."""
        steps.ignore(self)
        if self._decider is not None:
            self._decider.close()


def _joined(runs: Runs, more: Runs) -> list[tuple[str, int]]:
    """Returns runs in a row; neighbours of one tier become one."""
    joined = list[tuple[str, int]]()
    for tier, count in (*runs, *more):
        if joined and joined[-1][0] == tier:
            joined[-1] = (tier, joined[-1][1] + count)
        else:
            joined.append((tier, count))
    return joined
