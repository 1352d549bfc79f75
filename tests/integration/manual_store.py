"""A store whose transfers end when the test says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tests.contract import reference_store


class ManualTransfer:
    """A transfer that ends when the test says so."""

    def __init__(self, kind: str, count: int, work: Callable[[], Any]) -> None:
        self.kind, self.count, self._work = kind, count, work
        self._done = self.throttled = self.cancelled = False
        self.waits = 0
        self._outcome: Any = None
        self._callbacks: list[Callable[[], object]] = []

    def end(self, outcome: Any = None, *, throttled: bool = False) -> None:
        """Ends it: as the reference store would, with another outcome, or with an error."""
        self.throttled = throttled
        self._outcome = self._work() if outcome is None and not throttled else outcome
        self._done, self._work = True, lambda: None
        for callback in self._callbacks:
            callback()

    def done(self) -> bool:
        return self._done

    def wait(self, timeout_s: float | None = None) -> bool:
        assert self._done or timeout_s is not None, "it would wait forever"
        self.waits += 1
        return self._done

    def cancel(self) -> None:
        self.cancelled = True

    def on_end(self, callback: Callable[[], object]) -> None:
        if self._done:
            callback()
        else:
            self._callbacks.append(callback)

    def result(self) -> Any:
        assert self._done
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


class ManualStore(reference_store.Store):
    """The reference store with manual transfers; counts its calls.

    Attributes:
        broken: The call that fails from now on.
        most_transfers: How many it starts; one more fails.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, "{}")
        self.transfers: list[ManualTransfer] = []
        self.contains_calls = 0
        self.touched: list[list[bytes]] = []
        self.puts: list[tuple[list[bytes], int]] = []
        self.broken = ""
        self.poisoned = False
        self.most_transfers = math.inf

    def stats(self) -> dict[str, Any]:
        self._break("stats")
        return {**super().stats(), "poisoned": self.poisoned}

    def _break(self, call: str) -> None:
        if self.broken == call:
            raise OSError(f"{call} is broken")

    def namespace(self, *arguments: Any, **options: Any) -> Any:
        space = super().namespace(*arguments, **options)
        contains = space.contains

        def count_contains(hashes: Sequence[bytes]) -> list[bool]:
            self.contains_calls += 1
            self._break("contains")
            return contains(hashes)

        def note_touch(chain: Sequence[bytes]) -> int:
            self._break("touch")
            self.touched.append(list(chain))
            return 0

        def submit_put(chain: Sequence[bytes], blocks: Any, **more: Any) -> ManualTransfer:
            self._break("submit_put")
            self.puts.append((list(chain), more.get("first", 0)))
            return self._add("put", len(blocks), lambda: space.put_batch(chain, blocks, **more))

        def submit_get(hashes: Sequence[bytes], out: Any, **more: Any) -> ManualTransfer:
            self._break("submit_get")
            assert more.pop("each")
            return self._add("get", len(out), lambda: space.get_each(hashes, out, **more))

        space.contains = count_contains  # type: ignore[method-assign]
        space.touch = note_touch  # type: ignore[method-assign]
        space.submit_put = submit_put  # type: ignore[method-assign,assignment]
        space.submit_get = submit_get  # type: ignore[method-assign,assignment]
        return space

    def _add(self, kind: str, count: int, work: Callable[[], Any]) -> ManualTransfer:
        if len(self.transfers) >= self.most_transfers:
            raise OSError("no more")
        transfer = ManualTransfer(kind, count, work)
        self.transfers.append(transfer)
        return transfer

    def end_all(self) -> None:
        """Ends every transfer as it would."""
        for transfer in self.transfers:
            if not transfer.done():
                transfer.end()
