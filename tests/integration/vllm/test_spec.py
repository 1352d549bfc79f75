"""`DalsegnoSpec` and `DalsegnoCpuSpec`: the copy of pages, and the file without a name."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import time
import uuid
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

from dalsegno.integrations.vllm import shared_memory
from dalsegno.integrations.vllm import spec as cpu

pytestmark = pytest.mark.engine
PAGE, BLOCKS, ROWS = 2048, 12, 6


def region(name: str, per_row: int, rank: int | None = 0, ranks: int = 1) -> Any:
    made = tiers.region(name, ROWS, rank, 2 * PAGE * per_row, ranks)
    if rank is not None:
        shared_memory.quiet_cleanup(made)
    return made


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


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_name_is_removed_when_the_scheduler_sees_every_half(
    ranks: int, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"dalsegno-test-{secrets.token_hex(4)}"
    workers = [region(name, 1, rank, ranks) for rank in range(ranks)]
    scheduler = region(name, 1, None, ranks)
    path = Path(scheduler.mmap_path)
    assert path == shared_memory.path_of(name)
    assert not shared_memory.drop_name(scheduler, ranks + 2), "one half has not come yet"
    assert not shared_memory.drop_name(workers[0], ranks + 1), "others look for what it made"
    assert path.exists()
    assert shared_memory.drop_name(scheduler, ranks + 1)
    assert not path.exists()
    tiers.mapped(workers[0])[5] = 77
    assert tiers.mapped(scheduler)[5] == 77
    for half in (*workers, scheduler):
        half.cleanup()
    assert "unlink" not in caplog.text


def map_and_wait(name: str, rank: int, ranks: int, ready: Any) -> None:
    """The worker's half, in a process of its own."""
    mapped = region(name, 1, rank, ranks)
    ready.set()
    while mapped is not None:
        signal.pause()


@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_workers_leave_no_file(ranks: int) -> None:
    processes = multiprocessing.get_context("fork")
    for _ in range(6):
        name = f"dalsegno-test-{secrets.token_hex(4)}"
        workers = []
        for rank in range(ranks):
            ready = processes.Event()
            workers.append(processes.Process(target=map_and_wait, args=(name, rank, ranks, ready)))
            workers[-1].start()
            assert ready.wait(60)
        scheduler = region(name, 1, None, ranks)
        try:
            assert not shared_memory.drop_name(scheduler, ranks + 2)
            assert shared_memory.drop_name(scheduler, ranks + 1)
        finally:
            for worker in workers:
                worker.kill()
                worker.join()
        assert not shared_memory.path_of(name).exists()
        scheduler.cleanup()


def test_a_name_that_leads_to_another_file_stays() -> None:
    name = f"dalsegno-test-{secrets.token_hex(4)}"
    worker, scheduler = region(name, 1), region(name, 1, None)
    path = Path(scheduler.mmap_path)
    path.unlink()
    path.write_bytes(b"of somebody else")
    assert not shared_memory.drop_name(scheduler, 1)
    assert path.read_bytes() == b"of somebody else"
    path.unlink()
    for half in (worker, scheduler):
        half.cleanup()


@pytest.mark.parametrize("ranks", [1, 2])
def test_on_a_gpu_leftovers_go_first_and_the_name_goes_last(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of calls: vLLM's own worker and manager stand in for those of a GPU."""
    calls: list[str] = []
    name = f"dalsegno-test-{secrets.token_hex(4)}"
    path = shared_memory.path_of(name)
    monkeypatch.setattr(cpu, "current_platform", SimpleNamespace(is_cpu=lambda: False))

    def collect(own: str) -> None:
        assert own == name
        calls.append(f"collect, file {path.exists()}")

    def new_worker(self: Any, _: Any) -> Any:
        mapped = region(name, 1, self.config.parallel.rank, ranks)
        calls.append("worker maps")
        return SimpleNamespace(_mmap_region=mapped)

    def new_manager(self: Any) -> str:
        self._scheduler_mmap = region(name, 1, None, ranks)
        calls.append("scheduler maps")
        return "vllm's own"

    monkeypatch.setattr(shared_memory, "collect_leftovers", collect)
    monkeypatch.setattr(TieringOffloadingSpec, "get_worker", new_worker)
    monkeypatch.setattr(TieringOffloadingSpec, "get_manager", new_manager)

    def half(kind: type, rank: int) -> Any:
        made: Any = object.__new__(kind)
        made.config = SimpleNamespace(parallel=SimpleNamespace(world_size=ranks, rank=rank))
        made._worker, made._engine_id = None, name
        return made

    kinds = (cpu.DalsegnoSpec, cpu.DalsegnoCpuSpec)
    workers = [half(kinds[rank], rank).get_worker(None) for rank in range(ranks)]
    assert path.exists()
    scheduler = half(cpu.DalsegnoSpec, 0)
    assert scheduler.get_manager() == "vllm's own"
    assert not path.exists()
    firsts = [f"collect, file {rank > 0}" for rank in range(ranks)]
    assert calls == [*(one for first in firsts for one in (first, "worker maps")), "scheduler maps"]
    for mapped in (*(worker._mmap_region for worker in workers), scheduler._scheduler_mmap):
        mapped.cleanup()


def test_a_refused_start_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"dalsegno-test-{secrets.token_hex(4)}"
    worker = region(name, 1)

    def refuse(self: Any) -> None:
        raise ValueError("refused")

    monkeypatch.setattr(TieringOffloadingSpec, "get_manager", refuse)
    made: Any = object.__new__(cpu.DalsegnoCpuSpec)
    made._engine_id = name
    with pytest.raises(ValueError, match="refused"):
        made.get_manager()
    assert not shared_memory.path_of(name).exists()
    worker.cleanup()


def test_only_what_no_process_can_use_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    old = time.time() + 2 * shared_memory.HIDDEN_S
    own = str(uuid.uuid4())

    def leave(name: str, mode: int = 0o600) -> Path:
        path = tmp_path / name
        path.touch()
        path.chmod(mode)
        return path

    left = leave(f"vllm_offload_{uuid.uuid4()}.mmap")
    left_by_replica = leave(f"vllm_offload_{uuid.uuid4()}_dp1.mmap")
    kept = [
        leave(f"vllm_offload_{own}.mmap"),
        leave("vllm_offload_chosen-by-a-user.mmap"),
        leave(f"vllm_offload_{uuid.uuid4()}.mmap.3"),
        leave(f"vllm_offload_{uuid.uuid4()}.mmap", 0o666),
        leave(f"other_{uuid.uuid4()}.mmap"),
    ]
    shared = tmp_path / f"vllm_offload_{uuid.uuid4()}.mmap"
    os.link(leave(f"second_{uuid.uuid4()}"), shared)
    used = leave(f"vllm_offload_{uuid.uuid4()}.mmap")
    with used.open("rb"):
        shared_memory.collect_leftovers(own)
        assert left.exists(), "too young"
        monkeypatch.setattr(time, "time", lambda: old)
        shared_memory.collect_leftovers(own)
        assert used.exists()
    assert not left.exists()
    assert not left_by_replica.exists()
    assert all(path.exists() for path in (*kept, shared))
    shared_memory.collect_leftovers(own)
    assert not used.exists()


def test_in_a_container_a_leftover_is_kept_for_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    monkeypatch.setattr(shared_memory, "_ALL_PROCESSES", "pid:[1]")
    left = tmp_path / f"vllm_offload_{uuid.uuid4()}.mmap"
    left.touch(0o600)
    made = time.time()
    for age_s, exists in ((60.0, True), (shared_memory.HIDDEN_S + 60, False)):
        monkeypatch.setattr(time, "time", lambda age_s=age_s: made + age_s)
        shared_memory.collect_leftovers("own")
        assert left.exists() == exists


def test_leftovers_that_cannot_be_looked_at_stop_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path / "missing")
    shared_memory.collect_leftovers("own")
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    monkeypatch.setattr(shared_memory, "PROC", tmp_path / "missing")
    left = tmp_path / f"vllm_offload_{uuid.uuid4()}.mmap"
    left.touch(0o600)
    shared_memory.collect_leftovers("own")
    assert left.exists()
