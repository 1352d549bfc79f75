"""The metrics of a backend: SGLang's own, and Prometheus counters named `dalsegno_hicache_*`.

The counters stand among SGLang's at its `/metrics` when the server runs with `--enable-metrics`.

1. Counting is cheap and never fails. The store is asked for its gauges at most once a second.
2. A process has the Prometheus counters once, however often a backend is attached.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from sglang.srt.observability.metrics_collector import StorageMetrics

from dalsegno.integrations.common.trouble import Trouble, is_suspended

_PREFIX = "dalsegno_hicache_"
_COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "lookup_pages": ("Pages looked up, by result: hit or miss.", ("result",)),
    "loaded_pages": ("Pages loaded from the store.", ()),
    "loaded_bytes": ("Bytes loaded from the store.", ()),
    "load_failed_pages": ("Pages that were asked for but could not be loaded.", ()),
    "stored_pages": ("Pages written to the store.", ()),
    "stored_bytes": ("Bytes written to the store.", ()),
    "present_pages": ("Pages that were not written because the store has them.", ()),
    "store_failed_pages": ("Pages that the store could not or would not keep.", ()),
    "throttled_pages": ("Pages refused because too much was under way.", ("direction",)),
    "errors": ("Exceptions that were turned into a miss, by the call they came from.", ("call",)),
}
_GAUGES = {
    "disk_bytes": "Bytes of disk that the store takes.",
    "capacity_bytes": "Most bytes of disk that the store may take.",
    "available": "1 if the store is open, 0 if every answer is a miss.",
    "suspended": "1 while the disk does not answer, so that loads or stores fail at once.",
    "poisoned": "1 if a failed sync has stopped all writing until the store is opened anew.",
}
_STORE_EVERY_S = 1.0
# More batches than this between two calls of `take` are not told one by one.
_MOST_SAMPLES = 1024


@functools.cache
def _prometheus() -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the counters and gauges of this process."""
    # Late: SGLang tells the library by an environment variable where processes share their values.
    from prometheus_client import Counter, Gauge

    counters = {
        name: Counter(f"{_PREFIX}{name}", text, labels)
        for name, (text, labels) in _COUNTERS.items()
    }
    gauges = {
        name: Gauge(f"{_PREFIX}{name}", text, multiprocess_mode="livesum")
        for name, text in _GAUGES.items()
    }
    return counters, gauges


class Meter:
    """Counts what happens in one backend."""

    def __init__(self, logger: logging.Logger) -> None:
        """Starts at zero."""
        # Now, as importing the library takes a while and SGLang's threads wait for what is counted.
        _prometheus()
        self._trouble = Trouble(logger)
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._pages: dict[str, list[int]] = {"load": [], "store": []}
        self._speeds: dict[str, list[float]] = {"load": [], "store": []}
        self._asked_at = -_STORE_EVERY_S

    def count(self, name: str, value: int = 1, *labels: str) -> None:
        """Adds to a counter."""
        if not value:
            return
        with self._lock:
            key = " ".join((name, *labels))
            self._counts[key] = self._counts.get(key, 0) + value
        counter = _prometheus()[0][name]
        (counter.labels(*labels) if labels else counter).inc(value)

    def counts(self) -> dict[str, int]:
        """Returns all counters by name and labels."""
        with self._lock:
            return dict(self._counts)

    def observe(self, direction: str, pages: int, moved_bytes: int, seconds: float) -> None:
        """Notes the pages and the speed of a call that moved something."""
        if not pages:
            return
        with self._lock:
            if len(self._pages[direction]) < _MOST_SAMPLES:
                self._pages[direction].append(pages)
                self._speeds[direction].append(moved_bytes / max(seconds, 1e-9) / 1e9)

    def trouble(self, call: str, error: BaseException) -> None:
        """Counts an exception, and logs the first of its kind in a while."""
        self.count("errors", 1, call)
        self._trouble.tell(call, error)

    def due(self) -> bool:
        """Tells whether the store should be asked for its gauges now."""
        now = time.monotonic()
        with self._lock:
            if now - self._asked_at < _STORE_EVERY_S:
                return False
            self._asked_at = now
            return True

    def gauge(self, counters: Mapping[str, Any] | None) -> None:
        """Sets the gauges from the store's counters, None without a store."""
        gauges = _prometheus()[1]
        gauges["available"].set(int(counters is not None))
        for name in ("disk_bytes", "capacity_bytes", "poisoned"):
            gauges[name].set(int(counters[name]) if counters else 0)
        gauges["suspended"].set(int(counters is not None and is_suspended(counters)))

    def take(self) -> StorageMetrics:
        """Returns SGLang's record of the calls since the last one."""
        with self._lock:
            taken = StorageMetrics(
                prefetch_pgs=self._pages["load"],
                backup_pgs=self._pages["store"],
                prefetch_bandwidth=self._speeds["load"],
                backup_bandwidth=self._speeds["store"],
            )
            self._pages = {"load": [], "store": []}
            self._speeds = {"load": [], "store": []}
        return taken
