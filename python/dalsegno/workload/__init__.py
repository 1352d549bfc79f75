"""Workloads: which prompts come, in which order, and what they share. No store, no clock."""

from dalsegno.workload.stages import EXPECTED, REUSES, Dynamic, Oracle, Prompt, Reuse

__all__ = ["EXPECTED", "REUSES", "Dynamic", "Oracle", "Prompt", "Reuse"]
