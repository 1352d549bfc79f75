"""Cells: measurements that end in one JSON file each, so that a part can be stopped and resumed.

1. A cell whose file exists is skipped.
2. A cell begins only if its expected duration fits into the time that is left.
3. A cell that raises leaves a file with its error, and the next one begins. Run it again with
   `--again`.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu.pieces import say

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, and cleaned of vLLM's files only
# Files of vLLM's CPU tier, which an engine leaves when it is killed.
_OF_VLLM = "vllm_offload_*"


class TimeUpError(Exception):
    """The time of the part is up before the cell has ended; nothing is recorded."""


@dataclass(frozen=True)
class Cell:
    """One measurement.

    Attributes:
        name: Name of its file, without part and ending.
        run: Measures; returns what the file gets.
        expect_s: How long it takes on a GPU machine, in seconds.
    """

    name: str
    run: Callable[[Session], dict[str, Any]]
    expect_s: float


@dataclass
class Session:
    """One run of a part.

    Attributes:
        out: The folder of the results.
        scratch: The folder of stores, models and logs.
        until: When the part must have ended, in seconds of the monotonic clock.
        is_small: Whether sizes are those of a test.
        library: Another library than the driver's.
        options: Further options of the command line, by their names.
    """

    out: Path
    scratch: Path
    until: float
    is_small: bool = False
    library: Path | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        """Seconds until the part must have ended."""
        return self.until - time.monotonic()

    def check_time(self) -> None:
        """Raises if the time is up.

        Raises:
            TimeUpError: It is.
        """
        if self.left_s <= 0:
            raise TimeUpError

    @contextmanager
    def folder(self, name: str) -> Iterator[Path]:
        """Gives an empty folder, which is removed afterwards."""
        place = self.scratch / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)


def run_part(
    part: str, cells: Sequence[Cell], session: Session, *, only: str = "", again: bool = False
) -> list[dict[str, Any]]:
    """Runs the cells of a part that have no file yet; returns what the new files have.

    Args:
        part: Name of the part.
        cells: The most valuable first.
        session: Where, and how long.
        only: A part of the names of the cells to run; empty for all.
        again: Whether to run cells that have a file.
    """
    session.out.mkdir(parents=True, exist_ok=True)
    session.scratch.mkdir(parents=True, exist_ok=True)
    done = []
    for cell in (one for one in cells if only in one.name):
        place = session.out / f"{part}-{cell.name}.json"
        if place.exists() and not again:
            continue
        if cell.expect_s > session.left_s:
            say(f"{part}: {cell.name} needs {cell.expect_s:.0f} s, {session.left_s:.0f} s are left")
            continue
        try:
            record = _run(part, cell, session)
        except TimeUpError:
            say(f"{part}: the time is up in {cell.name}; run the same command again")
            break
        place.write_text(json.dumps(record, indent=1), encoding="utf-8")
        done.append(record)
    return done


def _run(part: str, cell: Cell, session: Session) -> dict[str, Any]:
    """Runs one cell; returns its record."""
    before, started = shared_memory(), time.monotonic()
    say(f"{part}: {cell.name}")
    record: dict[str, Any] = {"part": part, "cell": cell.name, "ok": True}
    try:
        record |= cell.run(session)
    except TimeUpError:
        raise
    except Exception as error:  # noqa: BLE001 - recorded; the next cell may work
        say(traceback.format_exc())
        record |= {"ok": False, "error": f"{type(error).__name__}: {error}"}
    finally:
        there = shared_memory()
        names = sorted(there.keys() - before.keys())
        left = [f"{name} {there[name]}" for name in names]
        clean_shared_memory(names)
    record["took_s"] = round(time.monotonic() - started, 1)
    record["left_in_shared_memory"] = left
    say(f"{part}: {cell.name} took {record['took_s']} s{'' if record['ok'] else ', and FAILED'}")
    return record


def shared_memory() -> dict[str, int]:
    """Returns the bytes of the files in `/dev/shm` that no process uses, by their names.

    Those of engines that run are found by their names, so nobody else may remove one.
    """
    found = {}
    for place in SHARED_MEMORY.iterdir() if SHARED_MEMORY.is_dir() else ():
        with contextlib.suppress(OSError):
            found[place.name] = place.stat().st_size
    # After they were listed: who made one of them had it open by then.
    used = used_files() if found else set()
    return {name: size for name, size in found.items() if name not in used}


def used_files() -> set[str]:
    """Returns the names of the files in `/dev/shm` that a process has open or mapped."""
    used: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for one in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    used.add(one.readlink().name)
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text(errors="replace").splitlines():
                _, found, name = line.partition(f"{SHARED_MEMORY}/")
                if found:
                    used.add(name)
    return used


def clean_shared_memory(names: Iterable[str]) -> None:
    """Removes those files that are of vLLM's CPU tier: they fill the memory."""
    for name in names:
        place = SHARED_MEMORY / name
        if fnmatch.fnmatch(name, _OF_VLLM) and place.stat().st_uid == os.geteuid():
            place.unlink(missing_ok=True)


def records(out: Path) -> list[dict[str, Any]]:
    """Returns the records of all cells in a folder, by part and name."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*-*.json"))]
    return [one for one in found if "cell" in one]


def median(values: Sequence[float]) -> float:
    """Returns the median of some values; 0 without any."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0
