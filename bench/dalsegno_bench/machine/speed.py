"""Bandwidth, and CPU time per byte."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from dalsegno_bench.machine import kernel

__all__ = ["Sample", "cpu_s", "timed"]


@dataclass(frozen=True)
class Sample:
    """The result of one run.

    Attributes:
        gb_per_s: Gigabytes (1e9) a second.
        cpu_s_per_gb: CPU seconds, user and system, per gigabyte.
    """

    gb_per_s: float
    cpu_s_per_gb: float


def cpu_s() -> float:
    """CPU seconds of this process so far, user and system."""
    return sum(kernel.cpu_s())


def timed(moved_bytes: int, work: Callable[[], None]) -> Sample:
    """Runs ``work`` once, which moves so many bytes."""
    cpu, start = cpu_s(), time.perf_counter()
    work()
    seconds, gigabytes = time.perf_counter() - start, moved_bytes / 1e9
    return Sample(gigabytes / seconds, (cpu_s() - cpu) / gigabytes)
