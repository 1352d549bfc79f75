"""The counters of an adapter. Counting never fails, and waits for nothing but other counting."""

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
    "load_declined",
    "errors",
)


class Meter:
    """Counters of LMCache's objects since the adapter was made."""

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
        """Counts an exception that became a miss; logs it unless one was logged recently."""
        self.count(errors=1)
        self._trouble.log(call, error)
