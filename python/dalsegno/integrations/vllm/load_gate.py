"""Which loads may start: a bound on what is on its way into vLLM's primary tier.

vLLM takes a row of its primary tier for each block inside `lookup`, so a load that is refused when
it is submitted has already evicted something (vllm#49902). Lookups are therefore what is bounded.

1. At most `max_load_bytes` and `max_load_jobs` are in flight. A lookup beyond that is answered
   RETRY: vLLM asks again at its next step. So is a lookup while every row of the primary tier is in
   use by transfers, for which vLLM would compute the rest of the prompt.
2. A request is deferred for `load_timeout_s` in all, over all of its waits. After that its blocks
   are misses and it is computed. A preempted request begins again.
3. A block whose load failed or came too late is a miss for every request for `failed_load_pause_s`,
   or until it is stored again (vllm#49176).
4. A request loads a block at most twice: vLLM may have evicted it in between, and would go on so.
5. Something is always let through if nothing is in flight, however large a row is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from vllm.v1.kv_offload.base import LookupResult

from dalsegno.integrations.vllm.jobs import JobBook
from dalsegno.integrations.vllm.metrics import Meter
from dalsegno.integrations.vllm.request_state import RequestState
from dalsegno.integrations.vllm.settings import TierSettings

# Blocks whose failed load is remembered; the oldest are forgotten first.
MOST_PAUSED = 1 << 16
MOST_LOADS = 2


class LoadGate:
    """Answers lookups of blocks that the store has."""

    def __init__(
        self,
        settings: TierSettings,
        row_bytes: int,
        total_bytes: int,
        jobs: JobBook,
        meter: Meter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts with nothing promised.

        Args:
            settings: The bounds.
            row_bytes: Bytes of a block.
            total_bytes: Bytes of the primary tier.
            jobs: The jobs in flight.
            meter: Counts lookups that were deferred.
            clock: Seconds, monotonic.
        """
        self._most_bytes = settings.max_load_bytes or total_bytes // 2
        self._most_jobs = settings.max_load_jobs
        self._timeout_s, self._pause_s = settings.load_timeout_s, settings.failed_load_pause_s
        self._row_bytes, self._jobs, self._meter, self._clock = row_bytes, jobs, meter, clock
        # Hits of this step, whose loads vLLM submits at its end: one job for each request.
        self._promised_bytes = 0
        self._promised_to: set[int] = set()
        # Until when a block is a miss; in the order of their failures.
        self._paused: dict[bytes, float] = {}

    def answer(self, key: bytes, state: RequestState, *, row_is_free: bool = True) -> LookupResult:
        """Returns HIT if the load of a block may start, else RETRY or MISS.

        Args:
            key: The block.
            state: Its request.
            row_is_free: Whether vLLM's primary tier can take one more block.
        """
        if (
            state.waited_enough
            or (state.loads and state.loads.get(key, 0) >= MOST_LOADS)
            or (self._paused and self._is_paused(key))
        ):
            return LookupResult.MISS
        if row_is_free and self._has_place(state):
            if state.waiting_since is not None:
                state.waited_s += self._clock() - state.waiting_since
                state.waiting_since = None
            self._promised_bytes += self._row_bytes
            self._promised_to.add(id(state))
            return LookupResult.HIT
        self._meter.count("deferred_lookups")
        if not row_is_free:
            self._meter.count("full_tier_lookups")
        now = self._clock()
        if state.waiting_since is None:
            state.waiting_since = now
        # Also at the first RETRY of a wait: hits between short waits would extend it without limit.
        if state.waited_s + now - state.waiting_since >= self._timeout_s:
            state.waited_enough = True
            self._meter.count("deferral_timeouts")
            return LookupResult.MISS
        return LookupResult.RETRY

    def _has_place(self, state: RequestState) -> bool:
        """Whether one more block of a request may be loaded."""
        loading_bytes = self._jobs.loading_bytes() + self._promised_bytes
        if loading_bytes == 0:
            return True
        if loading_bytes + self._row_bytes > self._most_bytes:
            return False
        if id(state) in self._promised_to:
            return True
        return self._jobs.under_way(is_load=True) + len(self._promised_to) < self._most_jobs

    def end_step(self) -> None:
        """Forgets what was promised: vLLM has submitted the loads that it made of it."""
        self._promised_bytes = 0
        self._promised_to.clear()

    def note_failed(self, keys: Iterable[bytes]) -> None:
        """Makes blocks whose load failed misses for a while."""
        until = self._clock() + self._pause_s
        for key in keys:
            self._paused.pop(key, None)
            self._paused[key] = until
        while len(self._paused) > MOST_PAUSED:
            del self._paused[next(iter(self._paused))]

    def note_written(self, keys: Iterable[bytes]) -> None:
        """Ends the pause of blocks that were written again."""
        if self._paused:
            for key in keys:
                self._paused.pop(key, None)

    def _is_paused(self, key: bytes) -> bool:
        """Whether a block is a miss since its load failed."""
        until = self._paused.get(key)
        if until is None:
            return False
        if self._clock() < until:
            return True
        del self._paused[key]
        return False
