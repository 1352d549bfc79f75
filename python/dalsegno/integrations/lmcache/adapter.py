"""The adapter: LMCache's `L2AdapterInterface` over a store.

LMCache calls it from the threads of its controllers, so no call waits for the disk: lookups are
answered from the store's index in memory, transfers run on the store's threads from and into
LMCache's own memory. Two methods wait because that is their purpose, and both have a bound:
`delete`, which returns when the removal is durable, and `close`.

1. No exception leaves a method that LMCache's controllers call: it becomes a miss or a failed task,
   a counter and at most one log line per 30 s. But memory that is still in use is never returned:
   if a transfer does not end, `close` raises.
2. Every task is reported exactly once, after its last transfer has ended, and then signalled.
3. What is over a bound is refused at once; nothing queues without end.
4. A lookup locks nothing: the store may let go of an object before it is loaded, and the load is
   a miss then. So there is nothing to unlock, and a key that is never unlocked costs nothing.
5. Without a store every lookup is a miss and every task fails, until the store can be opened.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.logging import init_logger
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface
from lmcache.v1.platform import create_event_notifier

from dalsegno import IncompatibleError, UnavailableError
from dalsegno.integrations.common import report
from dalsegno.integrations.common.fields import hashed
from dalsegno.integrations.common.model_files import NEVER_NS, ModelFiles, is_weight
from dalsegno.integrations.common.opening import Backend, Opened, OpenNamespaces
from dalsegno.integrations.lmcache.costs import LoadCosts
from dalsegno.integrations.lmcache.keys import FORMAT, Hasher, by_model
from dalsegno.integrations.lmcache.meter import Meter
from dalsegno.integrations.lmcache.settings import AdapterSettings
from dalsegno.integrations.lmcache.spaces import Spaces
from dalsegno.integrations.lmcache.tasks import Results, Task, Watch
from dalsegno.integrations.lmcache.transfers import Mover, looked_up

logger = init_logger("lmcache.dalsegno")

# How long closing waits for what is under way before it is called off, and once more after.
SHUTDOWN_S = 10.0
# How long a deletion waits until it is durable. The objects are gone at once.
DELETE_S = 2.0
_UNBOUNDED = 1 << 62


def _content(settings: AdapterSettings) -> dict[str, object]:
    """Returns what stands for the files of the model that is served.

    Raises:
        IncompatibleError: The model's folder holds no weights.
        UnavailableError: A file cannot be read.
    """
    if settings.weights_fingerprint:
        return {"weights": f"stated:{settings.weights_fingerprint}"}
    folder = Path(settings.model)
    # The engines read the files, perhaps later: no time is known before which they did not.
    files = ModelFiles(since_ns=NEVER_NS)
    found = files.of_path(folder)
    if not folder.exists() or (not files.doubts and not any(map(is_weight, found))):
        raise IncompatibleError(
            f'{folder} holds no weight file, so it is unknown whether "model" is the served model; '
            f"set weights_fingerprint to say what is served"
        )
    if files.doubts:
        raise UnavailableError("; ".join(files.doubts))
    return {"weights": found}


class DalsegnoL2Adapter(L2AdapterInterface):  # type: ignore[misc]
    """Keeps the objects of LMCache's memory in a store, and brings them back."""

    def __init__(self, config: Mapping[str, Any], l1_memory_desc: Any = None, **_: Any) -> None:
        """Opens the store, or starts to try again and again.

        Args:
            config: See `AdapterSettings`.
            l1_memory_desc: LMCache's memory, whose size bounds what is written at a time.

        Raises:
            InvalidError: The configuration is wrong.
            IncompatibleError: The store cannot be used with this version, or the weights cannot be
                established.
        """
        settings = AdapterSettings.parse(config)
        super().__init__(max_capacity_bytes=settings.capacity or 0)
        self._settings, self._meter, self._hasher = settings, Meter(logger), Hasher()
        self._most_store_bytes = settings.max_store_bytes or (
            int(l1_memory_desc.size) * 3 // 4 if l1_memory_desc is not None else _UNBOUNDED
        )
        self._numbers, self._lock, self._closed = 0, threading.Lock(), False
        self._backend = Backend(
            settings.place(""), settings.store_settings(), self._prepare, "LMCache", logger
        )
        self._costs = LoadCosts(settings, self._meter, logger)
        self._mover = Mover(self._hasher, self._meter, self._backend.report_poisoned)
        self._know_capacity(self._backend.current)
        self._stored, self._found, self._loaded = (
            Results(create_event_notifier()) for _ in range(3)
        )
        advance = self._mover.advance
        self._storing = Watch("dalsegno-store", self._report_store, advance)
        self._loading = Watch("dalsegno-load", self._report_load, advance)

    def _prepare(self) -> OpenNamespaces:
        """Establishes the identity; returns what finds and opens the namespaces."""
        settings = self._settings
        fields = {"source": FORMAT, **_content(settings), "salt": settings.salt}
        identity = hashed(fields)
        report.write(identity, fields)
        report.log(logger, settings.model, identity)

        def namespaces(store: Any, epoch: Mapping[str, str]) -> Spaces:
            return Spaces(store, {**identity, **epoch}, settings.codec)

        return namespaces

    def get_store_event_fd(self) -> int:
        """Returns what is signalled when a store task has ended."""
        return int(self._stored.event.fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        """Returns what is signalled when a lookup was answered."""
        return int(self._found.event.fileno())

    def get_load_event_fd(self) -> int:
        """Returns what is signalled when a load task has ended."""
        return int(self._loaded.event.fileno())

    def _task(self, keys: Iterable[Any], timeout_s: float) -> Task:
        """Returns a task with a number of its own."""
        with self._lock:
            self._numbers += 1
            return Task(number=self._numbers, keys=list(keys), timeout_s=timeout_s)

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Starts to write objects; what is there already counts as stored."""
        task = self._task(dict.fromkeys(keys), self._settings.store_timeout_s)
        opened = self._backend.current

        def start() -> None:
            if opened is None or self._closed or opened.poisoned:
                task.failed = True
            elif self._storing.under_way() >= self._settings.max_store_tasks:
                self._mover.refuse(task)
            else:
                of = list(dict(zip(keys, objects, strict=True)).values())
                under_way = self._storing.moving_bytes()
                most = self._most_store_bytes
                self._mover.start_store(task, opened.namespaces, of, most, under_way)

        self._start(task, start, self._storing, self._report_store)
        return task.number

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Starts to fill objects; what is not there leaves them undefined and is a miss."""
        task = self._task(keys, self._settings.load_timeout_s)
        opened = self._backend.current

        def start() -> None:
            if opened is None or self._closed:
                task.failed = True
            elif self._loading.under_way() >= self._settings.max_load_tasks:
                self._mover.refuse(task)
            else:
                self._mover.start_load(
                    task, opened.namespaces, objects, is_measured=self._costs.is_used
                )
                self._costs.begin(task.number, task.sizes)

        self._start(task, start, self._loading, self._report_load)
        return task.number

    def _start(
        self, task: Task, start: Callable[[], None], watch: Watch, report: Callable[[Task], None]
    ) -> None:
        """Starts a task; whatever happens, it will be reported."""
        try:
            start()
        except Exception as error:  # noqa: BLE001 - LMCache's controllers go on
            task.failed = True
            self._meter.trouble("load" if watch is self._loading else "store", error)
        if task.parts or task.planned:
            watch.add(task)
        else:
            report(task)

    def _report_store(self, task: Task) -> None:
        """Makes LMCache's result of a store task that has ended; never raises."""
        success, written_bytes = False, 0
        try:
            kept, written_bytes = self._mover.stored(task)
            success = not task.failed and len(kept) == len(task.keys)
            if kept:
                self._notify_keys_stored([task.keys[one] for one in kept], list(kept.values()))
        except Exception as error:  # noqa: BLE001 - a listener of LMCache's
            self._meter.trouble("store", error)
        self._stored.add(task.number, L2StoreResult(success, written_bytes if success else 0))

    def _report_load(self, task: Task) -> None:
        """Makes LMCache's result of a load task that has ended; never raises."""
        bitmap, done = Bitmap(len(task.keys)), list[int]()
        try:
            try:
                done = self._mover.loaded(task)
            finally:
                seconds = time.monotonic() - task.started
                self._costs.end(task.number, seconds, is_whole=len(done) == len(task.keys))
            bitmap.batched_set(done)
            if done:
                self._notify_keys_accessed([task.keys[one] for one in done])
        except Exception as error:  # noqa: BLE001 - a listener of LMCache's
            self._meter.trouble("load", error)
        self._loaded.add(task.number, bitmap)

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        """Hands out what became of the store tasks that have ended."""
        return self._stored.take_all()

    def query_load_result(self, task_id: int) -> Any:
        """Hands out which objects of a load task are filled, once; None while it runs."""
        return self._loaded.take(task_id)

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: Any) -> int:
        """Answers immediately which keys the store has; see the invariants about locks."""
        task, opened = self._task((), 0.0), self._backend.current
        bitmap = Bitmap(len(keys))
        try:
            is_asked = self._settings.load_policy != "never"
            if opened is not None and not self._closed and is_asked:
                hits = self._look_up(opened, keys, group_layout_descs)
                bitmap.batched_set(hits)
                self._meter.count(
                    lookup_hit_objects=len(hits), lookup_miss_objects=len(keys) - len(hits)
                )
        except Exception as error:  # noqa: BLE001 - LMCache's controllers go on
            self._meter.trouble("lookup", error)
        self._found.add(task.number, bitmap)
        return task.number

    def _look_up(self, opened: Opened, keys: list[Any], described: Any) -> list[int]:
        """Returns the places of the keys that the store has; notes where they are, if it counts."""
        found: list[Any] | None = [] if self._costs.is_used else None
        hits = looked_up(opened.namespaces, self._hasher, keys, described, found)
        if found and hits:
            chunks = len({keys[place].chunk_hash for place in hits})
            self._costs.note_lookup(keys[hits[0]].model_name, found, chunks)
        return hits

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        """Hands out which keys of a lookup were there, once."""
        return self._found.take(task_id)

    def submit_unlock(self, keys: list[Any]) -> None:
        """Does nothing: nothing was locked."""

    def delete(self, keys: list[Any]) -> None:
        """Removes objects for good; returns when that is durable, or after `DELETE_S`."""
        opened = self._backend.current
        if opened is None or self._closed:
            return
        try:
            gone = self._removed(opened.namespaces, list(dict.fromkeys(keys)))
            self._meter.count(deleted_objects=len(gone))
            if gone:
                self._notify_keys_deleted([key for key, _ in gone], self._accounted(gone))
        except Exception as error:  # noqa: BLE001 - LMCache's controllers go on
            self._meter.trouble("delete", error)

    def _removed(self, spaces: Any, keys: list[Any]) -> list[tuple[Any, int]]:
        """Removes objects; returns the keys of those that were there, with their sizes."""
        gone: list[tuple[Any, int]] = []
        hashes = self._hasher.hashes(keys)
        for model, places in by_model(keys).items():
            for space in spaces.of_model(model):
                there = space.namespace.contains([hashes[place] for place in places])
                found = [place for place, one in zip(places, there, strict=True) if one]
                if not found:
                    continue
                with contextlib.suppress(UnavailableError):
                    space.namespace.remove([hashes[one] for one in found], timeout_s=DELETE_S)
                gone += [(keys[one], space.object_bytes) for one in found]
        return gone

    def _accounted(self, gone: Sequence[tuple[Any, int]]) -> list[int]:
        """Returns the sizes of deleted objects as far as this process has them in its account.

        What an earlier process stored is not in there, and LMCache warns of an account below zero.
        """
        with self._usage_lock:
            left = dict(self._bytes_by_cache_salt)
        sizes = []
        for key, size in gone:
            sizes.append(min(size, left.get(key.cache_salt, 0)))
            left[key.cache_salt] = left.get(key.cache_salt, 0) - sizes[-1]
        return sizes

    def get_usage(self) -> AdapterUsage:
        """Returns what the store holds.

        The total counts what earlier processes stored and what the store dropped since, with the
        mean size of objects that this process saw. The share of each salt is what this process
        stored less what LMCache deleted, as the store knows no salts.
        """
        usage, opened = super().get_usage(), self._backend.current
        try:
            if opened is not None:
                self._know_capacity(opened)
                return AdapterUsage(
                    self._held_bytes(opened), self._max_capacity_bytes, usage.bytes_by_cache_salt
                )
        except Exception as error:  # noqa: BLE001 - LMCache's controllers go on
            self._meter.trouble("get_usage", error)
        return AdapterUsage(0, self._max_capacity_bytes, MappingProxyType({}))

    def _know_capacity(self, opened: Opened | None) -> None:
        """Takes the capacity that the store found for itself, once it is open."""
        # A server that was not there yet has not said any.
        if opened is not None and (known := opened.store.limits()["capacity_bytes"]):
            self._max_capacity_bytes = known

    def _held_bytes(self, opened: Opened) -> int:
        """Returns how many bytes of objects the store holds."""
        counts = self._meter.counts()
        moved = counts["stored_objects"] + counts["loaded_objects"]
        if moved:
            mean = (counts["stored_bytes"] + counts["loaded_bytes"]) / moved
        else:
            sizes = [namespace.block_bytes for namespace in opened.namespaces.values()]
            mean = sum(sizes) / max(1, len(sizes))
        return round(int(opened.store.stats()["blocks"]) * mean)

    def get_memory_tags(self) -> Any:
        """Returns where the objects are, for LMCache 0.5.7 and later: `MemoryTags`.

        They are in storage. That is remote if other hosts share it, so with a far location.
        """
        from lmcache.v1.distributed.api import MemoryResidency, MemorySegment, MemoryTags

        residency = MemoryResidency.REMOTE if self._settings.far else MemoryResidency.LOCAL
        return MemoryTags(MemorySegment.STORAGE, residency)

    def report_status(self) -> dict[str, Any]:
        """Returns what the adapter counted, and whether it has its store.

        An adapter without a store is healthy: LMCache runs on; see `store_open`.
        """
        opened = self._backend.current
        status: dict[str, Any] = {
            "is_healthy": not self._closed and self._storing.alive and self._loading.alive,
            "type": type(self).__name__,
            "path": str(self._settings.path),
            "store_open": opened is not None,
            "problem": self._backend.problem,
            "store_tasks": self._storing.under_way(),
            "load_tasks": self._loading.under_way(),
            "counters": self._meter.counts(),
        }
        try:
            if opened is not None:
                status["namespaces"] = len(opened.namespaces)
                status["store"] = opened.store.stats()
        except Exception as error:  # noqa: BLE001 - LMCache asks for its own status page
            self._meter.trouble("report_status", error)
        return status

    def close(self) -> None:
        """Ends what is under way, closes the store and lets go of LMCache's memory.

        Calling it again does what is left to do.

        Raises:
            RuntimeError: A transfer does not end, so LMCache must not free the memory.
        """
        self._closed = True
        ended = [watch.close(SHUTDOWN_S) for watch in (self._storing, self._loading)]
        if not all(ended):
            raise RuntimeError("Dalsegno's transfers do not end; their memory stays in use")
        self._backend.close()
        for results in (self._stored, self._found, self._loaded):
            results.event.close()
