"""Moves pages between SGLang's host pools and the store.

SGLang calls from one thread per direction and waits. So a call is cut into parts, which the store's
threads transfer in parallel.

1. A call returns when every transfer of it has ended: SGLang may then reuse the memory.
2. Every part has a deadline. Late pages of a load are misses; late pages of a store are lost.
3. Copies through scratch memory are cut into pieces of at most `SCRATCH_BYTES`, or one page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from dalsegno import InvalidError, PutReport
from dalsegno.integrations.common.batch import Batch, cut, split
from dalsegno.integrations.sglang.pools import Blocks, PoolPages

# Large enough for long requests to the device, small enough to keep all threads busy.
PART_BYTES = 16 << 20
LEAST_PART_BYTES = 2 << 20
MOST_PARTS = 64
SCRATCH_BYTES = 64 << 20


@dataclass
class Moved:
    """The outcome of the pages of a call.

    Attributes:
        done: For each page whether it is in the store, or in memory, now.
        pages: Pages that were transferred.
        known: Pages that the store already had, or was writing.
        refused: Pages that failed, were declined or were missing.
        throttled: Pages refused because too many transfers were queued.
        errors: Exceptions on the way.
    """

    done: list[bool] = field(default_factory=list)
    pages: int = 0
    known: int = 0
    refused: int = 0
    throttled: int = 0
    errors: list[Exception] = field(default_factory=list)

    def add(self, other: Moved) -> None:
        """Appends the outcome of the next pages."""
        self.done += other.done
        self.pages += other.pages
        self.known += other.known
        self.refused += other.refused
        self.throttled += other.throttled
        self.errors += other.errors


class _Part(NamedTuple):
    """A transfer of some pages of a call."""

    pages: range
    transfer: Any


class Mover:
    """Carries out the calls of one backend."""

    def __init__(self, load_timeout_s: float, store_timeout_s: float) -> None:
        """Takes the deadlines, in seconds."""
        self._load_timeout_s, self._store_timeout_s = load_timeout_s, store_timeout_s

    def put(
        self,
        space: Any,
        hashes: Sequence[bytes],
        pages: PoolPages,
        indices: torch.Tensor,
        before: bytes | None,
    ) -> Moved:
        """Stores pages of a pool: one hash and `page_tokens` indices per page, in prompt order.

        `before`, the hash of the page right before the first one, is only a hint.
        """
        moved = Moved()
        for piece, chosen in _pieces(pages, hashes, indices):
            blocks = pages.sources(chosen)
            moved.add(self.put_blocks(space, hashes[piece.start : piece.stop], blocks, before))
            before = hashes[piece.stop - 1]
        return moved

    def put_blocks(
        self, space: Any, hashes: Sequence[bytes], blocks: Blocks, before: bytes | None
    ) -> Moved:
        """Stores blocks that lie in memory."""
        chain = [before, *hashes] if before else list(hashes)
        shift = len(chain) - len(hashes)

        def start(part: range) -> Any:
            first = max(0, part.start + shift - 1)
            return space.submit_put(
                chain[first : part.stop + shift],
                blocks[part.start : part.stop],
                first=part.start + shift - first,
                timeout_s=self._store_timeout_s,
            )

        # A part is stored in one piece, and what is stored in large pieces is read in large pieces.
        parts = cut(len(hashes), space.block_bytes, PART_BYTES, MOST_PARTS)
        return _carry_out(parts, start, _stored, self._store_timeout_s)

    def get(
        self,
        space: Any,
        hashes: Sequence[bytes],
        pages: PoolPages,
        indices: torch.Tensor,
        timeout_s: float | None = None,
    ) -> Moved:
        """Fills pages of a pool; a page that is not there leaves its memory undefined.

        After `timeout_s`, or else the deadline, the rest is given up.
        """
        moved = Moved()
        for piece, chosen in _pieces(pages, hashes, indices):
            blocks, fill = pages.targets(chosen)
            came = self.get_blocks(space, hashes[piece.start : piece.stop], blocks, timeout_s)
            for place, there in enumerate(came.done):
                if there:
                    fill(place)
            moved.add(came)
        return moved

    def get_blocks(
        self, space: Any, hashes: Sequence[bytes], blocks: Blocks, timeout_s: float | None = None
    ) -> Moved:
        """Fills memory with blocks."""
        limit_s = self._load_timeout_s if timeout_s is None else timeout_s

        def start(part: range) -> Any:
            return space.submit_get(
                hashes[part.start : part.stop],
                blocks[part.start : part.stop],
                each=True,
                timeout_s=limit_s,
            )

        # SGLang waits for it, so even a small load keeps two threads busy.
        half = len(hashes) * space.block_bytes // 2
        part_bytes = min(PART_BYTES, max(LEAST_PART_BYTES, half))
        parts = cut(len(hashes), space.block_bytes, part_bytes, MOST_PARTS)
        return _carry_out(parts, start, _loaded, limit_s)


def _pieces(
    pages: PoolPages, hashes: Sequence[bytes], indices: torch.Tensor
) -> Iterator[tuple[range, torch.Tensor]]:
    """Cuts a call into what is moved at once: all of it, unless it goes through scratch memory.

    Raises:
        InvalidError: There are not as many keys as pages.
    """
    count = pages.count(indices)
    if count != len(hashes):
        raise InvalidError(f"SGLang gives {len(hashes)} keys for {count} pages")
    flat = pages.shape.form == "flat"
    for piece in split(count, SCRATCH_BYTES // pages.shape.block_bytes if flat else count):
        yield piece, indices[piece.start * pages.page_tokens : piece.stop * pages.page_tokens]


def _carry_out(
    parts: Sequence[range],
    start: Callable[[range], Any],
    outcome: Callable[[Any], Moved],
    timeout_s: float,
) -> Moved:
    """Starts all parts, waits for all of them, and adds up their results."""
    batch, moved = Batch[_Part](timeout_s=timeout_s), Moved()
    for pages in parts:
        try:
            batch.parts.append(_Part(pages, start(pages)))
        except Exception as error:  # noqa: BLE001 - what was started must end first
            moved.errors.append(error)
            break
    batch.finish()

    def lost(part: _Part, throttled: int = 0, *errors: Exception) -> None:
        count = len(part.pages)
        moved.add(Moved([False] * count, 0, 0, count, throttled, list(errors)))

    batch.report(
        lambda _, result: moved.add(outcome(result)),
        lambda part: lost(part, len(part.pages)),
        lambda part, error: lost(part, 0, error),
    )
    left = sum(map(len, parts)) - len(moved.done)
    moved.add(Moved([False] * left, refused=left))
    return moved


def _stored(report: PutReport) -> Moved:
    """Returns the outcome of a put.

    Pages that admission declines, or that another put is writing, count as done: the store has
    handled them, and SGLang abandons the rest of a backup at the first page that is not.
    """
    done = [True] * len(report.kept) if report.failed == 0 else list(report.kept)
    known = report.present + report.pending
    return Moved(done, report.stored, known, report.failed + report.declined)


def _loaded(done: list[bool]) -> Moved:
    """Returns the outcome of a get."""
    return Moved(done, sum(done), 0, len(done) - sum(done))
