"""Runs the engines of a measurement, and makes a profile of what they learned.

1. Two engines run one after the other: the first one computes prompts and loads them from its pool.
   The second one starts with an empty pool and loads from the disk.
2. Whatever happens, no process and no file of the measurement is left, unless this process is
   killed: then the engine removes its files and ends.
3. Every wait has a bound.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dalsegno import InvalidError, UnavailableError, profiles

ENGINE_MODULE = "dalsegno.integrations.vllm.measured_engine"
# An engine that has not started by then, or a prompt that takes so long, has failed.
SILENT_S = 1800.0
# How long an engine may take to end.
END_S = 60.0
POLL_S = 0.1
# The part of the time that the first engine may take.
MEMORY_PART = 0.75
ENVIRONMENT = {
    # One process is one engine, so killing it kills everything.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class StoppedError(Exception):
    """The measurement was stopped from outside."""


@dataclass(frozen=True)
class Order:
    """What is measured.

    Attributes:
        model: As engines name it.
        store: The directory of the store that engines will use.
        options: Options of the engines.
        lengths: Tokens, ascending.
        is_default: Whether lengths that do not fit are left out.
        times: How often each prompt is asked.
        seconds: How long all prompts may take, without the starts of the engines.
        capacity: Bytes of disk; None for what the prompts need.
        log: File for what the engines print; None: it is removed.
    """

    model: str
    store: Path
    options: Mapping[str, Any]
    lengths: Sequence[int]
    is_default: bool
    times: int
    seconds: float
    capacity: int | None = None
    log: Path | None = None
    stop: threading.Event = field(default_factory=threading.Event)


def has_vllm() -> bool:
    """Whether this Python has vLLM."""
    return importlib.util.find_spec("vllm") is not None


def measure(order: Order, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Returns the profile of the engines that an order describes.

    Args:
        order: What is measured.
        progress: Gets the number of prompts that were asked, and of all.

    Raises:
        UnavailableError: This Python has no vLLM, or an engine failed.
        InvalidError: The order cannot be carried out.
        StoppedError: It was stopped.
    """
    if not has_vllm():
        raise UnavailableError(
            f"{sys.executable} has no vLLM; run this command in the environment of your engines"
        )
    given = os.path.expanduser(order.model)  # noqa: PTH111 - it may be no path
    if given.startswith(("/", ".")) and not Path(given).exists():
        raise InvalidError(f"the model {order.model} does not exist")
    with _work_folder(order.store) as work:
        known, results = dict[str, Any](), list[dict[str, Any]]()
        left_s, total = order.seconds, 0
        for phase, part in (("memory", MEMORY_PART), ("disk", 1.0)):

            def show(done: int, of: int, before: int = total) -> None:
                progress(before + done, before + of)

            engine = _Engine(order, work, phase, part * left_s)
            try:
                result, asked_s = engine.result(show)
            finally:
                engine.stop()
            left_s, total = max(1.0, left_s - asked_s), total + result["asks"]
            results.append(result)
            known = _together(known, _profile_of(work))
    return {
        **known,
        "engine": {**known["engine"], "store": str(order.store)},
        "saved_at": time.time(),
        "table": _table(results),
    }


def _table(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what was measured, as the profile keeps it."""
    of_cells: dict[tuple[int, int], dict[str, Any]] = {}
    for cell in (cell for result in results for cell in result["cells"]):
        # The first engine has measured most of them, and more often.
        of_cells.setdefault((cell["prefix"], cell["new_tokens"]), cell)
    of_loads: dict[tuple[str, int], list[float]] = {}
    for tier, size, seconds in (load for result in results for load in result["loads"]):
        of_loads.setdefault((tier, size), []).append(seconds)
    loads = [
        {"tier": tier, "bytes": size, "seconds": statistics.median(all_s), "measured": len(all_s)}
        for (tier, size), all_s in sorted(of_loads.items())
    ]
    first = results[0]
    return {
        "measured_at": time.time(),
        "lengths": first["lengths"],
        "chunk": first["chunk"],
        "cells": [cell for _, cell in sorted(of_cells.items())],
        "loads": loads,
        "skipped": sum(result["skipped"] for result in results),
        "missed": sum(result["missed"] for result in results),
    }


def _together(first: Mapping[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Returns what two engines of a kind learned, of which the second began with the first's."""
    if not first:
        return second
    both = json.loads(json.dumps(second))
    both["learned"]["compute"]["measured"] += first["learned"]["compute"]["measured"]
    for tier in profiles.TIERS:
        if first["learned"][tier]["measured"] > second["learned"][tier]["measured"]:
            for part in ("learned", "tiers"):
                both[part][tier] = first[part][tier]
    return dict(both)


def _profile_of(work: Path) -> dict[str, Any]:
    """Returns the profile that an engine has written.

    Raises:
        UnavailableError: There is none.
    """
    found = [profiles.read(path) for path in (work / "profiles").glob("*.json")]
    if len(found) != 1 or not found[0]:
        raise UnavailableError("the engine did not write a profile")
    return found[0]


@contextlib.contextmanager
def _work_folder(store: Path) -> Iterator[Path]:
    """Makes a folder on the file system of a store, and removes it.

    Raises:
        InvalidError: It cannot be made.
    """
    near = store.parent
    while not near.exists() and near != near.parent:
        near = near.parent
    if store.is_dir() and store.stat().st_dev != near.stat().st_dev:
        near = store
    try:
        work = Path(tempfile.mkdtemp(prefix=f".{store.name}-profile-", dir=near))
    except OSError as error:
        raise InvalidError(
            f"{near} cannot be written: {error.strerror}; the measurement needs a folder on the "
            "file system of the store"
        ) from error
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


class _Engine:
    """An engine in a process of its own."""

    def __init__(self, order: Order, work: Path, phase: str, seconds: float) -> None:
        """Starts it."""
        spec = {
            "model": order.model,
            "options": order.options,
            "lengths": order.lengths,
            "is_default": order.is_default,
            "times": order.times,
            "capacity": order.capacity,
            "seconds": seconds,
            "phase": phase,
            "work": str(work),
        }
        self._stop, self._unread = order.stop, b""
        self._log = order.log or work / "engine.log"
        environment = {**os.environ, **ENVIRONMENT, "DALSEGNO_PROFILES": str(work / "profiles")}
        try:
            with self._log.open("ab") as errors:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", ENGINE_MODULE, json.dumps(spec)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=environment,
                    # Ctrl-C is for this process, which ends it.
                    start_new_session=True,
                )
        except OSError as error:
            raise InvalidError(f"{self._log} cannot be written: {error.strerror}") from error

    def result(self, progress: Callable[[int, int], None]) -> tuple[dict[str, Any], float]:
        """Waits for what it has measured; returns that, and how long its prompts took.

        Raises:
            UnavailableError: It failed.
            InvalidError: It cannot be started with these options.
            StoppedError: It was stopped.
        """
        began_at, asks = time.monotonic(), 0
        while "result" not in (answer := self._answer()):
            if "error" in answer:
                raise UnavailableError(answer["error"])
            if not asks:
                began_at = time.monotonic()
            asks = int(answer["total"])
            progress(int(answer["done"]), asks)
        asked_s = time.monotonic() - began_at
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        return {**answer["result"], "asks": asks}, asked_s

    def _answer(self) -> dict[str, Any]:
        """Returns the next line that it writes."""
        assert self._process.stdout is not None
        until = time.monotonic() + SILENT_S
        while b"\n" not in self._unread:
            if self._stop.is_set():
                raise StoppedError
            if time.monotonic() > until:
                raise UnavailableError(f"the engine was silent for {SILENT_S:.0f} s")
            if select.select([self._process.stdout], [], [], POLL_S)[0]:
                more = os.read(self._process.stdout.fileno(), 1 << 16)
                if not more:
                    raise UnavailableError(self._failure())
                self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failure(self) -> str:
        """Returns why it has ended without a result."""
        code = self._process.wait(END_S)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"the engine ended with {how}; repeat it with --log FILE to see what vLLM printed"

    def stop(self) -> None:
        """Ends it and what it started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
