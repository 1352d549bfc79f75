"""What an adapter counts, and what it says in the log.

1. Counting never fails and never waits for anything but other counting.
2. Of one kind of trouble at most one line is logged in half a minute; the counter has them all.
"""

from __future__ import annotations

import logging
import threading
import time

LOG_EVERY_S = 30.0
COUNTERS = (
    "lookup_hit_objects",
    "lookup_miss_objects",
    "stored_objects",
    "stored_bytes",
    "present_objects",
    "store_failed_objects",
    "loaded_objects",
    "loaded_bytes",
    "load_failed_objects",
    "throttled_objects",
    "deleted_objects",
    "errors",
)


class Meter:
    """Counters since the adapter was made, all of objects of LMCache's unless named otherwise."""

    def __init__(self, logger: logging.Logger) -> None:
        """Starts at zero."""
        self._logger = logger
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._logged_at: dict[str, float] = {}

    def count(self, **more: int) -> None:
        """Adds to counters."""
        with self._lock:
            for name, number in more.items():
                self._counts[name] += number

    def counts(self) -> dict[str, int]:
        """Returns all counters."""
        with self._lock:
            return dict(self._counts)

    def trouble(self, call: str, error: BaseException) -> None:
        """Counts an exception that became a miss, and logs the first of its kind in a while."""
        self.count(errors=1)
        now = time.monotonic()
        with self._lock:
            if now - self._logged_at.get(call, -LOG_EVERY_S) < LOG_EVERY_S:
                return
            self._logged_at[call] = now
        # As text: an exception that a log handler keeps would keep LMCache's memory with it.
        text = f"{type(error).__name__}: {error}"
        self._logger.warning("Dalsegno: %s failed and counts as a miss: %s", call, text)
