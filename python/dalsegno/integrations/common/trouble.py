"""What an integration says of trouble: in the log of exceptions that became a miss, by gauges."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

# Of one kind at most one line is logged in this time; whoever counts has them all.
EVERY_S = 30.0


def is_suspended(counters: Mapping[str, Any]) -> bool:
    """Tells from a store's counters whether its disk does not answer, so that it is not asked."""
    device = counters["device"]
    return {device["reads"], device["writes"]} != {"working"}


class Trouble:
    """Logs the first exception of its kind in a while; threads may share it."""

    def __init__(self, logger: logging.Logger) -> None:
        """Starts with nothing said."""
        self._logger = logger
        self._lock = threading.Lock()
        self._said_at: dict[str, float] = {}

    def tell(self, call: str, error: BaseException) -> None:
        """Logs an exception, unless one of the same call was logged just now."""
        now = time.monotonic()
        with self._lock:
            if now - self._said_at.get(call, -EVERY_S) < EVERY_S:
                return
            self._said_at[call] = now
        # As text: an exception that a log handler keeps would keep the engine's memory with it.
        text = f"{type(error).__name__}: {error}"
        self._logger.warning("Dalsegno: %s failed and counts as a miss: %s", call, text)
