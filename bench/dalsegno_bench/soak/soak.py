"""A day of a serving node in twenty minutes: mixed load, full disks, killed processes, reopening.

Two processes use a store each on one small file system. One lives to the end and opens its store
again and again. Its descriptors, threads and memory are counted after every close. The other is
killed at random and restarted on the store that it left. Periodically another writer fills the file
system. Every byte that is returned is compared with what was put.

A request is what a prompt needs of a store: probe, get what is present, put the rest. Some chains
grow block by block, as in decode, and some are removed. An hour of the Mooncake conversation trace
has 12,031 requests, so a day has 288,744.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import hashlib
import json
import mmap
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dalsegno
from dalsegno_bench.machine import image
from dalsegno_bench.soak.figures import complaints, figures_of

__all__ = ["SUMMARY", "main"]

SUMMARY = "a day's load in minutes: full disks, kills, reopening; what leaks, what is wrong"

IMAGE_BYTES = 1 << 30
# Two of them want more than the disk has.
CAPACITY = "640MiB"
THREADS = 2
MOST_BLOCKS = 48
TIMEOUT_S = 5.0
# Name, layers, bytes of a slice, codec.
SPACES = (("chat", 4, 4096, None), ("code", 2, 3000, None), ("long", 8, 2048, "zstd"))
# Of malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 128 << 10
BLOCK_BYTES = max(layers * slice_bytes for _, layers, slice_bytes, _ in SPACES)


@dataclass
class Tally:
    """What threads of one process count."""

    requests: int = 0
    put_blocks: int = 0
    hit_blocks: int = 0
    wrong_blocks: int = 0
    failed_blocks: int = 0
    errors: dict[str, int] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Adds another one's counts."""
        for name in ("requests", "put_blocks", "hit_blocks", "wrong_blocks", "failed_blocks"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for kind, count in other.errors.items():
            self.errors[kind] = self.errors.get(kind, 0) + count


def _name(space: int, prompt: int, block: int) -> bytes:
    return hashlib.sha256(b"%d/%d/%d" % (space, prompt, block)).digest()


def _content(name: bytes, size: int) -> bytes:
    return (name * (size // len(name) + 1))[:size]


class Client:
    """One thread's requests."""

    def __init__(self, store: dalsegno.Store, seed: int) -> None:
        """Opens the namespaces."""
        self._chance = random.Random(seed)  # noqa: S311 - a load, not a secret
        self._spaces = [
            store.namespace({"soak": name}, layers=layers, slice_bytes=size, codec=codec)
            for name, layers, size, codec in SPACES
        ]
        self._memory = [mmap.mmap(-1, BLOCK_BYTES) for _ in range(MOST_BLOCKS)]
        self.tally = Tally()

    def close(self) -> None:
        """Gives the memory back."""
        for block in self._memory:
            block.close()

    def request(self) -> None:
        """What one prompt asks of a store."""
        which = self._chance.randrange(len(SPACES))
        space = self._spaces[which]
        # Few prompts come often, most come once: a long tail, as traces have.
        prompt = int(self._chance.paretovariate(0.7)) % 100_000
        count = self._chance.randint(1, MOST_BLOCKS)
        chain = [_name(which, prompt, block) for block in range(count)]
        self.tally.requests += 1
        try:
            self._serve(space, chain)
        except dalsegno.DalsegnoError as error:
            kind = type(error).__name__
            self.tally.errors[kind] = self.tally.errors.get(kind, 0) + 1

    def _serve(self, space: dalsegno.Namespace, chain: list[bytes]) -> None:
        size = space.block_bytes
        present = space.probe(chain)
        out = [memoryview(block)[:size] for block in self._memory[:present]]
        hits = space.get_batch(chain[:present], out, timeout_s=TIMEOUT_S)
        for name, block in zip(chain[:hits], out, strict=False):
            if block != _content(name, size):
                # Immediately: a process that is killed next reports nothing.
                print(json.dumps({"wrong": name.hex()}), flush=True)
                self.tally.wrong_blocks += 1
        self.tally.hit_blocks += hits
        new = [_content(name, size) for name in chain[hits:]]
        if not new:
            if self._chance.random() < 0.02:
                space.remove(chain)
            return
        step = 1 if self._chance.random() < 0.2 else len(new)
        for at in range(0, len(new), step):
            end = hits + at + len(new[at : at + step])
            part = new[at : at + step]
            report = space.put_batch(chain[:end], part, first=hits + at, timeout_s=TIMEOUT_S)
            self.tally.put_blocks += report.stored
            self.tally.failed_blocks += report.failed


def _open(path: Path, life: int) -> dalsegno.Store:
    index = "lsm" if life % 2 else "memory"
    durability = "batch" if life % 3 == 0 else "none"
    return dalsegno.open(
        path,
        capacity=CAPACITY,
        dram="16MiB",
        staging="16MiB",
        index=index,
        index_memory="2MiB",
        durability=durability,
        scrub_rate="8MiB",
    )


def _work(store: dalsegno.Store, seconds: float, seed: int) -> Tally:
    """Serves requests from some threads for a while."""
    total, ends = Tally(), time.monotonic() + seconds

    def run(number: int) -> None:
        client = Client(store, seed * 1000 + number)
        while time.monotonic() < ends:
            client.request()
        client.close()
        total.add(client.tally)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return total


class _MallInfo(ctypes.Structure):
    """The result of ``mallinfo2(3)``."""

    # Ten sizes, of which two are of interest: bytes of mappings, and of the heaps what is in use.
    _fields_ = (
        ("before", ctypes.c_size_t * 4),
        ("hblkhd", ctypes.c_size_t),
        ("between", ctypes.c_size_t * 2),
        ("uordblks", ctypes.c_size_t),
        ("behind", ctypes.c_size_t * 2),
    )


def _heap_bytes() -> int:
    """Returns the bytes that the process has from ``malloc`` and has not freed.

    Resident memory also holds what ``malloc`` keeps for later calls.
    """
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _MallInfo
    info = libc.mallinfo2()
    return int(info.uordblks) + int(info.hblkhd)


def _status() -> dict[str, str]:
    """Returns what the kernel reports of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return dict(line.split(":", 1) for line in lines)


def _resident_mib() -> float:
    return int(_status()["VmRSS"].split()[0]) / 1024


def _keep_little() -> None:
    """Makes ``malloc`` keep little of what was freed, so that leaks are visible.

    By default ``malloc`` raises its limits when large pieces are freed. It then keeps more, in as
    many arenas as threads ever ran together. ``malloc_trim(3)`` does not reach the ends of those
    arenas; fixed limits, here the initial defaults, do.
    """
    libc = ctypes.CDLL(None)
    for limit in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
        libc.mallopt(limit, _KEPT_BYTES)


def _resources() -> dict[str, float]:
    """Returns descriptors, threads and memory of this process, after ``malloc`` freed its rest."""
    gc.collect()
    before = _resident_mib()
    ctypes.CDLL(None).malloc_trim(0)
    return {
        "fds": len(list(Path("/proc/self/fd").iterdir())),
        "threads": int(_status()["Threads"]),
        "rss_mib": before,
        "held_mib": _resident_mib(),
        "heap_mib": _heap_bytes() / (1 << 20),
    }


def _worker(options: argparse.Namespace) -> int:
    """One process: opens, works, closes, until its time is up; a line of JSON after each life."""
    _keep_little()
    ends, life = time.monotonic() + options.seconds, options.life
    while True:
        began = time.monotonic()
        left = ends - began
        if left <= 0:
            return 0
        try:
            store = _open(Path(options.worker), life)
        except dalsegno.DalsegnoError as error:
            # The disk may be full just now.
            print(json.dumps({"refused": str(error)}), flush=True)
            time.sleep(0.5)
            continue
        opened = time.monotonic() - began
        tally = _work(store, min(options.life_s, left), options.seed + life)
        counters = store.stats()
        store.close()
        merges = counters["merging"]["merges"]
        facts = {"life": life, "open_s": opened, **_resources(), **vars(tally), "merges": merges}
        facts |= {name: counters[name] for name in ("evicted_blocks", "quarantined_blocks")}
        facts |= {"poisoned": counters["poisoned"], "rounds": counters["scrubbing"]["rounds"]}
        facts["refused_segments"] = counters["log"]["creations_refused"]
        facts["returned_segments"] = counters["log"]["segments_given_back"]
        del store, counters
        print(json.dumps(facts), flush=True)
        life += 1


class Process:
    """A worker, started again when it was killed; its lines are kept."""

    def __init__(self, path: Path, options: argparse.Namespace, life_s: float) -> None:
        """Starts nothing yet."""
        self._path, self._options, self._life_s = path, options, life_s
        self.rows: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.starts = 0

    def run(self, seconds: float) -> subprocess.Popen[str]:
        """Starts one that works for so long."""
        command = [sys.executable, "-m", "dalsegno.cli", "bench", "soak"]
        command += ["--worker", str(self._path), "--seconds", str(seconds)]
        command += ["--life-s", str(self._life_s), "--life", str(self.starts * 7)]
        command += ["--seed", str(self._options.seed + 100 * self.starts)]
        self.starts += 1
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        return process

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if line.startswith("{"):
                self.rows.append(json.loads(line))
        said = process.stderr.read()
        if process.wait() not in (0, -9):
            self.problems.append(said[-2000:])


def _fill_up(folder: Path, seconds: float) -> None:
    """Fills the disk for a while, as another writer does."""
    ballast = folder / "ballast"
    with ballast.open("wb") as file:
        space = os.statvfs(folder)
        free = space.f_bavail * space.f_frsize
        # The others take from it meanwhile.
        with contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, max(1 << 20, free - (1 << 20)))
    time.sleep(seconds)
    ballast.unlink()


def _soak(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    chance = random.Random(options.seed)  # noqa: S311 - a load, not a secret
    ends = time.monotonic() + 60 * options.minutes
    steady = Process(folder / "steady", options, 20.0)
    killed = Process(folder / "killed", options, 6.0)
    process = steady.run(60 * options.minutes)
    kills, fillers = 0, []
    next_fill = time.monotonic() + 30
    victim = killed.run(3600)
    while (left := ends - time.monotonic()) > 0 and process.poll() is None:
        time.sleep(min(left, chance.uniform(1, 12)))
        victim.kill()
        victim.wait()
        kills += 1
        if time.monotonic() > next_fill:
            fillers.append(threading.Thread(target=_fill_up, args=(folder, 10.0)))
            fillers[-1].start()
            next_fill = time.monotonic() + 60
        victim = killed.run(3600)
        if sys.stderr.isatty():
            print(f"\r{max(0, left):5.0f} s left, {kills} kills", end="", file=sys.stderr)
    victim.kill()
    victim.wait()
    if process.wait(timeout=120) != 0:
        steady.problems.append(f"the steady process ended early with {process.returncode}")
    for filler in fillers:
        filler.join()
    time.sleep(0.5)
    return figures_of(steady, killed, kills, len(fillers))


def main(argv: Sequence[str]) -> int:
    """Runs the bench; returns the exit status: 1 if anything was wrong, or grew."""
    parser = argparse.ArgumentParser(prog="dalsegno bench soak", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=20, help="how long it runs (default %(default)s)")
    add("--seed", type=int, default=1, help="decides what chance decides (default %(default)s)")
    add("--worker", help=argparse.SUPPRESS)
    add("--seconds", type=float, help=argparse.SUPPRESS)
    add("--life-s", type=float, help=argparse.SUPPRESS)
    add("--life", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        return _worker(options)
    if (what := image.missing()) is not None:
        print(f"dalsegno: this bench mounts a file system: {what}", file=sys.stderr)
        return 1
    place = Path(tempfile.mkdtemp(prefix="dalsegno-soak-"))
    try:
        with image.mounted(place / "disk", IMAGE_BYTES) as folder:
            figures = _soak(options, folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    for name, value in figures.items():
        shown = f"{value:,.2f}" if isinstance(value, float) else value
        print(f"{name:22}{shown}")
    found = complaints(figures, options.minutes)
    for complaint in found:
        print(f"dalsegno: {complaint}", file=sys.stderr)
    print(json.dumps(figures))
    return int(bool(found))
