"""A `DalsegnoTier` driven as vLLM's scheduler drives it, for `dalsegno bench vllm-tier`."""

from __future__ import annotations

import hashlib
import mmap
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from vllm.v1.kv_offload.base import (
    LookupResult,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.tiering.base import TransferJob

from dalsegno.integrations.vllm.tier import DalsegnoTier
from dalsegno_bench.vllm.rig import offloading_config

__all__ = ["Driver", "prompts"]

ROWS = 1024
BLOCK_TOKENS = 128
# Blocks of a prompt, and how many of them it shares with an earlier one on average.
PROMPT_BLOCKS = 96
SHARED_BLOCKS = 64
# Prompts whose beginnings are drawn from.
FAMILIES = 24
STEP_S = 0.0002


class Driver:
    """A tier, and as much of vLLM's scheduler as calls it."""

    def __init__(self, path: Path, block_bytes: int, capacity_bytes: int, *, events: bool) -> None:
        """Opens a tier over an empty store."""
        self._memory = mmap.mmap(-1, ROWS * block_bytes)
        self._view = memoryview(self._memory).cast("B", (ROWS, block_bytes))
        extra = {"cpu_bytes_to_use": 1, "self_describing_kv_events": True}
        config = offloading_config(
            block_bytes, BLOCK_TOKENS, enable_kv_cache_events=events, extra_config=extra
        )
        settings: dict[str, Any] = {"enable_kv_events": True} if events else {}
        self.tier = DalsegnoTier(
            SimpleNamespace(config=config),
            self._view,
            "DalsegnoTier",
            path=str(path),
            capacity=capacity_bytes,
            identity={"source": "bench"},
            **settings,
        )
        self.calls: dict[str, list[int]] = defaultdict(list)
        self._step_ns = 0
        self._jobs = 0

    def _timed(self, name: str, *arguments: Any) -> Any:
        """Calls the tier and notes how long it took."""
        call: Callable[..., Any] = getattr(self.tier, name)
        started = time.perf_counter_ns()
        result = call(*arguments)
        if name in ("get_finished_jobs", "take_events"):
            result = list(result)
        spent = time.perf_counter_ns() - started
        self.calls[name].append(spent)
        self._step_ns += spent
        return result

    def _end_step(self, *scheduled: str) -> list[Any]:
        """What vLLM calls in every step; returns the jobs that ended."""
        ended: list[Any] = self._timed("get_finished_jobs")
        self._timed("on_schedule_end", ScheduleEndContext(scheduled, ()))
        self._timed("has_pending_work")
        self._timed("take_events")
        self._timed("get_stats")
        self.calls["step"].append(self._step_ns)
        self._step_ns = 0
        time.sleep(STEP_S)
        return ended

    def _transfer(self, context: Any, keys: Sequence[bytes], *, load: bool) -> None:
        """Submits a job, and steps until it has ended."""
        if not keys:
            return
        self._jobs += 1
        rows = np.arange(len(keys), dtype=np.int32)
        job = TransferJob(self._jobs, list(keys), rows, load, context)
        self._timed("submit_load" if load else "submit_store", job)
        while not any(done.job_id == job.job_id for done in self._end_step()):
            pass

    def serve(self, name: str, keys: Sequence[bytes]) -> int:
        """Serves a request; returns how many of its blocks were loaded."""
        context = ReqContext(name)
        for number, key in enumerate(keys, 1):
            context.set_offload_key_position(key, number * BLOCK_TOKENS)
        self._timed("on_new_request", context)
        hits = 0
        for key in keys:
            if self._timed("lookup", key, context) is not LookupResult.HIT:
                break
            hits += 1
        self._transfer(context, keys[:hits], load=True)
        self._end_step(name)
        self._transfer(context, keys[hits:], load=False)
        self._timed("on_request_finished", context)
        self._end_step()
        return hits

    def close(self) -> None:
        """Closes the store and frees the memory."""
        self.tier.shutdown()
        self._view.release()
        self._memory.close()


def prompts(seed: int) -> Callable[[], list[bytes]]:
    """Returns what makes prompts, each the keys of its blocks; equal seeds make equal prompts."""
    chance = random.Random(seed)  # noqa: S311 - a workload
    numbers = iter(range(1 << 30))

    def keys_of(text: str, first: int, count: int) -> list[bytes]:
        hashes = [
            hashlib.sha256(f"{seed} {text} {number}".encode()).digest()
            for number in range(first, first + count)
        ]
        return [make_offload_key(one, 0) for one in hashes]

    def prompt() -> list[bytes]:
        shared = chance.randint(0, 2 * SHARED_BLOCKS) % PROMPT_BLOCKS
        family = keys_of(f"family {chance.randrange(FAMILIES)}", 0, shared)
        return family + keys_of(f"own {next(numbers)}", shared, PROMPT_BLOCKS - shared)

    return prompt
