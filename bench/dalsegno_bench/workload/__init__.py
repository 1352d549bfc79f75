"""Workloads: which prompts come, in which order, and what they share. No store, no clock."""

from dalsegno_bench.workload.lru import Lru
from dalsegno_bench.workload.stages import EXPECTED, REUSES, Dynamic, Oracle, Prompt, Reuse
from dalsegno_bench.workload.traces import Trace, parse, read_trace

__all__ = [
    "EXPECTED",
    "REUSES",
    "Dynamic",
    "Lru",
    "Oracle",
    "Prompt",
    "Reuse",
    "Trace",
    "parse",
    "read_trace",
]
