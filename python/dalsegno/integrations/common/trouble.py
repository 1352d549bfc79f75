"""How an integration reports trouble: a log line for exceptions, gauges for the store."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

# At most one line per call is logged in this time; counters count every exception.
EVERY_S = 30.0
GAUGES = {
    "disk_bytes": "Disk space that the store uses, in bytes.",
    "capacity_bytes": "Disk space that the store may use, in bytes.",
    "available": "1 if the store is open, 0 if every lookup is a miss.",
    "suspended": "1 while the disk hangs or fails, so that loads or stores fail fast.",
    "poisoned": "1 if a failed sync has stopped all writes until the store is reopened.",
}


def gauges(counters: Mapping[str, Any] | None) -> dict[str, int]:
    """Returns the values of `GAUGES` from a store's `stats()`, None if no store is open."""
    if counters is None:
        return {"available": 0}
    values = {name: int(counters[name]) for name in ("disk_bytes", "capacity_bytes", "poisoned")}
    return {"available": 1, "suspended": int(is_suspended(counters)), **values}


def is_suspended(counters: Mapping[str, Any]) -> bool:
    """Returns from a store's `stats()` whether its device is suspended."""
    device = counters["device"]
    return {device["reads"], device["writes"]} != {"working"}


class Trouble:
    """Logs the first exception of each call per `EVERY_S`; threads may share it."""

    def __init__(self, logger: logging.Logger) -> None:
        """Starts without history."""
        self._logger = logger
        self._lock = threading.Lock()
        self._logged_at: dict[str, float] = {}

    def log(self, call: str, error: BaseException) -> None:
        """Logs an exception, unless one of the same call was logged recently."""
        now = time.monotonic()
        with self._lock:
            if now - self._logged_at.get(call, -EVERY_S) < EVERY_S:
                return
            self._logged_at[call] = now
        # As text: an exception that a log handler keeps would keep the engine's memory alive.
        text = f"{type(error).__name__}: {error}"
        self._logger.warning(
            "Dalsegno: a call failed and counts as a miss: call=%s error=%s", call, text
        )
