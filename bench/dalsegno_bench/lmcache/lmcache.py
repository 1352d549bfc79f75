"""LMCache's L2 adapters side by side: ours, `fs_native` and `raw_block`, each as LMCache drives it.

Every round runs every contender once, in an order of its own, with fresh keys. Figures are medians
over the rounds. Puts are compared at equal durability. Ours with `batch` is compared with
`fs_native` whose files are synced (LMCache syncs nothing), ours with `none` with `fs_native` as it
is. `fs_native` runs both through the page cache, its default, and around it. `raw_block` writes
around it and syncs nothing. Loads come from the disk: the pages of `fs_native`'s files are dropped
before. Both sides get the same memory, aligned as LMCache's is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dalsegno.paths import local_path
from dalsegno_bench.machine.speed import Sample, timed

SUMMARY = "LMCache's L2 adapters side by side: ours, fs_native and raw_block"
ENVIRONMENT = "lmcache"

# name -> (object bytes, objects in a task, tasks at a time)
SHAPES = {"512k": (512 << 10, 32, 4), "32m": (32 << 20, 2, 4)}
OURS, OURS_NONE, RAW = "dalsegno", "dalsegno, no sync", "raw_block"
# Through the page cache, which is its default, and around it.
FILES = ("fs_native", "fs_native, direct")
LOOKUP_KEYS, LOOKUP_BYTES, LOOKUP_CHUNKS = 100_000, 4096, 512


def line(name: str, folder: Path, object_bytes: int, total_bytes: int) -> dict[str, Any]:
    """Returns the argument of LMCache's `--l2-adapter`."""
    if name in FILES:
        direct = name != FILES[0]
        return {"type": "fs_native", "base_path": str(folder / name), "use_odirect": direct}
    if name == RAW:
        device = folder / "device"
        with device.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 2 * total_bytes + (512 << 20))
        return {
            "type": "raw_block",
            "device_path": str(device),
            "slot_bytes": object_bytes + 4096,
            "io_engine": "io_uring",
        }
    durability = "batch" if name == OURS else "none"
    store = {"durability": durability, "segment": "128MiB"}
    given = {"capacity": max(3 * total_bytes, 2 << 30), "store": store, "weights_fingerprint": "w"}
    return {
        "type": "plugin",
        "module_path": "dalsegno.integrations.lmcache",
        "class_name": "DalsegnoL2Adapter",
        "adapter_params": {"path": str(folder / name.replace(", ", "-")), **given},
    }


def hashes(word: str, count: int) -> list[bytes]:
    """Returns chunk hashes of 32 bytes, as LMCache's are."""
    return [hashlib.sha256(f"{word} {number}".encode()).digest() for number in range(count)]


class Bench:
    """The contenders, and what was measured of them."""

    def __init__(self, folder: Path, rounds: int) -> None:
        """Measures nothing yet."""
        from dalsegno_bench.lmcache import measured

        self._lib, self._folder, self._rounds = measured, folder, rounds
        self.samples: dict[tuple[str, str], list[Sample]] = defaultdict(list)
        self.lookups: dict[str, list[float]] = defaultdict(list)

    def _open(self, names: list[str], object_bytes: int, total_bytes: int) -> list[Any]:
        """Makes the adapters of a measure, in a folder that was emptied."""
        shutil.rmtree(self._folder, ignore_errors=True)
        made = []
        for name in names:
            files = self._folder / name if name in FILES else None
            (files or self._folder).mkdir(parents=True, exist_ok=True)
            given = line(name, self._folder, object_bytes, total_bytes)
            made.append(self._lib.Measured(name, given, files))
        return made

    def transfers(self, shape: str) -> None:
        """Puts and gets objects of one size."""
        object_bytes, task, tasks = SHAPES[shape]
        count = task * tasks
        source = self._lib.objects(count, object_bytes)
        target = self._lib.objects(count, object_bytes)
        moved = count * object_bytes
        contenders = self._open([OURS, OURS_NONE, *FILES, RAW], object_bytes, moved)

        def cut(keys: list[Any], memory: list[Any]) -> list[tuple[list[Any], list[Any]]]:
            places = range(0, count, task)
            return [(keys[at : at + task], memory[at : at + task]) for at in places]

        try:
            for number in range(-1, self._rounds):
                for one in random.sample(contenders, len(contenders)):
                    keys = self._lib.chunk_keys(hashes(f"{one.name} {number}", count))
                    self._put(one, shape, cut(keys, source), moved, warm=number < 0)
                    for memory in target:
                        memory.raw_data.zero_()
                    one.forget_pages()
                    batches = cut(keys, target)
                    sample = timed(moved, self._getting(one, batches, count))
                    if number >= 0:
                        self.samples[one.name, f"get {shape}"].append(sample)
                    self._compare(one.name, source, target)
                    one.drop(keys)
        finally:
            for one in contenders:
                one.close()

    def _put(self, one: Any, shape: str, batches: Any, moved: int, *, warm: bool) -> None:
        """Puts, as it is and, for files, with what makes it durable."""
        put = timed(moved, lambda: one.put(batches))
        sync = timed(moved, one.sync)
        if warm:
            return
        if one.name != OURS:
            self.samples[one.name, f"put {shape}"].append(put)
        if one.name in FILES:
            seconds = 1 / put.gb_per_s + 1 / sync.gb_per_s
            put = Sample(1 / seconds, put.cpu_s_per_gb + sync.cpu_s_per_gb)
        if one.name in (OURS, *FILES):
            self.samples[one.name, f"durable put {shape}"].append(put)

    @staticmethod
    def _getting(one: Any, batches: Any, count: int) -> Callable[[], None]:
        """Returns what loads batches and counts what came."""

        def get() -> None:
            came = one.get(batches)
            if came != count:
                raise RuntimeError(f"{one.name} loaded {came} of {count} objects")

        return get

    @staticmethod
    def _compare(name: str, source: list[Any], target: list[Any]) -> None:
        """Checks that what was loaded is what was put.

        Raises:
            RuntimeError: It is not.
        """
        for put, got in zip(source, target, strict=True):
            if not put.raw_data.equal(got.raw_data):
                raise RuntimeError(f"{name} loaded other bytes than were put")

    def look_ups(self) -> None:
        """Looks up chunks among many."""
        contenders = self._open([OURS, FILES[0], RAW], LOOKUP_BYTES, LOOKUP_KEYS * 3 * LOOKUP_BYTES)
        names = hashes("look-up", LOOKUP_KEYS)
        task = 1000
        source = self._lib.objects(task, LOOKUP_BYTES)
        try:
            for one in contenders:
                for at in range(0, LOOKUP_KEYS, task):
                    one.put([(self._lib.chunk_keys(names[at : at + task]), source)])
            for _ in range(20 * self._rounds):
                at = random.randrange(LOOKUP_KEYS - LOOKUP_CHUNKS)  # noqa: S311 - no secret
                for one in random.sample(contenders, len(contenders)):
                    keys = self._lib.chunk_keys(names[at : at + LOOKUP_CHUNKS])
                    began = time.perf_counter()
                    found = one.look_up(keys)
                    self.lookups[one.name].append(time.perf_counter() - began)
                    if found != LOOKUP_CHUNKS:
                        raise RuntimeError(f"{one.name} found {found} of {LOOKUP_CHUNKS} chunks")
        finally:
            for one in contenders:
                one.close()

    def speed(self, name: str, measure: str) -> float:
        """Median GB/s."""
        return statistics.median(one.gb_per_s for one in self.samples[name, measure])

    def cpu(self, name: str, measure: str) -> float:
        """Median CPU seconds per GB."""
        return statistics.median(one.cpu_s_per_gb for one in self.samples[name, measure])


def figures(bench: Bench) -> dict[str, Any]:
    """Returns every number under a name."""
    found: dict[str, Any] = {
        "lookup512_ms": 1000 * statistics.median(bench.lookups[OURS]),
        "lookup512_vs_fs_native": statistics.median(bench.lookups[FILES[0]])
        / statistics.median(bench.lookups[OURS]),
        "cpu_s_per_gb": max(
            bench.cpu(OURS, f"{what} {shape}")
            for what in ("durable put", "get")
            for shape in SHAPES
        ),
    }
    for shape in SHAPES:
        best = max(bench.speed(name, f"get {shape}") for name in (*FILES, RAW))
        found[f"coldget{shape}_vs_best"] = bench.speed(OURS, f"get {shape}") / best
        for name, measure, ours in (
            ("put", "durable put", OURS),
            ("unsynced_put", "put", OURS_NONE),
        ):
            speed = bench.speed(ours, f"{measure} {shape}")
            for files, suffix in zip(FILES, ("", "_direct"), strict=True):
                theirs = bench.speed(files, f"{measure} {shape}")
                found[f"{name}{shape}_vs_fs_native{suffix}"] = speed / theirs
    found["gb_per_s"] = {
        f"{name}: {measure}": round(bench.speed(name, measure), 3)
        for name, measure in bench.samples
    }
    found["cpu"] = {
        f"{name}: {measure}": round(bench.cpu(name, measure), 3) for name, measure in bench.samples
    }
    found["lookup_ms"] = {
        name: round(1000 * statistics.median(values), 3) for name, values in bench.lookups.items()
    }
    found["load"] = [round(one, 2) for one in os.getloadavg()]
    return {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in found.items()
    }


def show(found: dict[str, Any]) -> None:
    """Prints the numbers for people."""
    print(f"\n{'GB/s (median)':42} {'GB/s':>8} {'CPU s/GB':>9}")
    for name, value in found["gb_per_s"].items():
        print(f"{name:42} {value:8.2f} {found['cpu'][name]:9.3f}")
    for name, value in found["lookup_ms"].items():
        print(f"{name + ': lookup of 512 among 100,000, ms':42} {value:8.3f}")
    print("load of the machine at the end, 1, 5 and 15 minutes:", *found["load"])


def main(argv: list[str]) -> int:
    """Runs the bench; returns the exit code."""
    parser = argparse.ArgumentParser(prog="dalsegno bench lmcache", description=SUMMARY)
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each measure (9)")
    parser.add_argument("--directory", type=local_path, help="where to write; a temporary folder")
    options = parser.parse_args(argv)
    os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
    folder = Path(tempfile.mkdtemp(prefix="dalsegno-bench-", dir=options.directory))
    print(f"load of the machine at the start: {os.getloadavg()[0]:.2f}; {os.cpu_count()} cores")
    try:
        bench = Bench(folder / "work", options.rounds)
        for shape in SHAPES:
            bench.transfers(shape)
        bench.look_ups()
    except ImportError as error:
        print(f"this bench needs LMCache: make bench NAME=lmcache ({error})", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = figures(bench)
    show(found)
    print(json.dumps(found))
    return 0
