"""vLLM's `fs` and `obj` tiers for `dalsegno faultbench`, driven as vLLM's scheduler drives them.

A lookup is answered at a later step; jobs are submitted and polled. Blocks are written from, and
read into, rows of a primary tier. A get is a job for each block: a job of several blocks ends at
its first bad block, so the blocks behind it would count as lost.
"""

from __future__ import annotations

import itertools
import mmap
import os
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
from vllm.v1.kv_offload.tiering.base import (
    ScheduleEndContext,
    SecondaryTierManager,
    TransferJob,
)
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager
from vllm.v1.kv_offload.tiering.obj.manager import ObjectStoreSecondaryTierManager

from dalsegno_bench.faultbench.adapter import Adapter
from dalsegno_bench.vllm.rig import offloading_config

__all__ = ["FileTier", "ObjectTier"]

# What a load must write over: bytes that belong to no block.
POISON = 0x5A
POLL_S = 0.001
TOKENS = 16


class _Tier(Adapter):
    """A secondary tier, which has no bound, over a primary tier of `rows` rows."""

    bounded: ClassVar[bool] = False
    rows: ClassVar[int] = 2048

    def __init__(self, directory: Path, *, capacity_bytes: int, block_bytes: int) -> None:
        del capacity_bytes
        memory = mmap.mmap(-1, self.rows * block_bytes)
        self._rows = np.frombuffer(memory, dtype=np.int8).reshape(self.rows, block_bytes)
        config = offloading_config(block_bytes, TOKENS)
        spec: Any = SimpleNamespace(
            config=config, blocks_per_chunk=config.cache.blocks_per_chunk, kv_events_config=None
        )
        self._tier = self._opened(spec, directory)
        self._numbers = itertools.count()

    @abstractmethod
    def _opened(self, spec: Any, directory: Path) -> SecondaryTierManager:
        """Returns the tier, as vLLM's factory makes it."""

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> list[bool]:
        """See :class:`Adapter`."""
        return self.put_all([keys], [blocks])[0]

    def put_all(
        self, keys: Sequence[Sequence[bytes]], blocks: Sequence[Sequence[bytes]]
    ) -> list[list[bool]]:
        """See :class:`Adapter`; one job for each batch."""
        free = itertools.count()
        jobs = {}
        for names, part in zip(keys, blocks, strict=True):
            rows = [next(free) for _ in part]
            for row, block in zip(rows, part, strict=True):
                self._rows[row] = np.frombuffer(block, dtype=np.int8)
            jobs[self._submit(names, rows, load=False)] = len(names)
        done = self._finished(jobs)
        return [[done[job]] * count for job, count in jobs.items()]

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See :class:`Adapter`."""
        rows = range(len(keys))
        self._rows[: len(keys)] = POISON
        jobs = [self._submit([key], [row], load=True) for key, row in zip(keys, rows, strict=True)]
        done = self._finished(jobs)
        return [
            self._rows[row].tobytes() if done[job] else None
            for job, row in zip(jobs, rows, strict=True)
        ]

    def get_all(self, keys: Sequence[Sequence[bytes]]) -> list[list[bytes | None]]:
        """See :class:`Adapter`."""
        got = iter(self.get([key for part in keys for key in part]))
        return [[next(got) for _ in part] for part in keys]

    def _submit(self, keys: Sequence[bytes], rows: Sequence[int], *, load: bool) -> int:
        job = next(self._numbers)
        names = [make_offload_key(key, 0) for key in keys]
        places = np.array(rows, dtype=np.int32)
        submit = self._tier.submit_load if load else self._tier.submit_store
        submit(TransferJob(job, names, places, load, ReqContext(str(job))))
        return job

    def _finished(self, jobs: Iterable[int]) -> dict[int, bool]:
        """Polls, as vLLM does each step, until all jobs are reported."""
        wanted, done = set(jobs), dict[int, bool]()
        while wanted - done.keys():
            for result in self._tier.get_finished_jobs():
                done[result.job_id] = result.success
            time.sleep(POLL_S)
        return done

    def exists(self, keys: Sequence[bytes]) -> list[bool]:
        """See :class:`Adapter`; asks again each step until there is an answer."""
        request = ReqContext(f"lookup {next(self._numbers)}")
        names = [make_offload_key(key, 0) for key in keys]
        self._tier.on_new_request(request)
        while True:
            found = [self._tier.lookup(name, request) for name in names]
            if LookupResult.RETRY not in found:
                break
            self._tier.on_schedule_end(ScheduleEndContext((), ()))
            time.sleep(POLL_S)
        self._tier.on_request_finished(request)
        return [one is LookupResult.HIT for one in found]

    def close(self) -> None:
        """See :class:`Adapter`."""
        self._tier.drain_jobs()
        self._tier.shutdown()


class FileTier(_Tier):
    """The tier `fs` with its defaults: 16 threads for each direction."""

    settings: ClassVar[str] = "defaults, which set no bound"
    temporary: ClassVar[tuple[str, ...]] = ("*.tmp",)

    def _opened(self, spec: Any, directory: Path) -> SecondaryTierManager:
        return FileSystemTierManager(spec, self._rows.data, "fs", root_dir=str(directory))


class ObjectTier(_Tier):
    """The tier `obj` in a bucket whose objects are the files of `directory`.

    The environment has the address of the server and the credentials. With NIXL 1.5 the tier raises
    where a transfer ends unless NIXL's telemetry is on.
    """

    settings: ClassVar[str] = "defaults, which set no bound; NIXL_TELEMETRY_ENABLE=1"

    def _opened(self, spec: Any, directory: Path) -> SecondaryTierManager:
        os.environ["NIXL_TELEMETRY_ENABLE"] = "1"
        bucket = {
            "bucket": directory.name,
            "endpoint_override": os.environ["AWS_ENDPOINT_URL"],
            "region": os.environ["AWS_REGION"],
        }
        return ObjectStoreSecondaryTierManager(spec, self._rows.data, "obj", bucket)
