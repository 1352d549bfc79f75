"""LMCache's tasks that are in flight.

1. A task is reported once, when every transfer of it has ended (`common/batch.py`); until then its
   objects are kept alive.
2. Every wait of a caller has a bound, even for a transfer that never ends.
3. A task larger than the bound on bytes in flight is started in parts: the next one when it fits
   under the bound. Parts that have not been started when the timeout has passed are dropped.
4. The store wakes the thread that reports tasks (`Transfer.on_end`); the thread never polls.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dalsegno.integrations.common import batch
from dalsegno.integrations.common.batch import Batch

# Most results kept: LMCache fetches each, except for requests that it abandoned.
MOST_RESULTS = 4096


class Results:
    """Results of the tasks of one kind, until LMCache fetches them."""

    def __init__(self, event: Any) -> None:
        """Starts empty; notifies `event`, an `EventNotifier` of LMCache, of each result."""
        self._lock = threading.Lock()
        self._done: dict[int, Any] = {}
        self.event = event

    def add(self, number: int, result: Any) -> None:
        """Adds a result and signals it."""
        with self._lock:
            while len(self._done) >= MOST_RESULTS:
                del self._done[next(iter(self._done))]
            self._done[number] = result
        # The descriptor is closed once the adapter is.
        with contextlib.suppress(OSError):
            self.event.notify()

    def take(self, number: int) -> Any:
        """Removes and returns one result; None if there is none."""
        with self._lock:
            return self._done.pop(number, None)

    def take_all(self) -> dict[int, Any]:
        """Removes and returns all results."""
        with self._lock:
            done, self._done = self._done, {}
        return done


@dataclass(slots=True)
class Part:
    """One transfer of a task.

    Attributes:
        places: Which of the task's keys it transfers, in the order of its buffers.
        space: Its namespace.
        hashes: Hashes of the objects.
        objects: Owners of the memory: LMCache's views do not keep it alive.
        transfer: The store's handle.
    """

    places: list[int]
    space: Any
    hashes: list[bytes]
    objects: list[Any]
    transfer: Any

    @property
    def size_bytes(self) -> int:
        """Bytes that it transfers."""
        return int(self.space.object_bytes) * len(self.places)


@dataclass(slots=True)
class Planned:
    """A part that has not been started.

    Attributes:
        places: Which of the task's keys it has.
        size_bytes: Bytes that it transfers.
        start: Starts it with a timeout in seconds; must not wait.
    """

    places: list[int]
    size_bytes: int
    start: Callable[[float], Part]


@dataclass(slots=True, kw_only=True)
class Task(Batch[Part]):
    """A task of LMCache.

    Attributes:
        number: LMCache's number of it.
        keys: Its keys.
        planned: The parts that were not started, in order.
        max_bytes: Most bytes in flight, unless one part is larger.
        moving_bytes: Bytes of all parts.
        sizes: Bytes that it loads, by the tiers that they were in when it began.
        present: Places of keys that the store already had.
        dropped: Places of keys of parts that were never started.
        failed: Whether something could not be started.
        watched: Number of parts whose end wakes the watch.
    """

    number: int
    keys: list[Any]
    planned: deque[Planned] = field(default_factory=deque)
    max_bytes: int = 0
    moving_bytes: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    present: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    failed: bool = False
    watched: int = 0
    # Held while parts are started or cancelled, so that none is started after that.
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ended(self) -> bool:
        """Returns whether every part was started or dropped, and every transfer has ended."""
        return not self.planned and Batch.ended(self)

    def deadline(self) -> float | None:
        """Returns when the watch must act on it, in seconds of the monotonic clock."""
        if self.cancelled:
            return None
        return self.started + self.timeout_s + (0.0 if self.planned else batch.GRACE_S)

    def advance(self) -> None:
        """Starts the parts that fit under the bound.

        Raises:
            Exception: A part cannot be started; it and those after it are dropped.
        """
        with self._lock:
            left_s = self.started + self.timeout_s - time.monotonic()
            if left_s <= 0:
                self._drop()
            moving = sum(part.size_bytes for part in self.parts if not part.transfer.done())
            while self.planned:
                following = self.planned[0]
                if moving and moving + following.size_bytes > self.max_bytes:
                    return
                try:
                    self.parts.append(following.start(left_s))
                except BaseException:
                    self._drop()
                    raise
                self.planned.popleft()
                moving += following.size_bytes

    def _drop(self) -> None:
        """Drops the parts that were not started; the lock is held."""
        for one in self.planned:
            self.dropped += one.places
            self.failed = True
        self.planned.clear()

    def cancel(self) -> None:
        """Cancels its transfers, and drops the parts that were not started."""
        with self._lock:
            self._drop()
            Batch.cancel(self)


class Watch:
    """Reports the tasks of one direction, on a thread of its own."""

    def __init__(
        self, name: str, report: Callable[[Task], None], advance: Callable[[Task], None]
    ) -> None:
        """Starts the thread, which calls both functions; they must not raise.

        It calls `report` with each task that has ended, and `advance` with those that have planned
        parts.
        """
        self._report, self._advance = report, advance
        self._changed = threading.Condition()
        self._tasks: list[Task] = []
        self._closing = self._woken = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def add(self, task: Task) -> None:
        """Adds a task that was started."""
        with self._changed:
            self._tasks.append(task)
        self._wake()

    def _wake(self) -> None:
        """Wakes the thread; the store calls it when a transfer has ended."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def under_way(self) -> int:
        """Returns how many tasks are in flight."""
        return len(self._tasks)

    def moving_bytes(self) -> int:
        """Returns how many bytes are in flight."""
        with self._changed:
            return sum(task.moving_bytes for task in self._tasks)

    def _run(self) -> None:
        """Reports tasks as they end, until the watch is closed and none is left."""
        while True:
            with self._changed:
                if not self._tasks and self._closing:
                    return
                self._changed.wait_for(lambda: self._woken, self._wait_s())
                self._woken = False
                tasks = list(self._tasks)
            self._serve(tasks)

    def _wait_s(self) -> float | None:
        """Returns the seconds until a task needs attention without a transfer that ends."""
        deadlines = [at for task in self._tasks if (at := task.deadline()) is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _serve(self, tasks: list[Task]) -> None:
        """Starts planned parts, cancels late tasks and reports those that have ended."""
        for task in tasks:
            if task.planned:
                self._advance(task)
            for part in task.parts[task.watched :]:
                task.watched += 1
                part.transfer.on_end(self._wake)
        now = time.monotonic()
        ended = [task for task in tasks if task.ended()]
        for task in tasks:
            task.cancel_if_late(now)
        if ended:
            # Before they are reported: LMCache's next task must find the space under the bound.
            with self._changed:
                self._tasks = [task for task in self._tasks if task not in ended]
                self._changed.notify_all()
        for task in ended:
            self._report(task)
            task.parts.clear()

    def cancel(self) -> None:
        """Cancels all tasks; they still end by themselves, soon."""
        for task in list(self._tasks):
            task.cancel()

    def close(self, timeout_s: float) -> bool:
        """Waits until all tasks have ended, and ends the thread.

        Args:
            timeout_s: Seconds after which all tasks are cancelled, and then again the longest wait.

        Returns:
            Whether all have ended.
        """
        with self._changed:
            self._closing = True
            self._wake()
            if not self._changed.wait_for(lambda: not self._tasks, timeout_s):
                self.cancel()
                if not self._changed.wait_for(lambda: not self._tasks, timeout_s):
                    return False
        self._thread.join(timeout_s)
        return not self._thread.is_alive()
