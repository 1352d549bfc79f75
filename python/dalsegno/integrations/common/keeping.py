"""Decides whether blocks are written to the disk: some could never be loaded soon enough to pay.

1. Blocks stay in the pool only if loading them from the disk would save less than `min_gain` of
   computing them, even beside the computing of others, for this engine and for every other engine
   of the model that is known to use the store.
2. What is only assumed decides nothing: steps were measured, and the disk by loads, or by a probe a
   short time ago.
3. With a far directory everything is written: another host may be slower, or its link faster.
4. No call waits: other threads probe the disk, and read what other engines have learned.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from dalsegno import profiles
from dalsegno.integrations.common import probe
from dalsegno.integrations.common.deciding import LoadDecider
from dalsegno.paths import SOCKET_PREFIX

# Loads that show how fast the disk of a server is.
FEW_LOADS = 3
# After how many seconds the disk is probed again, and what other engines have learned is read
# again. Both count for twice as long.
PROBE_S, OTHERS_S = 300.0, 30.0
# Profiles that are read. With more of them, a slower engine might be overlooked.
MOST_OTHERS = 256

T = TypeVar("T")


class _Fresh(Generic[T]):
    """Something that another thread finds out again and again."""

    def __init__(
        self, find: Callable[[], T | None], every_s: float, now: Callable[[], float]
    ) -> None:
        self._find, self._every_s, self._now = find, every_s, now
        self._found: T | None = None
        self._found_at, self._finding = -math.inf, threading.Lock()

    def get(self) -> T | None:
        """Returns what was found a short time ago; None if that is unknown."""
        age_s = self._now() - self._found_at
        if age_s >= self._every_s and self._finding.acquire(blocking=False):
            try:
                threading.Thread(target=self._renew, name="dalsegno-probe", daemon=True).start()
            except RuntimeError:
                # The process has too many threads.
                self._finding.release()
        return self._found if age_s < 2 * self._every_s else None

    def _renew(self) -> None:
        try:
            self._found = self._find()
            self._found_at = self._now()
        finally:
            self._finding.release()


class SaveDecider:
    """Decides for one engine. Why it declined last stands in the engine's profile.

    Attributes:
        has_declined: Whether blocks were not written: a later prompt with them may be worth it.
    """

    def __init__(
        self,
        min_gain: float,
        loads: LoadDecider,
        has_far: Callable[[], bool],
        *,
        now: Callable[[], float] = time.monotonic,
        measure: Callable[[Path], tuple[float, float] | None] = probe.disk,
    ) -> None:
        """Starts by writing everything.

        Args:
            min_gain: Part of computing that a load from the disk must save; 0 writes everything.
            loads: Knows the costs.
            has_far: Returns whether the store has a far directory.
            now: Seconds, monotonic.
            measure: Returns the latency of a disk in s, and its bytes per second.
        """
        self._min_gain, self._loads, self._has_far = min_gain, loads, has_far
        self._place = loads.profile.engine.get("store", "")
        self._disk = _Fresh(lambda: measure(Path(self._place)), PROBE_S, now)
        self._others = _Fresh(self._read_others, OTHERS_S, now)
        self.has_declined = False

    def writes(self, tokens: int) -> bool:
        """Whether the blocks of a prompt of so many tokens are written."""
        if not self._min_gain or not self._loads.knows_steps:
            return True
        loaded_s = self._loaded_s(tokens)
        if loaded_s is None or self._gain(self._loads.model, tokens, loaded_s) >= self._min_gain:
            return True
        others = None if self._has_far() else self._others.get()
        if others is None:
            return True
        if any(self._gain(other, tokens, loaded_s) >= self._min_gain for other in others):
            return True
        computed_s = self._computed_s(self._loads.model, tokens)
        self.has_declined = True
        self._loads.profile.notes["saves_declined"] = {
            "tokens": tokens,
            "computed_s": computed_s,
            "loaded_s": loaded_s,
        }
        return False

    def _gain(self, model: Any, tokens: int, loaded_s: float) -> float:
        """Returns the part of computing that loads save which run beside it."""
        computed_s = self._computed_s(model, tokens)
        return computed_s / (computed_s + loaded_s)

    def _computed_s(self, model: Any, tokens: int) -> float:
        return float(model.request_s(0.0, float(tokens), float(self._loads.engine.chunk)))

    def _loaded_s(self, tokens: int) -> float | None:
        """Returns the seconds of a load from the disk, as short as they may be; None if unknown."""
        engine = self._loads.engine
        size = tokens / engine.block_tokens * engine.block_bytes
        learned = self._loads.model.explain()["log"]
        coefficients = learned["coefficients"]
        expected_s = coefficients["latency_s"] + size * coefficients["byte_s"]
        if self._place.startswith(SOCKET_PREFIX):
            return expected_s if learned["measured"] >= FEW_LOADS else None
        probed = self._disk.get()
        if probed is None:
            return None
        latency_s, bytes_per_s = probed
        return float(min(expected_s, latency_s + size / bytes_per_s))

    def _read_others(self) -> list[Any] | None:
        """Returns what other engines of the model have learned that use the store.

        None if that is unknown.
        """
        own = self._loads.profile
        if own.path is None:
            return None
        files = profiles.files(own.path.parent)
        if len(files) > MOST_OTHERS:
            return None
        known = [profiles.read(path) for path in files if path != own.path]
        same = ("model", "store", "block_bytes")
        return [
            own.model_of(one)
            for one in known
            if one and all(one["engine"].get(key) == own.engine.get(key) for key in same)
        ]
