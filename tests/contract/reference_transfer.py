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


class Load:
    """A load of whole blocks: all of its layers end with it."""

    def __init__(self, transfer: Transfer, blocks: int, layers: int) -> None:
        """Wraps the transfer of a get, whose result is how many leading blocks are there."""
        self._transfer, self._blocks, self._layers = transfer, blocks, layers
        self.done, self.wait, self.cancel = transfer.done, transfer.wait, transfer.cancel
        self.result, self.on_end = transfer.result, transfer.on_end

    def wait_layer(self, layer: int, *, timeout_s: float | None = None) -> bool | None:
        """Waits until a layer has ended."""
        if not 0 <= layer < self._layers:
            raise InvalidError(f"layer {layer} does not exist")
        return self.layer_ready(layer) if self.wait(timeout_s) else None

    def layer_ready(self, layer: int) -> bool:
        """Whether a layer is there."""
        del layer
        return self.done() and self.result() == self._blocks
