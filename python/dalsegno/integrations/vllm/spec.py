"""vLLM's tiered offloading with a file that has no name, and on the CPU platform.

vLLM has the scheduler's half of tiering on every platform, and the worker's half, which copies
between the engine's KV cache and the primary tier, only for GPUs. On the CPU both are memory of
this machine, so the copy is a copy.

1. On other platforms vLLM's own worker copies.
2. A copy is done when it is submitted: it runs on the worker's thread between two steps.
3. The file of the primary tier in `/dev/shm` has no name once all halves have mapped it: see
   `shared_memory`. A start that is refused leaves no file.
4. An engine does not start if its halves have mapped different files: each block would hold other
   bytes than its key says, also in vLLM's own tier where workers read what another one wrote.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from dalsegno import IncompatibleError
from dalsegno.integrations.vllm import compat, shared_memory


class CpuWorker(OffloadingWorker):  # type: ignore[misc]
    """Copies pages between the engine's KV cache and the rows of the primary tier."""

    def __init__(self, kv_caches: Any, blocks_per_chunk: int, region: Any) -> None:
        """Lays out the rows.

        Args:
            kv_caches: The KV cache: tensors `[blocks, page_bytes]` of int8 on the CPU, and which of
                them each group uses.
            blocks_per_chunk: Blocks per row.
            region: The primary tier; the worker owns it from here on.
        """
        self._blocks_per_chunk, self._mmap_region = blocks_per_chunk, region
        self._refs = kv_caches.group_data_refs
        self._pages = [tensor.page_size_bytes for tensor in kv_caches.tensors]
        self._cache = [tensor.tensor.numpy() for tensor in kv_caches.tensors]
        self._rows = [
            region.create_next_worker_view(page * blocks_per_chunk).numpy() for page in self._pages
        ]
        self._done: list[TransferResult] = []

    def _pairs(self, cache_side: Any, row_side: Any) -> Iterator[tuple[Any, Any]]:
        """Yields the places of every page of a transfer: in the cache, and in its row."""
        block_at = row_at = 0
        for refs, size, first in zip(
            self._refs, cache_side.group_sizes, cache_side.block_indices, strict=True
        ):
            # The first block may lie in the middle of its row.
            skip = first % self._blocks_per_chunk
            rows = -(-(skip + size) // self._blocks_per_chunk) if size else 0
            for place, block in enumerate(cache_side.block_ids[block_at : block_at + size], skip):
                row, slot = divmod(place, self._blocks_per_chunk)
                number = row_side.block_ids[row_at + row]
                for ref in refs:
                    start = slot * self._pages[ref.tensor_idx]
                    page = slice(start, start + ref.page_size_bytes)
                    yield (
                        self._cache[ref.tensor_idx][block, : ref.page_size_bytes],
                        self._rows[ref.tensor_idx][number, page],
                    )
            block_at, row_at = block_at + size, row_at + rows

    def _copy(self, job_id: int, pairs: Iterable[tuple[Any, Any]]) -> bool:
        """Copies the second of each pair into the first, and notes that the job is done."""
        started, moved_bytes = time.perf_counter(), 0
        for to, source in pairs:
            to[:] = source
            moved_bytes += to.nbytes
        seconds = time.perf_counter() - started
        self._done.append(TransferResult(job_id, True, moved_bytes, seconds))
        return True

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copies pages of the KV cache into rows."""
        return self._copy(job_id, ((row, page) for page, row in self._pairs(src_spec, dst_spec)))

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, **options: Any) -> bool:
        """Copies rows into pages of the KV cache; all loads are equally fast here."""
        del options
        return self._copy(job_id, self._pairs(dst_spec, src_spec))

    def get_finished(self) -> list[TransferResult]:
        """Returns the jobs done since the last call."""
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Returns at once: a job is done when it is submitted."""

    def shutdown(self) -> None:
        """Lets go of the KV cache and unmaps the primary tier."""
        self._cache, self._rows = [], []
        self._mmap_region.cleanup()


class DalsegnoSpec(TieringOffloadingSpec):  # type: ignore[misc]
    """`TieringOffloadingSpec` whose memory goes with its processes."""

    _is_checked = False

    def check_memory(self) -> None:
        """Checks once that the scheduler and all workers have the same memory.

        Raises:
            IncompatibleError: They have not.
        """
        if not self._is_checked:
            region = compat.scheduler_region(self)
            shared_memory.take_marks(region, self.config.parallel.world_size)
            self._is_checked = True

    def get_manager(self) -> Any:
        """Returns the scheduler's half, which vLLM asks for when all workers have theirs."""
        try:
            manager = super().get_manager()
        except BaseException:
            shared_memory.forget(self._engine_id)
            raise
        if self._scheduler_mmap is not None:
            shared_memory.drop_name(self._scheduler_mmap, self.config.parallel.world_size + 1)
        return manager

    def get_worker(self, kv_caches: Any) -> Any:
        """Returns the worker's half."""
        if not self._worker:
            shared_memory.collect_leftovers(self._engine_id)
            self._worker: Any = self._new_worker(kv_caches)
            if (region := compat.region_of(self._worker)) is not None:
                shared_memory.mark(region, self.config.parallel.rank)
                shared_memory.quiet_cleanup(region)
        return self._worker

    def _new_worker(self, kv_caches: Any) -> Any:
        """Maps the primary tier for vLLM's own worker."""
        return super().get_worker(kv_caches)


class DalsegnoCpuSpec(DalsegnoSpec):
    """`DalsegnoSpec` that also works on the CPU platform."""

    def _new_worker(self, kv_caches: Any) -> Any:
        """Maps the primary tier for a worker of this platform.

        Raises:
            IncompatibleError: The configuration asks for a layout that only GPUs have.
        """
        if not current_platform.is_cpu():
            return super()._new_worker(kv_caches)
        if self.config.canonical_layout:
            raise IncompatibleError("canonical_layout needs a GPU; leave it out on the CPU")
        rank = self.config.parallel.rank
        region = SharedOffloadRegion(**compat.region_arguments(SharedOffloadRegion, self, rank))
        try:
            return CpuWorker(kv_caches, self.blocks_per_chunk, region)
        except BaseException:
            region.cleanup()
            raise
