"""`DalsegnoCpuSpec`: the copy between KV cache and primary tier, and the file without a name."""

from __future__ import annotations

import secrets
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import numpy as np
import torch
from tests.integration.vllm import tiers
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from dalsegno.integrations.vllm import spec as cpu

pytestmark = pytest.mark.engine
PAGE, BLOCKS, ROWS = 2048, 12, 6


def region(name: str, per_row: int, rank: int | None = 0) -> Any:
    return tiers.region(name, ROWS, rank, 2 * PAGE * per_row, cpu._Region)


def caches() -> tuple[CanonicalKVCaches, list[Any]]:
    """Two layers in one group, their pages full of noise."""
    tensors = [torch.randint(-128, 127, (BLOCKS, PAGE), dtype=torch.int8) for _ in range(2)]
    refs = [CanonicalKVCacheRef(0, PAGE), CanonicalKVCacheRef(1, PAGE)]
    return CanonicalKVCaches(
        [CanonicalKVCacheTensor(one, PAGE) for one in tensors], [refs]
    ), tensors


@pytest.mark.parametrize(("per_row", "first"), [(1, 0), (2, 0), (3, 4)])
def test_blocks_go_into_rows_and_come_back(per_row: int, first: int) -> None:
    held, tensors = caches()
    mapped = region(f"dalsegno-test-{secrets.token_hex(4)}", per_row)
    worker = cpu.CpuWorker(held, per_row, mapped)
    blocks = [7, 2, 9, 4, 11]
    before = [tensor.clone() for tensor in tensors]
    count = -(-(first % per_row + len(blocks)) // per_row)
    rows = list(range(ROWS))[::-1][:count]
    cache_side = GPULoadStoreSpec(blocks, group_sizes=[5], block_indices=[first])
    assert worker.submit_store(1, cache_side, CPULoadStoreSpec(rows))
    for tensor in tensors:
        tensor.zero_()
    assert worker.submit_load(2, CPULoadStoreSpec(rows), cache_side, expedited=True)
    done = worker.get_finished()
    assert [(one.job_id, one.success, one.transfer_size) for one in done] == [
        (1, True, 10 * PAGE),
        (2, True, 10 * PAGE),
    ]
    for tensor, old in zip(tensors, before, strict=True):
        untouched = [number for number in range(BLOCKS) if number not in blocks]
        assert np.array_equal(tensor[blocks], old[blocks])
        assert not tensor[untouched].any()
    worker.shutdown()
    assert not Path(mapped.mmap_path).exists()


def test_the_second_joiner_unlinks_the_name_and_both_keep_the_memory() -> None:
    name = f"dalsegno-test-{secrets.token_hex(4)}"
    first, second = region(name, 1), region(name, 1, rank=None)
    path = Path(first.mmap_path)
    cpu.unlink_if_joined(first)
    assert path.exists()
    cpu.unlink_if_joined(second)
    assert not path.exists()
    first.base_tensor[5] = 77
    assert second.base_tensor[5] == 77
    first.cleanup()
    second.cleanup()


def test_a_gpu_keeps_vllms_own_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    monkeypatch.setattr(TieringOffloadingSpec, "get_worker", lambda self, _: "vllm's own")
    made = object.__new__(cpu.DalsegnoCpuSpec)
    assert made.get_worker(None) == "vllm's own"
