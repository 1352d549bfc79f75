"""A `DalsegnoTier` without an engine: a primary tier in memory, requests, jobs, and a store whose
transfers end when the test says so."""

from __future__ import annotations

import hashlib
import mmap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.contract import reference_store
from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.base import TransferJob

from dalsegno.integrations.vllm.tier import DalsegnoTier

ROW_BYTES = 8192
ROWS = 32
BLOCK_TOKENS = 128
IDENTITY = {"source": "test", "weights": "w"}


class Primary:
    """The memory of a primary tier; `free` fails while anything refers to it."""

    def __init__(self, rows: int) -> None:
        self.memory = mmap.mmap(-1, rows * ROW_BYTES)
        self.array = np.frombuffer(self.memory, dtype=np.int8).reshape(rows, ROW_BYTES)
        self.view: memoryview = self.array.data

    def fill(self, row: int, key: bytes) -> None:
        """Writes into a row what belongs to a key."""
        self.array[row] = np.frombuffer(content(key), dtype=np.int8)

    def holds(self, row: int, key: bytes) -> bool:
        """Whether a row holds what belongs to a key."""
        return bytes(self.array[row].tobytes()) == content(key)

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


def request(name: str, *groups: Sequence[bytes]) -> ReqContext:
    """A request, and where its keys end in its prompt, as vLLM notes it since 0.31."""
    context = ReqContext(name)
    for group in groups:
        for number, key in enumerate(group, 1):
            context.set_offload_key_position(key, number * BLOCK_TOKENS)
    return context


def config(groups: int = 1, model: str = "m", **changes: Any) -> OffloadingConfig:
    """vLLM's configuration of offloading."""
    parallel = {
        "rank": 0,
        "world_size": 1,
        "tp_size": 1,
        "pp_size": 1,
        "pcp_size": 1,
        "dcp_size": 1,
        "data_parallel_index": 0,
        "data_parallel_size": 1,
        "data_parallel_rank_local": None,
        "is_parallelism_agnostic": False,
    }
    values: dict[str, Any] = {
        "groups": tuple(
            OffloadingGroupConfig(BLOCK_TOKENS, (f"layer{n}",), n) for n in range(groups)
        ),
        "worker_kv_bytes_per_block": ROW_BYTES,
        "enable_kv_cache_events": False,
        "extra_config": {"cpu_bytes_to_use": 1 << 20},
        "engine_id": "test",
        "model": OffloadingModelConfig(model, "float32"),
        "cache": OffloadingCacheConfig(BLOCK_TOKENS, 1),
        "parallel": OffloadingParallelConfig(**parallel),
        "kv_cache_layout": "LBHNC",
    }
    return OffloadingConfig(**{**values, **changes})


class Spec:
    """As much of vLLM's spec as a tier reads."""

    def __init__(self, of: OffloadingConfig) -> None:
        self.config = of


def make_tier(
    path: Path, primary: Primary, of: OffloadingConfig | None = None, **settings: Any
) -> DalsegnoTier:
    """A tier over the store in a directory."""
    given = {"identity": IDENTITY, "capacity": "64MiB", **settings}
    spec = Spec(of or config())
    return DalsegnoTier(spec, primary.view, "DalsegnoTier", path=str(path), **given)


def job(
    number: int, of: Sequence[bytes], rows: Sequence[int], context: Any, *, load: bool = False
) -> TransferJob:
    """A transfer job of vLLM's."""
    return TransferJob(number, list(of), np.array(rows, dtype=np.int32), load, context)


def finished(tier: DalsegnoTier, count: int = 1, timeout_s: float = 20.0) -> list[Any]:
    """Polls the tier, as vLLM does each step, until so many jobs were reported."""
    results: list[Any] = []
    end = time.monotonic() + timeout_s
    while len(results) < count and time.monotonic() < end:
        results += tier.get_finished_jobs()
        time.sleep(0.001)
    assert len(results) == count
    return results


def store_all(tier: DalsegnoTier, primary: Primary, of: Sequence[bytes], context: Any) -> None:
    """Stores blocks from the rows 0, 1, 2 ..."""
    for row, key in enumerate(of):
        primary.fill(row, key)
    tier.submit_store(job(1000, of, range(len(of)), context))
    assert finished(tier)[0].success


def counted(stats: Any) -> dict[str, float]:
    """Counters and gauges of vLLM's record, by name and labels."""
    prefix = "vllm:kv_offload_dalsegno_"
    return {
        " ".join([name.removeprefix(prefix), *labels]): value
        for name, values in (stats.data["data"] if stats else {}).items()
        for labels, value in values.items()
    }


class ManualTransfer:
    """A transfer that ends when the test says so."""

    def __init__(self, kind: str, count: int, work: Callable[[], Any]) -> None:
        self.kind, self.count, self._work = kind, count, work
        self._done = self.throttled = self.cancelled = False
        self._outcome: Any = None

    def end(self, outcome: Any = None, *, throttled: bool = False) -> None:
        """Ends it: as it would, with another outcome, or with an error."""
        self.throttled = throttled
        self._outcome = self._work() if outcome is None and not throttled else outcome
        self._done, self._work = True, lambda: None

    def done(self) -> bool:
        return self._done

    def wait(self, timeout_s: float | None = None) -> bool:
        assert self._done or timeout_s is not None, "it would wait for ever"
        return self._done

    def cancel(self) -> None:
        self.cancelled = True

    def _report(self) -> Any:
        assert self._done
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    put_report = get_report = _report


class ManualStore(reference_store.Store):
    """The reference store with manual transfers; counts what it is asked."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "{}")
        self.transfers: list[ManualTransfer] = []
        self.contains_calls = 0
        self.puts: list[tuple[list[bytes], int]] = []
        self.broken = ""
        self.poisoned = False

    def stats(self) -> dict[str, Any]:
        self._break("stats")
        return {**super().stats(), "poisoned": self.poisoned}

    def _break(self, call: str) -> None:
        if self.broken == call:
            raise OSError(f"{call} is broken")

    def namespace(self, *arguments: Any, **options: Any) -> Any:
        space = super().namespace(*arguments, **options)
        contains = space.contains

        def count_contains(hashes: Sequence[bytes]) -> list[bool]:
            self.contains_calls += 1
            self._break("contains")
            return contains(hashes)

        def submit_put(chain: Sequence[bytes], blocks: Any, **more: Any) -> ManualTransfer:
            self._break("submit_put")
            self.puts.append((list(chain), more.get("first", 0)))
            return self._add("put", len(blocks), lambda: space.put_batch(chain, blocks, **more))

        def submit_get(hashes: Sequence[bytes], out: Any, **more: Any) -> ManualTransfer:
            self._break("submit_get")
            assert more.pop("each")
            return self._add("get", len(out), lambda: space.get_each(hashes, out, **more))

        space.contains = count_contains  # type: ignore[method-assign]
        space.submit_put = submit_put  # type: ignore[method-assign,assignment]
        space.submit_get = submit_get  # type: ignore[method-assign,assignment]
        return space

    def _add(self, kind: str, count: int, work: Callable[[], Any]) -> ManualTransfer:
        transfer = ManualTransfer(kind, count, work)
        self.transfers.append(transfer)
        return transfer

    def end_all(self) -> None:
        """Ends every transfer as it would."""
        for transfer in self.transfers:
            if not transfer.done():
                transfer.end()
