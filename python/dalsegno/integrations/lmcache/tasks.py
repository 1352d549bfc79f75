"""Tasks under way: what LMCache asked for, and what became of it.

1. A task is reported once, when every transfer of it has ended; until then its objects are kept
   alive, and nobody but the store touches their memory.
2. A transfer that outlives its time is called off, and the task still waits for it to end: with a
   timeout the store ends it by itself.
3. Every wait has a bound, also for a transfer that does not end against all promises.
"""

from __future__ import annotations

import contextlib
import threading
import time
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


@dataclass(slots=True)
class Task:
    """One task of LMCache's.

    Attributes:
        number: LMCache's name for it.
        keys: What it is about.
        timeout_s: How long its transfers may take.
        parts: What is under way.
        moving_bytes: Bytes under way.
        present: Places of keys that were there already.
        failed: Whether something failed already when it was started.
        started: When it came.
        cancelled: Whether its transfers were called off.
    """

    number: int
    keys: list[Any]
    timeout_s: float
    parts: list[Part] = field(default_factory=list)
    moving_bytes: int = 0
    present: list[int] = field(default_factory=list)
    failed: bool = False
    started: float = field(default_factory=time.monotonic)
    cancelled: bool = False

    def ended(self) -> bool:
        """Whether no transfer of it is under way."""
        return all(part.transfer.done() for part in self.parts)

    def wait(self, timeout_s: float) -> None:
        """Waits a while for a transfer that is under way."""
        for part in self.parts:
            if not part.transfer.done():
                part.transfer.wait(timeout_s)
                return

    def cancel(self) -> None:
        """Calls off what is under way."""
        if not self.cancelled:
            self.cancelled = True
            for part in self.parts:
                part.transfer.cancel()


class Watch:
    """Waits for the tasks of one direction on a thread of its own."""

    def __init__(self, name: str, report: Callable[[Task], None]) -> None:
        """Starts the thread.

        Args:
            name: Name of the thread.
            report: Told of each task that has ended, on that thread; must not raise.
        """
        self._report = report
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
