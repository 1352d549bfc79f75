"""Tasks under way: what LMCache asked for, and what became of it.

1. A task is reported once, when every transfer of it has ended; until then its objects are kept
   alive, and nobody but the store touches their memory.
2. A transfer that outlives its time is called off, and the task still waits for it to end: with a
   timeout the store ends it by itself.
3. Every wait has a bound, also for a transfer that does not end against all promises.
4. A task that is larger than the bound on bytes under way is started in parts: the next one when
   there is room under the bound. What has not been started when its time is over is dropped.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# How long after its own timeout a transfer is called off from here.
GRACE_S = 2.0
# A transfer that ends before an older one is noticed after this time.
SWEEP_S = 0.002
# Results that nobody fetched: LMCache fetches each, but for requests that it gave up.
MOST_RESULTS = 4096


class Results:
    """What became of the tasks of one kind, until LMCache fetches it."""

    def __init__(self, event: Any) -> None:
        """Starts empty.

        Args:
            event: Notified of each result; an `EventNotifier` of LMCache's.
        """
        self._lock = threading.Lock()
        self._done: dict[int, Any] = {}
        self.event = event

    def add(self, number: int, result: Any) -> None:
        """Takes a result and signals it."""
        with self._lock:
            while len(self._done) >= MOST_RESULTS:
                del self._done[next(iter(self._done))]
            self._done[number] = result
        # Nobody listens any more once the adapter is closed.
        with contextlib.suppress(OSError):
            self.event.notify()

    def take(self, number: int) -> Any:
        """Hands out one result, once; None if there is none."""
        with self._lock:
            return self._done.pop(number, None)

    def take_all(self) -> dict[int, Any]:
        """Hands out all results."""
        with self._lock:
            done, self._done = self._done, {}
        return done


@dataclass(slots=True)
class Part:
    """One transfer of a task.

    Attributes:
        places: Which of the task's keys it moves, in the order of its buffers.
        space: Where from or to.
        hashes: Their names there.
        objects: Whose memory it uses: LMCache's views of it do not keep it alive.
        transfer: The store's handle.
    """

    places: list[int]
    space: Any
    hashes: list[bytes]
    objects: list[Any]
    transfer: Any

    @property
    def size_bytes(self) -> int:
        """How much it moves."""
        return int(self.space.object_bytes) * len(self.places)


@dataclass(slots=True)
class Planned:
    """A part of a task that has not been started.

    Attributes:
        places: Which of the task's keys it is about.
        size_bytes: How much it moves.
        start: Starts it, with the seconds that it may take; must not wait.
    """

    places: list[int]
    size_bytes: int
    start: Callable[[float], Part]


@dataclass(slots=True)
class Task:
    """One task of LMCache's.

    Attributes:
        number: LMCache's name for it.
        keys: What it is about.
        timeout_s: How long its transfers may take.
        parts: What was started.
        planned: What was not started, in order.
        most_bytes: How much may be under way, unless one part is larger.
        moving_bytes: How much it moves in all.
        present: Places of keys that were there already.
        dropped: Places of keys of parts that were never started.
        failed: Whether something could not be started.
        started: When it came.
        cancelled: Whether its transfers were called off.
    """

    number: int
    keys: list[Any]
    timeout_s: float
    parts: list[Part] = field(default_factory=list)
    planned: deque[Planned] = field(default_factory=deque)
    most_bytes: int = 0
    moving_bytes: int = 0
    present: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    failed: bool = False
    started: float = field(default_factory=time.monotonic)
    cancelled: bool = False
    # Held while parts are started or called off, so that none is started after that.
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ended(self) -> bool:
        """Whether nothing of it is under way or to be started."""
        return not self.planned and all(part.transfer.done() for part in self.parts)

    def advance(self) -> None:
        """Starts what there is room for.

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
                if moving and moving + following.size_bytes > self.most_bytes:
                    return
                try:
                    self.parts.append(following.start(left_s))
                except BaseException:
                    self._drop()
                    raise
                self.planned.popleft()
                moving += following.size_bytes

    def _drop(self) -> None:
        """Drops what was not started; the lock is held."""
        for one in self.planned:
            self.dropped += one.places
            self.failed = True
        self.planned.clear()

    def wait(self, timeout_s: float) -> None:
        """Waits a while for a transfer that is under way."""
        for part in self.parts:
            if not part.transfer.done():
                part.transfer.wait(timeout_s)
                return

    def cancel(self) -> None:
        """Calls off what is under way, and drops what was not started."""
        with self._lock:
            if not self.cancelled:
                self.cancelled = True
                self._drop()
                for part in self.parts:
                    part.transfer.cancel()


class Watch:
    """Waits for the tasks of one direction on a thread of its own."""

    def __init__(
        self, name: str, report: Callable[[Task], None], advance: Callable[[Task], None]
    ) -> None:
        """Starts the thread.

        Args:
            name: Name of the thread.
            report: Called with each task that has ended, on that thread; must not raise.
            advance: Starts parts that wait, on that thread; must not raise.
        """
        self._report, self._advance = report, advance
        self._changed = threading.Condition()
        self._tasks: list[Task] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def add(self, task: Task) -> None:
        """Takes a task that was started."""
        with self._changed:
            self._tasks.append(task)
            self._changed.notify_all()

    def under_way(self) -> int:
        """Returns how many tasks are under way."""
        return len(self._tasks)

    def moving_bytes(self) -> int:
        """Returns how many bytes are under way."""
        with self._changed:
            return sum(task.moving_bytes for task in self._tasks)

    def _run(self) -> None:
        """Reports tasks as they end, until the watch is closed and none is left."""
        while True:
            with self._changed:
                while not self._tasks and not self._closing:
                    self._changed.wait()
                tasks = list(self._tasks)
            if not tasks:
                return
            tasks[0].wait(SWEEP_S)
            for task in tasks:
                if task.planned:
                    self._advance(task)
            now = time.monotonic()
            ended = [task for task in tasks if task.ended()]
            for task in tasks:
                if now - task.started > task.timeout_s + GRACE_S:
                    task.cancel()
            if ended:
                # Before they are reported: LMCache's next task must find the room that they leave.
                with self._changed:
                    self._tasks = [task for task in self._tasks if task not in ended]
                    self._changed.notify_all()
            for task in ended:
                self._report(task)
                task.parts.clear()

    def cancel(self) -> None:
        """Calls off what is under way; the tasks still end by themselves, soon."""
        for task in list(self._tasks):
            task.cancel()

    def close(self, timeout_s: float) -> bool:
        """Waits until all tasks have ended, and ends the thread.

        Args:
            timeout_s: Seconds after which everything is called off and waited for once more as
                long.

        Returns:
            Whether all have ended.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._tasks, timeout_s):
                self.cancel()
                if not self._changed.wait_for(lambda: not self._tasks, timeout_s):
                    return False
        self._thread.join(timeout_s)
        return not self._thread.is_alive()
