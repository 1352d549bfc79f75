"""The metrics of a tier, in vLLM's own types and named like those of its own tiers.

1. Whatever is emitted is declared here, with as many labels: vLLM's logger dies of anything else.
2. Counting is cheap and never fails; the store is asked for its counters at most once a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingMetricMetadata,
)

from dalsegno.integrations.common.trouble import is_suspended

PREFIX = "vllm:kv_offload_dalsegno_"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "lookup_blocks": (
        "Blocks looked up, once per request, by result: hit or miss.",
        ("result",),
    ),
    "loaded_blocks": ("Blocks loaded from the store.", ()),
    "loaded_bytes": ("Bytes loaded from the store.", ()),
    "load_failed_blocks": ("Blocks that were found but could not be loaded.", ()),
    "stored_blocks": ("Blocks written to the store.", ()),
    "stored_bytes": ("Bytes written to the store.", ()),
    "present_blocks": ("Blocks that were not written because the store has them.", ()),
    "store_failed_blocks": ("Blocks that the store could not or would not keep.", ()),
    "throttled_blocks": (
        "Blocks refused because too much was under way, by direction: load or store.",
        ("direction",),
    ),
    "throttled_bytes": (
        "Bytes refused because too much was under way, by direction: load or store.",
        ("direction",),
    ),
    "missed_blocks": (
        "Blocks that the store lost between finding and serving them, by cause.",
        ("cause",),
    ),
    "deferred_lookups": ("Lookups answered later since too much was being loaded.", ()),
    "deferral_timeouts": ("Requests computed since their loads had to wait for too long.", ()),
    "events_stored_blocks": ("Blocks announced in KV events.", ()),
    "events_removed_blocks": ("Blocks withdrawn in KV events.", ()),
    "events_dropped_blocks": (
        "Blocks not announced: kv_events_keys is reached, or their request never ran.",
        (),
    ),
    "events_resyncs": ("How often all announced blocks were compared with the store.", ()),
    "bypassed_requests": ("Requests that the store must not serve, such as those of LoRA.", ()),
    "errors": ("Exceptions that were turned into a miss, by the call they came from.", ("call",)),
}
_GAUGES = {
    "disk_bytes": "Bytes of disk that the store takes.",
    "capacity_bytes": "Most bytes of disk that the store may take.",
    "available": "1 if the store is open, 0 if every answer is a miss.",
    "suspended": "1 while the disk does not answer, so that loads or stores fail at once.",
    "poisoned": "1 if a failed sync has stopped all writing until the store is opened anew.",
}
_HISTOGRAMS = {
    "load_seconds": "Seconds from the start of a load job to its result.",
    "store_seconds": "Seconds from the start of a store job to its result.",
}
_STORE_EVERY_S = 1.0
# More observations than this between two calls of `take` are dropped.
_MOST_SAMPLES = 4096


def definitions() -> dict[str, OffloadingMetricMetadata]:
    """Returns the declarations of all metrics by their full name."""
    counters = {
        name: OffloadingCounterMetadata(documentation=text, labelnames=labels)
        for name, (text, labels) in _COUNTERS.items()
    }
    gauges = {name: OffloadingGaugeMetadata(documentation=text) for name, text in _GAUGES.items()}
    histograms = {
        name: OffloadingHistogramMetadata(documentation=text, buckets=_SECONDS)
        for name, text in _HISTOGRAMS.items()
    }
    return {f"{PREFIX}{name}": item for name, item in {**counters, **gauges, **histograms}.items()}


class Meter:
    """Counts what happens between two calls of `take`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts at zero."""
        self._clock = clock
        self._counts: dict[tuple[str, tuple[str, ...]], int] = {}
        self._samples: list[tuple[str, float]] = []
        self._misses: dict[str, int] = {}
        self._asked_at = -_STORE_EVERY_S

    def count(self, name: str, value: int = 1, *labels: str) -> None:
        """Adds to a counter."""
        if value:
            key = (name, labels)
            self._counts[key] = self._counts.get(key, 0) + value

    def observe(self, name: str, seconds: float) -> None:
        """Adds an observation to a histogram."""
        if len(self._samples) < _MOST_SAMPLES:
            self._samples.append((name, seconds))

    def take(self, read_store: Callable[[], Mapping[str, Any] | None]) -> Any:
        """Returns vLLM's record of everything since the last call, or None if there is nothing.

        Args:
            read_store: Returns the store's counters, None without a store; called now and then.
        """
        stats = OffloadingConnectorStats()
        if self._clock() - self._asked_at >= _STORE_EVERY_S:
            self._asked_at = self._clock()
            self._take_store(stats, read_store())
        for (name, labels), value in self._counts.items():
            stats.increase_counter(f"{PREFIX}{name}", value, labels)
        for name, seconds in self._samples:
            stats.observe_histogram(f"{PREFIX}{name}", seconds)
        self._counts, self._samples = {}, []
        return None if stats.is_empty() else stats

    def _take_store(self, stats: Any, counters: Mapping[str, Any] | None) -> None:
        """Adds the store's gauges, and the blocks that it lost since it was asked last."""
        stats.set_gauge(f"{PREFIX}available", int(counters is not None))
        if counters is None:
            return
        stats.set_gauge(f"{PREFIX}disk_bytes", int(counters["disk_bytes"]))
        stats.set_gauge(f"{PREFIX}capacity_bytes", int(counters["capacity_bytes"]))
        stats.set_gauge(f"{PREFIX}suspended", int(is_suspended(counters)))
        stats.set_gauge(f"{PREFIX}poisoned", int(counters["poisoned"]))
        for cause, total in counters["log"]["misses"].items():
            if grown := int(total) - self._misses.get(cause, 0):
                self._misses[cause] = int(total)
                stats.increase_counter(f"{PREFIX}missed_blocks", grown, (str(cause),))
