"""Short measurements at the start of an engine, for costs that nobody has measured yet.

1. No call waits longer than a second, whatever the disk does.
2. What cannot be measured here is None, never an error.
3. Nothing is left behind: the file of the disk has no name.
"""

from __future__ import annotations

import mmap
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dalsegno import profiles
from dalsegno.integrations.common.settings import StoreSettings
from dalsegno.paths import SOCKET_PREFIX

# A disk is measured with so many bytes, in pieces that are read some at a time, as the store does.
DISK_BYTES, PIECE_BYTES, READERS = 16 << 20, 1 << 20, 4
# What a disk reads to show its latency, and how often.
SMALL_BYTES, SMALL_READS = 4096, 8
# Seconds after which a slow disk writes no more, and those after which it reads no more.
MOST_WRITE_S, MOST_DISK_S = 0.3, 0.4
# Most seconds for all of that.
MOST_WAIT_S = 0.9
MEMORY_BYTES, MEMORY_LATENCY_S = 32 << 20, 1e-4
# Rows, columns and inner size of the products that show how fast a device computes. A larger one is
# computed if the one before took less than `SHORT_S`: then mostly its start was measured.
PRODUCTS = ((128, 512, 512), (512, 1024, 1024), (4096, 4096, 4096))
SHORT_S = 1e-3


def profile(
    settings: StoreSettings,
    kind: Mapping[str, str],
    *,
    token_bytes: float,
    is_cpu: bool,
    policies: Sequence[str],
    operations: Callable[[], float | None],
) -> profiles.Profile:
    """Returns what is known of an engine before it has measured anything.

    That is what an earlier one of its kind has measured, or else what its device and disk do in
    less than a second: it keeps a request from waiting for a slow disk better than to load
    whatever hits.

    Args:
        settings: The policy.
        kind: What engines of one kind have in common; with ``layers``, and ``store``, the directory
            of the store or the socket of its server.
        token_bytes: Bytes of a token in the KV cache of one worker.
        is_cpu: Whether the CPU computes.
        policies: Values of `load_policy` with which the costs are used.
        operations: Measures how many operations per second the device computes, if it can.
    """
    folder = profiles.folder() if settings.keep_profile else None
    is_known = bool(profiles.known_of(kind, profiles.path_of(kind, folder)))
    is_probed = settings.load_policy in policies and not is_known
    prior = profiles.ComputePrior.of_shape(
        int(kind["layers"]),
        token_bytes,
        is_cpu=is_cpu,
        operations_per_s=operations() if is_probed else None,
    )
    measured = tiers(kind["store"]) if is_probed else {}
    return profiles.Profile(kind, prior, folder, measured)


def tiers(place: str) -> dict[str, tuple[float, float]]:
    """Returns the latency in s and the bytes per second of tiers, as far as they can be measured.

    Args:
        place: Directory of a store. Behind a socket is a server, whose disk is not known here.
    """
    measured = {"dram": (MEMORY_LATENCY_S, memory())}
    if not place.startswith(SOCKET_PREFIX):
        # In a thread, which a disk that hangs would block.
        found = list[tuple[float, float] | None]()
        reads = threading.Thread(
            target=lambda: found.append(disk(Path(place))), name="dalsegno-probe", daemon=True
        )
        reads.start()
        reads.join(MOST_WAIT_S)
        if found and found[0] is not None:
            measured["log"] = found[0]
    return measured


def disk(folder: Path) -> tuple[float, float] | None:
    """Returns the latency of the disk below a folder in s, and its bytes per second.

    Args:
        folder: It must exist. The disk needs 16 MiB of space for a moment.
    """
    try:
        file, size = _filled(folder)
    except OSError:
        return None
    try:
        return _latency_s(file, size), _bytes_per_s(file, size)
    except OSError:
        return None
    finally:
        os.close(file)


def _filled(folder: Path) -> tuple[int, int]:
    """Returns a file without a name, and of how many random bytes; no page cache is used."""
    flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
    try:
        file = os.open(folder, flags | os.O_DIRECT, 0o600)
    except OSError:
        # Some file systems, such as tmpfs, have no other way than the page cache.
        file = os.open(folder, flags, 0o600)
    try:
        return file, _fill(file)
    except BaseException:
        os.close(file)
        raise


def _fill(file: int) -> int:
    """Writes as many pieces as there is time for; returns their bytes."""
    started, size = time.perf_counter(), 0
    # O_DIRECT needs aligned memory.
    with mmap.mmap(-1, PIECE_BYTES) as memory:
        memory[:] = os.urandom(PIECE_BYTES)
        while size < DISK_BYTES and (not size or time.perf_counter() - started < MOST_WRITE_S):
            if os.pwrite(file, memory, size) != PIECE_BYTES:
                raise OSError("the disk is full")
            size += PIECE_BYTES
    os.fsync(file)
    return size


def _read(file: int, at: int, size: int) -> None:
    with mmap.mmap(-1, size) as memory:
        os.preadv(file, [memory], at)


def _latency_s(file: int, size: int) -> float:
    times = []
    for number in range(SMALL_READS):
        started = time.perf_counter()
        _read(file, number * PIECE_BYTES % size, SMALL_BYTES)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _bytes_per_s(file: int, size: int) -> float:
    started = time.perf_counter()

    def read(at: int) -> int:
        if time.perf_counter() - started > MOST_DISK_S:
            return 0
        _read(file, at, PIECE_BYTES)
        return PIECE_BYTES

    with ThreadPoolExecutor(READERS, "dalsegno-probe") as readers:
        read_bytes = sum(readers.map(read, range(0, size, PIECE_BYTES)))
    if not read_bytes:
        raise OSError("nothing was read in time")
    return read_bytes / (time.perf_counter() - started)


def memory() -> float:
    """Returns how many bytes per second one thread copies."""
    source, target = bytearray(MEMORY_BYTES), bytearray(MEMORY_BYTES)
    # The first copy provides the memory.
    target[:] = source
    started = time.perf_counter()
    target[:] = source
    return MEMORY_BYTES / (time.perf_counter() - started)


def operations_per_s(dtype: Any, device: Any = None) -> float | None:
    """Returns how many operations per second a device computes; two for each multiplication.

    Args:
        dtype: PyTorch's, of the model.
        device: PyTorch's GPU; None for the CPU.
    """
    rate = None
    for rows, columns, inner in PRODUCTS:
        try:
            seconds = _product_s(rows, columns, inner, dtype, device)
        except (RuntimeError, TypeError):
            return rate
        rate = 2.0 * rows * columns * inner / seconds
        if seconds > SHORT_S:
            break
    return rate


def _product_s(rows: int, columns: int, inner: int, dtype: Any, device: Any) -> float:
    import torch

    place = "cpu" if device is None else device
    one = torch.ones(rows, inner, dtype=dtype, device=place)
    other = torch.ones(inner, columns, dtype=dtype, device=place)
    seconds = 0.0
    # The first product prepares kernels.
    for _ in range(2):
        started = time.perf_counter()
        torch.mm(one, other)
        if device is not None:
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - started
    return max(seconds, 1e-9)
