"""One probe on one store: what it may use, and its outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from dalsegno_bench.faultbench import disk
from dalsegno_bench.faultbench.blocks import HIT, MISS, batches, names
from dalsegno_bench.faultbench.remote import DiedError, FailedError, Host, HungError, Origin

__all__ = ["Cell", "EndedError", "Outcome", "Probe", "run"]

BLOCK_BYTES = 64 << 10
BATCH_BLOCKS = 8
CAPACITY_BYTES = 64 * disk.MIB
# Most seconds of a call, and of a whole cell.
CALL_S, CELL_S = 20.0, 300.0
# Open files and threads that a process may have more than before: pools grow with use.
SPARE_HELD = 40


class EndedError(Exception):
    """A cell ends early; what it found so far counts."""


@dataclass
class Outcome:
    """The outcome of a probe on a store.

    Attributes:
        wrong: Blocks that were returned with bytes that are not theirs.
        lost: Blocks that the store acknowledged, the fault did not touch, and no get brings back;
            also blocks that cannot be stored again after a fault that is over.
        hung: Calls that did not end in time, calls in which the store's process died, and puts that
            a store never accepted although it could evict.
        leaked: What is left: whole MiB of disk over the capacity, files that nothing refers to,
            and open files and threads, if they grow with use.
        notes: What was seen, in words.
        figures: What was measured.
        skipped: Why the probe was not made; empty if it was.
    """

    wrong: int = 0
    lost: int = 0
    hung: int = 0
    leaked: int = 0
    notes: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    skipped: str = ""

    @property
    def correct(self) -> bool:
        """Whether nothing is wrong; a probe that was not made is not correct."""
        return not (self.skipped or self.wrong or self.lost or self.hung or self.leaked)

    def as_json(self) -> dict[str, Any]:
        """Returns everything for programs."""
        return {"correct": self.correct, **asdict(self)}


class Cell:
    """A store under one probe: at most one process at a time has it open.

    Attributes:
        directory: Where the store is; a probe may move it before the store is opened.
        chance: The only source of chance.
        facts: What the adapter says of itself.
        outcome: Its outcome so far.
        capacity_bytes: Given to the store.
        block_bytes: Likewise.
    """

    def __init__(self, origin: Origin, directory: Path, seed: int) -> None:
        self._origin = origin
        self.directory, self.facts = directory, origin.facts
        self.chance, self.outcome = Random(seed), Outcome()  # noqa: S311 - no secret
        self.capacity_bytes, self.block_bytes = CAPACITY_BYTES, BLOCK_BYTES
        self._host: Host | None = None
        self._wrong: set[bytes] = set()
        self._lost: set[bytes] = set()
        self._end = time.monotonic() + CELL_S
        self._seed = seed

    def share(self, other: Cell) -> None:
        """Adds what this cell finds to the outcome of another one, of another node."""
        self.outcome, self._wrong, self._lost = other.outcome, other._wrong, other._lost

    # The store.

    def open(self) -> None:
        """Opens the store in a process of its own.

        Raises:
            FailedError: The store refuses.
        """
        assert self._host is None
        self._host = self._origin.fork()
        self._host_call("open", str(self.directory), self.capacity_bytes, self.block_bytes)

    def close(self) -> None:
        """Closes the store; its process ends."""
        host, self._host = self._host, None
        if host is None:
            return
        try:
            host.end()
        except FailedError as error:
            self.note(f"close: {error}")
        except (HungError, DiedError) as error:
            self.hang(str(error))

    def kill(self) -> list[Any]:
        """Kills the store's process; returns the answers to calls that were sent before."""
        host, self._host = self.host, None
        host.kill()
        return host.answers()

    def kill_if_open(self) -> None:
        """Kills the store's process, if there is one."""
        if self._host is not None:
            self.kill()

    @property
    def host(self) -> Host:
        """The store's process."""
        assert self._host is not None
        return self._host

    def _host_call(self, call: str, *arguments: Any, limit_s: float | None = None) -> Any:
        self.send(call, *arguments)
        return self.answer(call, limit_s)

    def send(self, call: str, *arguments: Any) -> None:
        """Sends a call without waiting for its answer."""
        try:
            self.host.send(call, *arguments)
        except DiedError as error:
            self._end_early(error)

    def answer(self, call: str, limit_s: float | None = None) -> Any:
        """Waits for the answer to the earliest call that was sent.

        Raises:
            FailedError: The store raised an error.
            EndedError: There was no answer; that is counted.
        """
        left_s = self._end - time.monotonic()
        if left_s <= 0:
            self._end_early(HungError(f"the probe did not end within {CELL_S:.0f} s"))
        try:
            return self.host.answer(call, min(limit_s or CALL_S, left_s))
        except (HungError, DiedError) as error:
            self._end_early(error)
        except FailedError:
            if call == "open":
                self.kill()
            raise

    def _end_early(self, error: HungError | DiedError) -> NoReturn:
        """Counts a call that did not end well, and ends the cell."""
        self.hang(str(error))
        host, self._host = self.host, None
        host.kill()
        raise EndedError from error

    def put(self, keys: Sequence[bytes]) -> list[bytes]:
        """Puts blocks in batches; returns those that were acknowledged."""
        kept: list[bytes] = []
        for batch in batches(keys, BATCH_BLOCKS):
            kept += self.put_timed(batch)[0]
        return kept

    def put_timed(self, batch: Sequence[bytes]) -> tuple[list[bytes], float]:
        """Puts one batch; returns what was acknowledged, and after how many seconds."""
        try:
            acknowledged, seconds = self._host_call("put", batch)
        except FailedError as error:
            self.note(f"put: {error}")
            return [], 0.0
        return [key for key, done in zip(batch, acknowledged, strict=True) if done], seconds

    def put_all(self, parts: Sequence[Sequence[bytes]], limit_s: float) -> list[bytes]:
        """Puts batches, all at a time; returns the blocks that were acknowledged."""
        try:
            acknowledged = self._host_call("put_all", parts, limit_s=limit_s)
        except FailedError as error:
            self.note(f"put: {error}")
            return []
        return [
            key
            for batch, done in zip(parts, acknowledged, strict=True)
            for key, kept in zip(batch, done, strict=True)
            if kept
        ]

    def get(self, keys: Sequence[bytes]) -> list[bytes]:
        """Gets blocks in batches; returns those that came, and notes those that are wrong."""
        came: list[bytes] = []
        for batch in batches(keys, BATCH_BLOCKS):
            try:
                came += self._judged(batch, self._host_call("get", batch))
            except FailedError as error:
                self.note(f"get: {error}")
        return came

    def get_all(self, parts: Sequence[Sequence[bytes]], limit_s: float) -> list[bytes]:
        """Gets batches, all at a time; returns the blocks that came."""
        try:
            verdicts = self._host_call("get_all", parts, limit_s=limit_s)
        except FailedError as error:
            self.note(f"get: {error}")
            return []
        judged = [self._judged(batch, one) for batch, one in zip(parts, verdicts, strict=True)]
        return [key for part in judged for key in part]

    def _judged(self, keys: Sequence[bytes], verdicts: Sequence[str]) -> list[bytes]:
        for key, verdict in zip(keys, verdicts, strict=True):
            if verdict not in (HIT, MISS):
                self._wrong.add(key)
                self.note(f"a get brought wrong bytes: {verdict}")
        return [key for key, verdict in zip(keys, verdicts, strict=True) if verdict == HIT]

    def exists(self, keys: Sequence[bytes]) -> list[bytes]:
        """Returns the blocks that are present."""
        try:
            present = self._host_call("exists", keys)
        except FailedError as error:
            self.note(f"exists: {error}")
            return []
        return [key for key, there in zip(keys, present, strict=True) if there]

    def settle(self) -> None:
        """Gives the store time for its housekeeping."""
        self._host_call("settle")

    def held(self) -> dict[str, int]:
        """Counts what the store's process holds."""
        counted: dict[str, int] = self._host_call("held")
        return counted

    # The outcome.

    def names(self, label: str, count: int) -> list[bytes]:
        """Makes keys that no other cell with another seed has."""
        return names(f"{self._seed} {label}", count)

    def note(self, text: str) -> None:
        """Notes what was seen, once."""
        if text not in self.outcome.notes:
            self.outcome.notes.append(text)

    def hang(self, why: str) -> None:
        """Counts a call that did not end well."""
        self.outcome.hung += 1
        self.note(why)

    def lose(self, keys: Iterable[bytes], why: str) -> None:
        """Counts blocks that ought to be there and are not; one with wrong bytes is no loss."""
        missing = set(keys) - self._wrong - self._lost
        if missing:
            self._lost |= missing
            self.note(f"blocks that {why}: {len(missing)}")

    def leak(self, count: int, what: str) -> None:
        """Counts what is left."""
        if count > 0:
            self.outcome.leaked += count
            self.note(f"{what}: {count}")

    def compare_held(self, before: dict[str, int]) -> None:
        """Counts open files and threads that a process has more than before."""
        for what, count in self.held().items():
            more = count - before[what]
            self.leak(more if more > SPARE_HELD else 0, f"{what} more than before")

    def find_left_over(self) -> None:
        """Counts files that should not have outlived the calls that made them."""
        left = [
            path.name
            for path in disk.files(self.directory)
            if any(fnmatch(path.name, pattern) for pattern in self.facts["temporary"])
        ]
        self.leak(len(left), "temporary files that were left")

    def sum_up(self) -> Outcome:
        """Returns the outcome."""
        self.outcome.wrong, self.outcome.lost = len(self._wrong), len(self._lost)
        return self.outcome


@dataclass(frozen=True)
class Probe:
    """A kind of fault.

    Attributes:
        name: Its name in the table.
        summary: What it does, in a line.
        work: Does it.
    """

    name: str
    summary: str
    work: Callable[[Cell], None]


def run(probe: Probe, origin: Origin, directory: Path, seed: int) -> Outcome:
    """Probes a store in an empty directory; whatever the store does, there is an outcome."""
    cell = Cell(origin, directory, seed)
    try:
        probe.work(cell)
        cell.close()
    except EndedError:
        pass
    except FailedError as error:
        cell.hang(f"the store does not open: {error}")
    except disk.SkippedError as why:
        cell.outcome.skipped = str(why)
    finally:
        cell.kill_if_open()
    return cell.sum_up()
