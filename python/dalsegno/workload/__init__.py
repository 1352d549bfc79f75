"""Workloads: which prompts come, in which order, and what they share. No store, no clock."""

from dalsegno.workload.lru import Lru
from dalsegno.workload.stages import EXPECTED, REUSES, Dynamic, Oracle, Prompt, Reuse
from dalsegno.workload.traces import Trace, parse

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
]
