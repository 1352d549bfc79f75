"""The wall clock jumps, forward and back, while a store works: neither blocks nor waits care."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.stores import chain

import dalsegno
from dalsegno_bench.machine.faulty import Faulty

pytestmark = pytest.mark.timeout(600)

# Stands before libc's own functions in the child; the clock of the machine stays as it is. Whenever
# a clock is read it has jumped: the wall clock by hours and decades, forward and back.
SHIM = r"""
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { NEITHER, WALL, MONOTONIC };
static const long YEAR = 365 * 24 * 3600, HOUR = 3600;
static _Atomic int jumping;
static _Atomic long reads;

void let_jump(int clock) { jumping = clock; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    const long steps[] = {HOUR, -HOUR, 30 * YEAR, -1, -40 * YEAR, 0};
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (failed) return (int)failed;
    if (jumping == WALL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += steps[reads++ % 6];
    else if (jumping == MONOTONIC && (clock == CLOCK_MONOTONIC || clock == CLOCK_BOOTTIME))
        now->tv_sec += reads++ * HOUR;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (out) *out = exact.tv_sec;
    return exact.tv_sec;
}
"""
CLOCKS = {"wall": 1, "monotonic": 2}
BLOCK = 64 << 10
LIVES, ROUNDS = 3, 20
BLOCKS = LIVES * ROUNDS * 4
# Far more than a call takes, less than a step.
TIMEOUT_S = 600.0
# Bounds what hangs; nothing here comes near it.
LIMIT_S = 120.0


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clock")
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(SHIM)
    command = ["cc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library


@contextmanager
def started(shim: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Starts this file as a program behind the shim; it does not outlive a test that fails."""
    command = [sys.executable, "-m", "tests.unit.api.test_clock_steps", *map(str, arguments)]
    pipe, environment = subprocess.PIPE, {**os.environ, "LD_PRELOAD": str(shim)}
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
    ) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize("index", ["memory", "lsm"])
def test_clock_steps_lose_no_block_and_no_call(shim: Path, tmp_path: Path, index: str) -> None:
    with started(shim, "work", tmp_path / "store", index, "wall") as child:
        out, err = child.communicate(timeout=LIMIT_S)
    assert child.returncode == 0, err
    assert json.loads(out) == {"stored": BLOCKS, "got": BLOCKS, "bad": 0}
    assert dalsegno.verify(str(tmp_path / "store"))["findings"] == []


def test_a_step_of_the_monotonic_clock_is_detected(shim: Path, tmp_path: Path) -> None:
    """The check of the check: the monotonic clocks, which never jump, are made to."""
    with started(shim, "work", tmp_path / "store", "memory", "monotonic") as child:
        _, err = child.communicate(timeout=LIMIT_S)
    assert child.returncode == 1
    assert "UnavailableError" in err
    assert "deadline passed before the device responded" in err


def test_a_wait_for_the_disk_ends_even_if_the_clock_jumps(shim: Path, disk: Faulty) -> None:
    with started(shim, "hang", disk.path / "store") as child:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline() or child.communicate()[1]) == "ready"
        disk.send("add all hang")
        # A process with a read under way ends no sooner than the read, even if it is killed.
        clearing = threading.Timer(LIMIT_S, disk.send, ["clear"])
        clearing.start()
        try:
            print("go", file=child.stdin, flush=True)
            result = json.loads(child.stdout.readline())
        finally:
            clearing.cancel()
            disk.send("clear")
    assert result["hits"] == 0, "the disk hung"
    assert 1.0 <= result["waited_s"] < LIMIT_S, "neither a step forward ended the wait nor the disk"


@contextmanager
def _jumping(clock: str) -> Iterator[None]:
    """Lets a clock of this process jump, which has the shim before libc."""
    library = ctypes.CDLL(None)
    library.let_jump(CLOCKS[clock])
    now = {"wall": time.time, "monotonic": time.monotonic}[clock]
    assert abs(now() - now()) > TIMEOUT_S, "the shim is in effect"
    yield
    library.let_jump(0)


def _open(path: str, index: str) -> dalsegno.Store:
    sizes = {"capacity": "64MiB", "segment": "1MiB", "staging": "16MiB", "dram": 0}
    return dalsegno.open(path, **sizes, index=index, durability="batch")


def _namespace(store: dalsegno.Store) -> dalsegno.Namespace:
    return store.namespace({"model": "m"}, layers=1, slice_bytes=BLOCK)


def _work(path: str, index: str, clock: str) -> None:
    """Puts, reopens the store and gets, three times, while a clock jumps."""
    blocks = [os.urandom(BLOCK) for _ in range(4)]
    result = {"stored": 0, "got": 0, "bad": 0}
    for life in range(LIVES):
        chains = [chain(4, f"{life} {turn}") for turn in range(ROUNDS)]
        with _jumping(clock), _open(path, index) as store:
            space = _namespace(store)
            for hashes in chains:
                result["stored"] += space.put_batch(hashes, blocks, timeout_s=TIMEOUT_S).stored
        with _jumping(clock), _open(path, index) as store:
            space = _namespace(store)
            for hashes in chains:
                out = [bytearray(BLOCK) for _ in blocks]
                hits = space.get_each(hashes, out, timeout_s=TIMEOUT_S)
                result["got"] += sum(hits)
                pairs = zip(hits, out, blocks, strict=True)
                result["bad"] += sum(hit and got != block for hit, got, block in pairs)
    _print(result)


def _hang(path: str) -> None:
    """Waits for a disk that hangs, at most a second."""
    store = _open(path, "memory")
    space, out = _namespace(store), [bytearray(BLOCK)]
    assert space.put_batch(chain(1), [os.urandom(BLOCK)]).stored == 1
    _print("ready")
    sys.stdin.readline()
    with _jumping("wall"):
        started = time.monotonic()
        hits = space.get_each(chain(1), out, timeout_s=1.0)
        waited_s = time.monotonic() - started
    _print({"hits": sum(hits), "waited_s": waited_s})
    # Closing the store would wait, too.
    os._exit(0)


def _print(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    task, *arguments = sys.argv[1:]
    if task == "work":
        _work(*arguments)
    else:
        _hang(*arguments)
