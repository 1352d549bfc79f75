"""The metrics of a backend: SGLang's own, and Prometheus counters named `dalsegno_hicache_*`.

The counters are served with SGLang's at `/metrics` when the server runs with `--enable-metrics`.

1. Counting is cheap and never fails. The store's gauges are read at most once a second.
2. A process registers the Prometheus counters once, however many backends it attaches.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from sglang.srt.observability.metrics_collector import StorageMetrics

from dalsegno.integrations.common.trouble import GAUGES, Trouble, gauges
from dalsegno.integrations.sglang.transfers import Moved

_PREFIX = "dalsegno_hicache_"
_COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "lookup_pages": ("Pages looked up, by result: hit or miss.", ("result",)),
    "loaded_pages": ("Pages loaded from the store.", ()),
    "loaded_bytes": ("Bytes loaded from the store.", ()),
    "load_declined_pages": ("Pages that were found and not loaded.", ()),
    "load_failed_pages": ("Pages that were requested and could not be loaded.", ()),
    "stored_pages": ("Pages written to the store.", ()),
    "stored_bytes": ("Bytes written to the store.", ()),
    "present_pages": ("Pages that were not written because the store has them.", ()),
    "store_failed_pages": ("Pages that the store could not write or declined.", ()),
    "throttled_pages": (
        "Pages refused because too many transfers were queued.",
        ("direction",),
    ),
    "errors": ("Exceptions that became misses, by call.", ("call",)),
}
# Direction -> the counters of what was moved, and of what was not.
_MOVED = {"load": ("loaded", "load_failed_pages"), "store": ("stored", "store_failed_pages")}
_STORE_EVERY_S = 1.0
# More batches than this between two calls of `take` are not reported one by one.
_MOST_SAMPLES = 1024


@functools.cache
def _prometheus() -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the counters and gauges of this process."""
    # Late: SGLang sets an environment variable for the library: where processes share values.
    from prometheus_client import Counter, Gauge

    counters = {
        name: Counter(f"{_PREFIX}{name}", text, labels)
        for name, (text, labels) in _COUNTERS.items()
    }
    own_gauges = {
        name: Gauge(f"{_PREFIX}{name}", text, multiprocess_mode="livesum")
        for name, text in GAUGES.items()
    }
    return counters, own_gauges


class Meter:
    """Counts what happens in one backend."""

    def __init__(self, logger: logging.Logger) -> None:
        """Starts at zero."""
        # Now: the import takes a while, and SGLang's threads wait for calls that count.
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

    def note_moved(self, direction: str, moved: Moved, page_bytes: int, seconds: float) -> None:
        """Counts a load or a store, and records the pages and the speed of one that moved any."""
        done, failed = _MOVED[direction]
        moved_bytes = moved.pages * page_bytes
        self.count(f"{done}_pages", moved.pages)
        self.count(f"{done}_bytes", moved_bytes)
        self.count("present_pages", moved.known)
        self.count(failed, moved.refused)
        self.count("throttled_pages", moved.throttled, direction)
        if not moved.pages:
            return
        with self._lock:
            if len(self._pages[direction]) < _MOST_SAMPLES:
                self._pages[direction].append(moved.pages)
                self._speeds[direction].append(moved_bytes / max(seconds, 1e-9) / 1e9)

    def trouble(self, call: str, error: BaseException) -> None:
        """Counts an exception, and logs it unless one was logged recently."""
        self.count("errors", 1, call)
        self._trouble.log(call, error)

    def due(self) -> bool:
        """Returns whether the store's gauges should be read now."""
        now = time.monotonic()
        with self._lock:
            if now - self._asked_at < _STORE_EVERY_S:
                return False
            self._asked_at = now
            return True

    def gauge(self, counters: Mapping[str, Any] | None) -> None:
        """Sets the gauges from the store's counters, None without a store."""
        values = dict.fromkeys(GAUGES, 0) | gauges(counters)
        for name, gauge in _prometheus()[1].items():
            gauge.set(values[name])

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
