"""What an adapter counts, and what it says in the log.

1. Counting never fails and never waits for anything but other counting.
2. Of one kind of trouble at most one line is logged in half a minute; the counter has them all.
"""

from __future__ import annotations

import logging
import threading

from dalsegno.integrations.common.trouble import Trouble

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
        self._trouble = Trouble(logger)
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(COUNTERS, 0)

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
        self._trouble.tell(call, error)
