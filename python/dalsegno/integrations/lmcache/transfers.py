"""Transfers objects between LMCache's memory and the store.

1. Objects of one kind (`spaces.py`) go into one namespace, as one put or one get.
2. Objects that the store has are not written again, and count as stored.
3. A task over a bound is refused as a whole: LMCache only learns whether all of it was stored. A
   task that alone exceeds the bound on bytes being written is written in parts, each within the
   bound, while nothing else is written.
4. Objects are read and written in place; Python never copies one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from typing import Any

from dalsegno import InvalidError, PoisonedError, PutReport
from dalsegno.integrations.common.batch import cut
from dalsegno.integrations.lmcache.costs import sizes_of
from dalsegno.integrations.lmcache.keys import Hasher, by_model
from dalsegno.integrations.lmcache.meter import Meter
from dalsegno.integrations.lmcache.spaces import Layout, Space
from dalsegno.integrations.lmcache.tasks import Part, Planned, Task

# A large task is cut into parts of this size, at most so many, to keep the store's threads busy.
PART_BYTES = 64 << 20
MOST_PARTS = 8


def looked_up(
    spaces: Any,
    hasher: Hasher,
    keys: Sequence[Any],
    described: Any,
    found: list[tuple[Space, list[bytes]]] | None = None,
) -> list[int]:
    """Returns the places of the keys that the store has; reads only the in-memory index.

    Args:
        spaces: The namespaces of the open store.
        hasher: Makes block hashes.
        keys: LMCache's keys.
        described: The layout of each object group, as far as LMCache provides it.
        found: Takes the hashes of the objects, by namespace.
    """
    layouts = [Layout.of_description(one) for one in described.values() if one.shapes]
    hits: list[int] = []
    hashes = hasher.hashes(keys)
    for model, left in by_model(keys).items():
        for space in spaces.of_model(model, layouts):
            asked = hashes if len(left) == len(hashes) else [hashes[one] for one in left]
            there = space.namespace.contains(asked)
            hits += compress(left, there)
            if found is not None:
                found.append((space, list(compress(asked, there))))
            if all(there):
                break
            left[:] = [place for place, is_hit in zip(left, there, strict=True) if not is_hit]
    return hits


def by_space(spaces: Any, keys: Sequence[Any], objects: Sequence[Any]) -> dict[Space, list[int]]:
    """Returns the places of the objects of each namespace.

    Raises:
        InvalidError: There are not as many objects as keys, or too many kinds of them.
    """
    if len(keys) != len(objects):
        raise InvalidError(f"there are {len(objects)} objects for {len(keys)} keys")
    kinds: dict[tuple[str, Layout], list[int]] = {}
    for place, (key, one) in enumerate(zip(keys, objects, strict=True)):
        kinds.setdefault((key.model_name, Layout.of_object(one)), []).append(place)
    found: dict[Space, list[int]] = {}
    for (model, layout), places in kinds.items():
        found.setdefault(spaces.open(model, layout), []).extend(places)
    return found


def _shares(places: list[int], object_bytes: int, most_bytes: int | None = None) -> list[list[int]]:
    """Cuts the places of a large task into parts, of at most `most_bytes` each if given."""
    parts = cut(len(places), object_bytes, PART_BYTES, MOST_PARTS)
    if most_bytes is not None and parts and len(parts[0]) * object_bytes > most_bytes:
        parts = cut(len(places), object_bytes, most_bytes, len(places))
    return [places[part.start : part.stop] for part in parts]


def _put(
    space: Space, places: list[int], chain: list[bytes], objects: list[Any], timeout_s: float
) -> Part:
    """Starts the put of objects, whose names are the last ones of the chain."""
    first = len(chain) - len(places)
    handle = space.namespace.submit_put(
        chain, [one.byte_array for one in objects], first=first, timeout_s=timeout_s
    )
    return Part(places, space, chain[first:], objects, handle)


class Mover:
    """Starts the transfers of tasks, and reports their outcomes."""

    def __init__(self, hasher: Hasher, meter: Meter, report_poisoned: Callable[[], None]) -> None:
        """Takes the hasher of objects; calls `report_poisoned` when a sync has failed."""
        self._hasher, self._meter, self._report_poisoned = hasher, meter, report_poisoned

    def start_store(
        self, task: Task, spaces: Any, objects: Sequence[Any], most_bytes: int, under_way: int
    ) -> None:
        """Starts to write the objects that the store lacks.

        Args:
            task: The task; records its parts.
            spaces: The namespaces of the open store.
            objects: One for each key of the task.
            most_bytes: Most bytes written at a time.
            under_way: Bytes being written for other tasks.
        """
        hashes = self._hasher.hashes(task.keys)
        fresh: list[tuple[Space, list[int]]] = []
        for space, places in by_space(spaces, task.keys, objects).items():
            there = space.namespace.contains([hashes[place] for place in places])
            task.present += [place for place, found in zip(places, there, strict=True) if found]
            left = [place for place, found in zip(places, there, strict=True) if not found]
            if left:
                fresh.append((space, left))
        task.max_bytes = most_bytes
        task.moving_bytes = sum(space.object_bytes * len(places) for space, places in fresh)
        largest = max((space.object_bytes for space, _ in fresh), default=0)
        over = task.moving_bytes > most_bytes - under_way
        if over and (under_way or largest > most_bytes):
            self.refuse(task)
            return
        for space, places in fresh:
            self._plan(task, space, places, hashes, objects)
        task.advance()

    def _plan(
        self, task: Task, space: Space, places: list[int], hashes: list[bytes], objects: Any
    ) -> None:
        """Plans the puts of one namespace, next to the object before them in the task."""
        before = hashes[: places[0]][-1:]
        for part in _shares(places, space.object_bytes, task.max_bytes):
            chain = before + [hashes[place] for place in part]
            start = partial(_put, space, part, chain, [objects[place] for place in part])
            task.planned.append(Planned(part, space.object_bytes * len(part), start))
            before = chain[-1:]

    def start_load(
        self, task: Task, spaces: Any, objects: Sequence[Any], *, is_measured: bool = False
    ) -> None:
        """Starts to fill the objects that the store has.

        Args:
            task: The task; records its parts.
            spaces: The namespaces of the open store.
            objects: One for each key of the task.
            is_measured: Whether the task also records which tiers they are in.
        """
        hashes = self._hasher.hashes(task.keys)
        for space, places in by_space(spaces, task.keys, objects).items():
            for part in _shares(places, space.object_bytes):
                named, moved = [hashes[place] for place in part], [objects[place] for place in part]
                out = [one.byte_array for one in moved]
                # Before they are read, as that may move them.
                for tier, size in sizes_of(space, named).items() if is_measured else ():
                    task.sizes[tier] = task.sizes.get(tier, 0) + size
                handle = space.namespace.submit_get(named, out, each=True, timeout_s=task.timeout_s)
                task.moving_bytes += space.object_bytes * len(part)
                task.parts.append(Part(part, space, named, moved, handle))

    def advance(self, task: Task) -> None:
        """Starts the parts of a task that fit under the bound now; never raises."""
        try:
            task.advance()
        except Exception as error:  # noqa: BLE001 - the other parts were dropped, and are counted
            self._meter.trouble("store", error)

    def refuse(self, task: Task) -> None:
        """Counts a task that is over a bound."""
        task.failed = True
        self._meter.count(throttled_objects=len(task.keys))

    def stored(self, task: Task) -> tuple[dict[int, int], int]:
        """Reports a store task that has ended.

        Returns:
            The places of the keys that the store has now, each with the bytes that this task added
            for it, and the bytes written in all.
        """
        kept, written_bytes = dict.fromkeys(task.present, 0), 0
        self._meter.count(present_objects=len(task.present), store_failed_objects=len(task.dropped))

        def stored(part: Part, report: PutReport) -> None:
            nonlocal written_bytes
            there, added = self._put_result(part, report)
            written_bytes += added
            for place, found in zip(part.places, there, strict=True):
                if found:
                    kept[place] = part.space.object_bytes if added else 0
            self._meter.count(store_failed_objects=len(there) - sum(there))

        def throttled(part: Part) -> None:
            count = len(part.places)
            self._meter.count(throttled_objects=count, store_failed_objects=count)

        def failed(part: Part, error: Exception) -> None:
            self._meter.trouble("store", error)
            if isinstance(error, PoisonedError):
                self._report_poisoned()
            self._meter.count(store_failed_objects=len(part.places))

        task.report(stored, throttled, failed)
        return kept, written_bytes

    def _put_result(self, part: Part, report: PutReport) -> tuple[list[bool], int]:
        """Returns which objects of a put are there, and how many bytes it wrote."""
        there = list(report.kept)
        if report.pending:
            # Another task was writing them, and usually has finished.
            there = list(part.space.namespace.contains(part.hashes))
        written_bytes = report.stored * part.space.object_bytes
        self._meter.count(
            stored_objects=report.stored,
            stored_bytes=written_bytes,
            present_objects=report.present + report.pending,
        )
        return there, written_bytes

    def loaded(self, task: Task) -> list[int]:
        """Returns the places of the keys whose objects hold what was stored under them."""
        done: list[int] = []

        def loaded(part: Part, there: list[bool]) -> None:
            came = [place for place, found in zip(part.places, there, strict=True) if found]
            self._meter.count(
                loaded_objects=len(came), loaded_bytes=len(came) * part.space.object_bytes
            )
            done.extend(came)

        task.report(
            loaded,
            lambda part: self._meter.count(throttled_objects=len(part.places)),
            lambda _, error: self._meter.trouble("load", error),
        )
        self._meter.count(load_failed_objects=len(task.keys) - len(done))
        return done
