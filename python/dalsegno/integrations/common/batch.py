"""The transfers that serve one request of an engine: cut, wait, cancel, report.

1. A batch has ended when every transfer of it has. Until then only the store touches their memory.
2. A transfer that outlives the batch's timeout by `GRACE_S` is cancelled. The batch still waits for
   it to end: with a timeout the store ends every transfer by itself.
3. A transfer that failed means missing blocks, never an exception.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

# Seconds after its own timeout until a transfer is cancelled from here.
GRACE_S = 2.0


class Part(Protocol):
    """One transfer, and what the integration knows about it."""

    @property
    def transfer(self) -> Any:
        """The store's handle."""


_Part = TypeVar("_Part", bound=Part)


def cut(count: int, block_bytes: int, part_bytes: int, max_parts: int) -> list[range]:
    """Cuts blocks into parts, which the store's threads transfer in parallel.

    Args:
        count: Number of blocks.
        block_bytes: Bytes of a block.
        part_bytes: Bytes of a part, at least one block. Parts are larger if there would be more
            than `max_parts`.
        max_parts: Most parts.
    """
    return split(count, max(part_bytes // block_bytes, -(-count // max_parts)))


def split(count: int, each: int) -> list[range]:
    """Splits blocks into runs of `each`, at least one; the last one may be shorter."""
    each = max(1, each)
    return [range(at, min(at + each, count)) for at in range(0, count, each)]


@dataclass(slots=True, kw_only=True)
class Batch(Generic[_Part]):
    """Transfers that belong together.

    Attributes:
        timeout_s: Seconds that its transfers may take.
        started: Start time, in seconds of the monotonic clock.
        parts: The transfers that were started.
        cancelled: Whether its transfers were cancelled.
    """

    timeout_s: float
    started: float = field(default_factory=time.monotonic)
    parts: list[_Part] = field(default_factory=list)
    cancelled: bool = False

    def ended(self) -> bool:
        """Returns whether every transfer has ended."""
        return all(part.transfer.done() for part in self.parts)

    def cancel(self) -> None:
        """Cancels its transfers; they still end by themselves, soon."""
        if not self.cancelled:
            self.cancelled = True
            for part in self.parts:
                part.transfer.cancel()

    def cancel_if_late(self, now: float) -> None:
        """Cancels its transfers if they outlive the timeout by `GRACE_S`."""
        if now - self.started > self.timeout_s + GRACE_S:
            self.cancel()

    def finish(self) -> None:
        """Waits until every transfer has ended; cancels those that are late."""
        end = self.started + self.timeout_s + GRACE_S
        if not all(part.transfer.wait(max(0.0, end - time.monotonic())) for part in self.parts):
            self.cancel()
            for part in self.parts:
                part.transfer.wait()

    def report(
        self,
        done: Callable[[_Part, Any], object],
        throttled: Callable[[_Part], object],
        failed: Callable[[_Part, Exception], object],
    ) -> None:
        """Reports each transfer of a batch that has ended, in order.

        Args:
            done: Called with a part and the result of its transfer.
            throttled: Called with a part that the store refused.
            failed: Called with a part and the exception of its transfer or of `done`.
        """
        for part in self.parts:
            try:
                if part.transfer.throttled:
                    throttled(part)
                else:
                    done(part, part.transfer.result())
            except Exception as error:  # noqa: BLE001 - invariant 3
                failed(part, error)
