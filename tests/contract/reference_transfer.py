"""The transfers of the reference store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from dalsegno._native import InvalidError


class Transfer:
    """A put or get under way."""

    def __init__(self) -> None:
        """Makes a transfer that has not ended."""
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []
        self._ended = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None
        self.cancelled = False
        self.throttled = False

    def run(self, work: Callable[[], Any]) -> None:
        """Carries it out; called on a thread of the store."""
        try:
            self._result = work()
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            self._error = error
        self._finish()

    def end(self, result: Any, *, throttled: bool = False) -> None:
        """Ends it without work."""
        self.throttled, self._result = throttled, result
        self._finish()

    def done(self) -> bool:
        """Whether it has ended."""
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until it has ended."""
        return self._ended.wait(timeout_s)

    def cancel(self) -> None:
        """Calls it off."""
        self.cancelled = True

    def result(self) -> Any:
        """Returns or raises what the call did."""
        if not self.done():
            raise InvalidError("the transfer has not ended")
        if self._error is not None:
            raise self._error
        return self._result

    def on_end(self, callback: Callable[[], object]) -> None:
        """Calls a function when it ends, or now if it has ended."""
        with self._lock:
            has_ended = self.done()
            if not has_ended:
                self._callbacks.append(callback)
        if has_ended:
            callback()

    def _finish(self) -> None:
        with self._lock:
            self._ended.set()
        for callback in self._callbacks:
            callback()
