"""The metrics of a tier, in vLLM's own types and named like those of its own tiers.

1. Every emitted metric is declared here with its labels: vLLM's logger fails on any other.
2. Counting is cheap and never fails; the store's counters are read at most once a second.
3. The last step before an idle time shows all that was counted, and the store as it was after it.
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

import dalsegno
from dalsegno.integrations.common.trouble import GAUGES, gauges
from dalsegno.integrations.vllm.settings import TierSettings

PREFIX = "vllm:kv_offload_dalsegno_"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "lookup_blocks": (
        "Blocks looked up, once per request, by result: hit or miss.",
        ("result",),
    ),
    "loaded_blocks": ("Blocks loaded from the store.", ()),
    "loaded_bytes": ("Bytes loaded from the store.", ()),
    "load_declined_blocks": (
        "Blocks that were found and not loaded, as computing them is faster.",
        (),
    ),
    "load_failed_blocks": ("Blocks that were found and could not be loaded.", ()),
    "stored_blocks": ("Blocks written to the store.", ()),
    "stored_bytes": ("Bytes written to the store.", ()),
    "saves_declined": (
        "Blocks kept in the pool only, as no load from the disk would save enough.",
        (),
    ),
    "present_blocks": ("Blocks that were not written because the store has them.", ()),
    "store_failed_blocks": ("Blocks that the store could not write or declined.", ()),
    "throttled_blocks": (
        "Blocks refused because too many bytes were in flight, by direction: load or store.",
        ("direction",),
    ),
    "throttled_bytes": (
        "Bytes refused because too many bytes were in flight, by direction: load or store.",
        ("direction",),
    ),
    "missed_blocks": (
        "Blocks that the store lost between finding and serving them, by cause.",
        ("cause",),
    ),
    "deferred_lookups": (
        "Lookups answered later: too many bytes were being loaded, or the memory tier was full.",
        (),
    ),
    "full_tier_lookups": (
        "Lookups answered later because transfers used every row of the memory tier.",
        (),
    ),
    "deferral_timeouts": ("Requests computed because their loads waited too long.", ()),
    "events_stored_blocks": ("Blocks announced in KV events.", ()),
    "events_removed_blocks": ("Blocks withdrawn in KV events.", ()),
    "events_dropped_blocks": (
        "Blocks not announced: kv_events_keys is reached, or their request never ran.",
        (),
    ),
    "events_resyncs": ("Comparisons of all announced blocks with the store.", ()),
    "jumped_tokens": ("Tokens that were loaded while those before them were computed.", ()),
    "step_loads": ("Loads that ran inside a step of vLLM, on the direct path.", ()),
    "bypassed_requests": ("Requests that the store must not serve, such as those of LoRA.", ()),
    "errors": ("Exceptions that became misses, by call.", ("call",)),
}
_PARTS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "load_seconds": ("Seconds from the start of a load job to its result.", _SECONDS),
    "store_seconds": ("Seconds from the start of a store job to its result.", _SECONDS),
    "meeting_point": (
        "Part of the found tokens that was computed when both ends of a prompt met.",
        _PARTS,
    ),
}
# Labels of `vllm:kv_offload_config_info` since vLLM 0.33: what does not change while it runs.
INFO_KEYS = tuple(
    f"dalsegno_{name}" for name in ("version", "path", "capacity_bytes", "far", "codec")
)
_STORE_EVERY_S = 1.0
# More observations than this between two calls of `take` are dropped.
_MOST_SAMPLES = 4096


def definitions() -> dict[str, OffloadingMetricMetadata]:
    """Returns the declarations of all metrics by their full name."""
    counters = {
        name: OffloadingCounterMetadata(documentation=text, labelnames=labels)
        for name, (text, labels) in _COUNTERS.items()
    }
    own_gauges = {
        name: OffloadingGaugeMetadata(documentation=text) for name, text in GAUGES.items()
    }
    histograms = {
        name: OffloadingHistogramMetadata(documentation=text, buckets=buckets)
        for name, (text, buckets) in _HISTOGRAMS.items()
    }
    return {
        f"{PREFIX}{name}": item for name, item in {**counters, **own_gauges, **histograms}.items()
    }


def config_info(settings: TierSettings, place: str) -> dict[str, str]:
    """Returns the labels of `vllm:kv_offload_config_info` with their values.

    Args:
        settings: The settings of the tier.
        place: The directory of its store, or the socket of a server.
    """
    capacity = "default" if settings.capacity is None else str(settings.capacity)
    values = (dalsegno.__version__, place, capacity, settings.far or "none", settings.codec)
    return dict(zip(INFO_KEYS, values, strict=True))


class Meter:
    """Counts what happens between two calls of `take`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts at zero."""
        self._clock = clock
        self._counts: dict[tuple[str, tuple[str, ...]], int] = {}
        self._samples: list[tuple[str, float]] = []
        self._misses: dict[str, int] = {}
        self._asked_at = -_STORE_EVERY_S
        # When something was counted first since the store's counters were read.
        self._stale_since: float | None = None

    def is_stale(self) -> bool:
        """Whether a step is needed to show what was counted, or the store after it."""
        since = self._stale_since
        # Bounded: vLLM does not wait longer for metrics, whatever happens to them.
        return since is not None and self._clock() - since < 2 * _STORE_EVERY_S

    def count(self, name: str, value: int = 1, *labels: str) -> None:
        """Adds to a counter."""
        if value:
            if self._stale_since is None and name != "errors":
                self._stale_since = self._clock()
            key = (name, labels)
            self._counts[key] = self._counts.get(key, 0) + value

    def observe(self, name: str, value: float) -> None:
        """Adds an observation to a histogram."""
        if len(self._samples) < _MOST_SAMPLES:
            self._samples.append((name, value))

    def take(self, read_store: Callable[[], Mapping[str, Any] | None]) -> Any:
        """Returns vLLM's record of everything since the last call, or None if there is nothing.

        Args:
            read_store: Returns the store's counters, None without a store; called periodically.
        """
        stats = OffloadingConnectorStats()
        if self._clock() - self._asked_at >= _STORE_EVERY_S:
            self._asked_at, self._stale_since = self._clock(), None
            self._take_store(stats, read_store())
        for (name, labels), value in self._counts.items():
            stats.increase_counter(f"{PREFIX}{name}", value, labels)
        for name, seconds in self._samples:
            stats.observe_histogram(f"{PREFIX}{name}", seconds)
        self._counts, self._samples = {}, []
        return None if stats.is_empty() else stats

    def _take_store(self, stats: Any, counters: Mapping[str, Any] | None) -> None:
        """Adds the store's gauges, and the blocks that it lost since the last call."""
        for name, value in gauges(counters).items():
            stats.set_gauge(f"{PREFIX}{name}", value)
        if counters is None:
            return
        for cause, total in counters["log"]["misses"].items():
            if grown := int(total) - self._misses.get(cause, 0):
                self._misses[cause] = int(total)
                stats.increase_counter(f"{PREFIX}missed_blocks", grown, (str(cause),))
