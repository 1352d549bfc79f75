"""A namespace whose copies are as late as they may be: only those that are waited for are made."""

from __future__ import annotations

from typing import Any, Self

# So often a copy says that it has not ended before it is made.
POLLS = 3


class SlowTransfer:
    """A copy, or a load, that begins when somebody waits for it or has asked often."""

    def __init__(self, start: Any) -> None:
        self._start, self._polls = start, 0
        self._running: Any = None
        self._is_cancelled = False

    def _begin(self) -> Any:
        if self._running is None:
            # What it refers to is used until it has ended, not longer.
            start, self._start = self._start, None
            self._running = start()
            if self._is_cancelled:
                self._running.cancel()
        return self._running

    def done(self) -> bool:
        self._polls += 1
        return bool(self._begin().wait()) if self._running or self._polls > POLLS else False

    def wait(self, timeout_s: float | None = None) -> bool:
        return bool(self._begin().wait(timeout_s))

    def wait_layer(self, layer: int, *, timeout_s: float | None = None) -> Any:
        return self._begin().wait_layer(layer, timeout_s=timeout_s)

    def order_layer(self, layer: int, stream: int, *, timeout_s: float | None = None) -> Any:
        return self._begin().order_layer(layer, stream, timeout_s=timeout_s)

    def on_end(self, callback: Any) -> None:
        """Nobody learns how long it took."""

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._running is not None:
            self._running.cancel()

    def withdraw(self) -> bool:
        """It is never too late to begin."""
        self.cancel()
        return False

    def result(self) -> Any:
        return self._begin().result()

    @property
    def throttled(self) -> bool:
        return bool(self._begin().throttled)


class LateTransfer(SlowTransfer):
    """A load that nobody can wait long enough for, and that ends even though it was cancelled."""

    def wait_layer(self, layer: int, *, timeout_s: float | None = None) -> Any:
        del layer, timeout_s

    def order_layer(self, layer: int, stream: int, *, timeout_s: float | None = None) -> Any:
        del layer, stream, timeout_s

    def cancel(self) -> None:
        """It is too late for that."""


class SlowWriter:
    """A put by layer."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def submit_store_blocks(self, pages: Any, **options: Any) -> SlowTransfer:
        return SlowTransfer(lambda: self._writer.submit_store_blocks(pages, **options))

    def submit_store_layer(self, layer: int, pages: Any, **options: Any) -> SlowTransfer:
        return SlowTransfer(lambda: self._writer.submit_store_layer(layer, pages, **options))


class SlowLease:
    """A lease."""

    def __init__(self, lease: Any) -> None:
        self._lease = lease

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lease, name)

    def __len__(self) -> int:
        return len(self._lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Ended by the last reference: the load begins later.
        pass

    def load(self, pages: Any, *, timeout_s: float | None = None) -> SlowTransfer:
        return SlowTransfer(lambda: self._lease.load(pages, timeout_s=timeout_s))


class SlowNamespace:
    """A namespace."""

    def __init__(self, namespace: Any) -> None:
        self._namespace = namespace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._namespace, name)

    def layer_writer(self, *arguments: Any, **options: Any) -> SlowWriter:
        return SlowWriter(self._namespace.layer_writer(*arguments, **options))

    def lease(self, *arguments: Any, **options: Any) -> SlowLease:
        return SlowLease(self._namespace.lease(*arguments, **options))

    def load(self, *arguments: Any, **options: Any) -> SlowTransfer:
        return SlowTransfer(lambda: self._namespace.load(*arguments, **options))
