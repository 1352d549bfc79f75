"""A `DalsegnoTier` without an engine: a primary tier in memory, requests, and vLLM's polling."""

from __future__ import annotations

import hashlib
import mmap
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingConfig,
    OffloadingModelConfig,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.base import TransferJob

from dalsegno.integrations.vllm import compat
from dalsegno.integrations.vllm.tier import DalsegnoTier
from dalsegno_bench.vllm.rig import group_config, offloading_config

ROW_BYTES = 8192
ROWS = 32
BLOCK_TOKENS = 128
HIT, MISS = LookupResult.HIT, LookupResult.MISS
IDENTITY = {"source": "test", "weights": "w"}
HAS_POSITIONS = hasattr(ReqContext, "set_offload_key_position")
needs_positions = pytest.mark.skipif(
    not HAS_POSITIONS, reason="vLLM before 0.31 does not say where the keys of a request are"
)


class Primary:
    """The memory of a primary tier; `free` fails while anything refers to it."""

    def __init__(self, rows: int, row_bytes: int = ROW_BYTES) -> None:
        self.memory = mmap.mmap(-1, rows * row_bytes)
        self.array = np.frombuffer(self.memory, dtype=np.int8).reshape(rows, row_bytes)
        self.view: memoryview = self.array.data

    def fill(self, of: Sequence[bytes]) -> None:
        """Writes into the rows 0, 1, 2 ... what belongs to these keys."""
        for row, key in enumerate(of):
            self.array[row] = np.frombuffer(content(key), dtype=np.int8)

    def holds(self, rows: Sequence[int], of: Sequence[bytes]) -> bool:
        """Whether each row holds what belongs to its key."""
        return all(
            self.array[row].tobytes() == content(key) for row, key in zip(rows, of, strict=True)
        )

    def free(self) -> None:
        """Gives the memory back, as vLLM does after the tiers were shut down."""
        self.view.release()
        del self.array, self.view
        self.memory.close()


def content(key: bytes) -> bytes:
    """The bytes of a key's block."""
    return (hashlib.sha256(key).digest() * (ROW_BYTES // 32))[:ROW_BYTES]


def keys(count: int, prompt: str = "a", group: int = 0, first: int = 0) -> list[Any]:
    """The keys of a prompt's blocks."""
    hashes = [hashlib.sha256(f"{prompt}{n}".encode()).digest() for n in range(first, first + count)]
    return [make_offload_key(one, group) for one in hashes]


def request_context(
    name: str, *groups: Sequence[bytes], block_tokens: int = BLOCK_TOKENS
) -> ReqContext:
    """A request, and where its keys end in its prompt, as vLLM notes it since 0.31."""
    context = ReqContext(name)
    if not HAS_POSITIONS:
        return context
    for group in groups:
        for number, key in enumerate(group, 1):
            context.set_offload_key_position(key, number * block_tokens)
    return context


def groups_of(count: int, layers: int = 1, block_tokens: int = BLOCK_TOKENS) -> tuple[Any, ...]:
    """vLLM's KV-cache groups, each with so many layers of its own."""
    names = [f"layer{number}" for number in range(count * layers)]
    return tuple(
        group_config(block_tokens, tuple(names[group * layers :][:layers]), group)
        for group in range(count)
    )


def config(
    groups: int = 1, model: str = "m", dtype: str = "float32", **changes: Any
) -> OffloadingConfig:
    """vLLM's configuration of offloading; `changes` are fields of it."""
    values = {
        "groups": groups_of(groups),
        "extra_config": {"cpu_bytes_to_use": 1 << 20},
        "model": OffloadingModelConfig(model, dtype),
    }
    return offloading_config(ROW_BYTES, BLOCK_TOKENS, **{**values, **changes})


def region(name: str, rows: int, rank: int | None, row_bytes: int, ranks: int = 1) -> Any:
    """The shared memory of a primary tier: each row has `row_bytes` of every rank."""
    spec = SimpleNamespace(
        config=SimpleNamespace(engine_id=name),
        num_chunks=rows,
        num_blocks=rows,
        kv_bytes_per_chunk=row_bytes * ranks,
        cpu_page_size_per_worker=row_bytes,
    )
    return SharedOffloadRegion(**compat.region_arguments(SharedOffloadRegion, spec, rank))


def mapped(of: Any) -> Any:
    """Returns the bytes of a region as a tensor; vLLM 0.28 has another name for it."""
    return of.base_tensor if hasattr(of, "base_tensor") else of._base


class Spec:
    """As much of vLLM's spec as a tier reads."""

    def __init__(self, of: OffloadingConfig) -> None:
        self.config = of


def open_tier(
    path: Path, view: memoryview, of: OffloadingConfig | None = None, **settings: Any
) -> DalsegnoTier:
    """Opens a tier over the store in a directory, with `view` as the primary tier's memory."""
    given = {"identity": IDENTITY, "capacity": "64MiB", **settings}
    return DalsegnoTier(Spec(of or config()), view, "DalsegnoTier", path=str(path), **given)


class Request:
    """What vLLM's scheduler asks of a tier for one request.

    Attributes:
        keys: Those of all its groups, in the order of the prompt.
        context: The request as vLLM hands it over.
    """

    def __init__(
        self,
        tier: DalsegnoTier,
        name: str,
        *groups: Sequence[bytes],
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        self._tier = tier
        self.keys = [key for group in groups for key in group]
        self.context = request_context(name, *groups, block_tokens=block_tokens)

    def begin(self) -> None:
        """Announces it, so that the tier remembers it from its first job on."""
        self._tier.on_new_request(self.context)

    def end(self) -> None:
        """Ends the request; its jobs may still be in flight."""
        self._tier.on_request_finished(self.context)

    def lookup(self, key: bytes) -> LookupResult:
        """Looks up one block."""
        return self._tier.lookup(key, self.context)

    def lookup_all(self) -> list[LookupResult]:
        """Looks up every block of the prompt."""
        return [self.lookup(key) for key in self.keys]

    def store(
        self, job_id: int, of: Sequence[bytes] | None = None, rows: Sequence[int] | None = None
    ) -> None:
        """Submits a store: by default of the whole prompt, from the rows 0, 1, 2 ..."""
        self._tier.submit_store(self._job(job_id, of, rows, load=False))

    def load(
        self, job_id: int, of: Sequence[bytes] | None = None, rows: Sequence[int] | None = None
    ) -> None:
        """Submits a load: by default of the whole prompt, into the rows 0, 1, 2 ..."""
        self._tier.submit_load(self._job(job_id, of, rows, load=True))

    def _job(
        self, job_id: int, of: Sequence[bytes] | None, rows: Sequence[int] | None, *, load: bool
    ) -> TransferJob:
        moved = self.keys if of is None else list(of)
        places = np.array(range(len(moved)) if rows is None else rows, dtype=np.int32)
        return TransferJob(job_id, moved, places, load, self.context)

    def keep(self, primary: Primary, of: Sequence[bytes] | None = None) -> None:
        """Stores blocks with their content, and waits until they are stored."""
        primary.fill(self.keys if of is None else of)
        self.store(1000, of)
        assert finished(self._tier)[0].success


def finished(tier: DalsegnoTier, count: int = 1, timeout_s: float = 60.0) -> list[Any]:
    """Polls the tier, as vLLM does each step, until so many jobs were reported."""
    results: list[Any] = []
    end = time.monotonic() + timeout_s
    while len(results) < count and time.monotonic() < end:
        results += tier.get_finished_jobs()
        time.sleep(0.001)
    assert len(results) == count
    return results


def counted(stats: Any) -> dict[str, float]:
    """Counters and gauges of vLLM's record, by name and labels."""
    prefix = "vllm:kv_offload_dalsegno_"
    return {
        " ".join([name.removeprefix(prefix), *labels]): value
        for name, values in (stats.data["data"] if stats else {}).items()
        for labels, value in values.items()
    }
