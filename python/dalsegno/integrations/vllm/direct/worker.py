"""The worker's half: copies blocks between places of the store and vLLM's KV cache.

1. A load that runs inside a step has ended before the step reports: its last copy, and the check
   that its places were not reused meanwhile. A layer is computed when its blocks are there, or when
   their load has failed; then the blocks are reported, and vLLM computes them.
2. A save is of what a step has computed, not after an exception: see `saving.py`.
3. What fails is a miss or a block that is not saved; nothing here ends a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vllm.logger import init_logger

from dalsegno.integrations.common.trouble import Trouble
from dalsegno.integrations.vllm.direct import layout, memory
from dalsegno.integrations.vllm.direct.back import WorkerBacks
from dalsegno.integrations.vllm.direct.saving import WorkerSaves
from dalsegno.integrations.vllm.direct.space import WorkerSpace
from dalsegno.integrations.vllm.direct.step import (
    LoadEnd,
    LoadJob,
    LoadWay,
    StepPlan,
    StepReport,
)

logger = init_logger("vllm.dalsegno")

# How long a step waits for the leases of a worker in a process of its own, for all of its loads.
LEASE_S = 0.1


@dataclass
class RunningLoad:
    """A load under way.

    Attributes:
        job: What is loaded.
        started: When it began, in seconds of the monotonic clock.
        load: The store's; None if it could not begin.
        ended: When it ended.
        is_late: Whether a layer was computed before it was there.
        gave_up: Whether the step would have waited too long for it.
        is_withdrawn: Whether it was queued behind other loads then, and does not begin any more.
    """

    job: LoadJob
    started: float = field(default_factory=time.monotonic)
    load: Any = None
    ended: float | None = None
    is_late: bool = False
    gave_up: bool = False
    is_withdrawn: bool = False

    def note_end(self) -> None:
        """Notes when it ended; called by a thread of the store."""
        self.ended = time.monotonic()


class DirectWorker:
    """Copies blocks."""

    def __init__(
        self,
        config: Any,
        pages: int,
        store_timeout_s: float,
        describe: Callable[..., memory.CacheMemory] = memory.of_engine,
    ) -> None:
        """Waits for vLLM's KV cache.

        Args:
            config: vLLM's `OffloadingConfig`.
            pages: Number of vLLM's blocks.
            store_timeout_s: Seconds that a put may take.
            describe: Describes the cache, given its tensors and its shape.
        """
        (group,) = config.groups
        self._per_block = config.cache.blocks_per_chunk
        self._names = list(group.layer_names)
        self._index = {name: at for at, name in enumerate(self._names)}
        slice_bytes = config.worker_kv_bytes_per_block // len(self._names) * self._per_block
        self._block_bytes = len(self._names) * slice_bytes
        names = tuple(self._names)
        self._shape = layout.CacheShape(names, pages, self._per_block, slice_bytes)
        self._describe = describe
        rank = config.parallel.rank
        self._space = WorkerSpace(config.engine_id, rank)
        # Of ranks with equal bytes the first one saves.
        self._saves_blocks = rank == 0 or not config.replicated_layout
        self._memory: memory.CacheMemory | None = None
        self._namespace: Any = None
        self._log = Trouble(logger)
        self._plan = StepPlan()
        self._step_loads: list[RunningLoad] = []
        self._loads: list[RunningLoad] = []
        self._backs = WorkerBacks()
        self._saves = WorkerSaves(
            len(self._names), self._block_bytes, self._per_block, store_timeout_s
        )
        self._lease_until = 0.0
        # Up to which vLLM uses the blocks that the loads of this step fill.
        self._after: Any = None
        self._waited_s = 0.0
        self._void_loads = 0
        self._refusal = ""
        self._invalid: set[int] = set()
        self._report = StepReport()

    def register(self, caches: dict[str, Any]) -> None:
        """Takes vLLM's KV cache. If its pages cannot be described, nothing is loaded or saved."""
        try:
            self._memory = self._describe(caches, self._shape)
        except Exception as error:  # noqa: BLE001 - the engine runs on without shared blocks
            self._refusal = f"{type(error).__name__}: {error}"
            logger.warning(
                "Dalsegno cannot copy to vLLM's KV cache, so it loads and saves nothing: %s. "
                'Set "path_to_engine": "tiered".',
                error,
            )

    def begin_step(self, plan: StepPlan) -> None:
        """Prepares the saves of a step, before it computes anything."""
        if plan.must_drain:
            self.drain()
        self._plan = plan
        self._waited_s = 0.0
        self._void_loads = max(self._void_loads, plan.void_loads)
        self._namespace = self._space.find(plan.space)
        self._use_memory()
        after = self._memory.now() if self._memory is not None and plan.begins_back else None
        self._backs.begin_step(plan, lambda job: self._begin_part(job, after))
        self._report.refusal = self._refusal
        if self._saves_blocks:
            self._saves.decide(plan.confirmed, plan.void, self._report)
            self._saves.begin(plan.saves, self._namespace, self._memory, self._report)
        if self._memory is not None:
            # Behind all waits for loads that end.
            self._memory.clock.begin()

    def _use_memory(self) -> None:
        """Prepares copies; without that they are slower."""
        if self._memory is None:
            return
        try:
            self._memory.use(self._namespace)
        except Exception as error:  # noqa: BLE001 - the engine runs on
            self._log.log("register", error)

    def start_loads(self, *, hooks_run: bool) -> None:
        """Starts the loads of the step.

        Args:
            hooks_run: Whether the step calls `wait_for_layer` for each layer.
        """
        self._lease_until = time.monotonic() + LEASE_S
        loads, self._plan.loads = self._plan.loads, []
        self._after = None
        for job in loads:
            if job.way is LoadWay.BACK:
                continue
            running = RunningLoad(job)
            try:
                running.load = None if job.is_void else self._begin_load(job)
                if running.load is not None:
                    running.load.on_end(running.note_end)
            except Exception as error:  # noqa: BLE001 - its blocks are computed
                self._log.log("load", error)
            (self._step_loads if job.is_in_step else self._loads).append(running)
        if not hooks_run:
            self._end_step_loads()

    def _begin_load(self, job: LoadJob) -> Any:
        """Starts a load; returns None if there is nothing to load from."""
        namespace, timeout_s = self._namespace, job.timeout_s
        if self._memory is None or (namespace is None and job.lease is None):
            return None
        if self._after is None:
            self._after = self._memory.now()
        pages = self._memory.pages.blocks(job.pages, after=self._after)
        if job.lease is not None:
            return job.lease.load(pages, timeout_s=timeout_s)
        if job.way is LoadWay.COPY:
            # The scheduler's lease keeps the blocks where they are.
            left_s = max(0.001, self._lease_until - time.monotonic())
            with namespace.lease(job.chain, timeout_s=left_s) as own:
                if len(own) == len(job.chain):
                    return own.load(pages, timeout_s=timeout_s)
            # This process may lease no more, or the server is slow.
        due_s = 0.0 if job.layer_s else None
        return namespace.load(
            job.chain, pages, timeout_s=timeout_s, due_s=due_s, layer_s=job.layer_s
        )

    def _begin_part(self, job: LoadJob, after: Any) -> Callable[[int, int], Any]:
        """Returns what starts to load some blocks of the back of a prompt.

        Args:
            job: The back.
            after: The point up to which vLLM uses its blocks for others.
        """
        namespace, pages, each = self._namespace, self._memory, self._per_block

        # Threads of the store call it.
        def begin(first: int, end: int) -> Any:
            try:
                if pages is None or namespace is None or job.is_void:
                    return None
                numbers = job.pages[first * each : end * each]
                blocks = pages.pages.blocks(numbers, after=after)
                return namespace.load(job.chain[first:end], blocks, timeout_s=job.timeout_s)
            except Exception as error:  # noqa: BLE001 - its blocks are computed
                self._log.log("load", error)
                return None

        return begin

    def wait_for_layer(self, name: str) -> None:
        """Waits until a layer of all loads of the step is there."""
        at = self._index.get(name)
        if at is None or not self._step_loads:
            return
        for running in self._step_loads:
            if running.load is None:
                continue
            started = time.monotonic()
            if not self._wait_layer(running, at):
                running.load.cancel()
                # The layer is computed without it, also if it comes after all.
                running.is_late = running.gave_up = True
            self._waited_s += time.monotonic() - started

    def _wait_layer(self, running: RunningLoad, at: int) -> bool:
        """Lets a layer be computed after its load; returns whether it waits, or need not."""
        assert self._memory is not None, "a load has begun"
        try:
            left_s = self._left_s(running)
            return self._memory.wait_layer(running.load, at, left_s) is not None
        except Exception as error:  # noqa: BLE001 - its blocks are computed
            self._log.log("load", error)
            return False

    def _left_s(self, running: RunningLoad) -> float:
        """Returns how long the step still waits for a load: it has waited for others, too."""
        return max(0.0, running.job.wait_s - self._waited_s)

    def save_layer(self, name: str) -> None:
        """Starts to copy a layer of the step's saves."""
        at = self._index.get(name)
        if at is not None:
            self._saves.copy_layer(at)

    def end_step(self, *, is_aborted: bool) -> None:
        """Ends the loads of the step, and keeps those saves whose layers it has computed.

        Args:
            is_aborted: Whether the step has raised an exception.
        """
        self._end_step_loads()
        if self._plan.work is not None and self._memory is not None and not is_aborted:
            self._memory.clock.end(self._plan.work, self._waited_s)
        self._saves.end_step(has_computed=not is_aborted)

    def _end_step_loads(self) -> None:
        for running in self._step_loads:
            started = time.monotonic()
            if running.load is not None and not running.load.wait(self._left_s(running)):
                running.gave_up = True
                running.is_withdrawn = running.load.withdraw() and not running.load.done()
            self._end_load(running)
            self._waited_s += time.monotonic() - started
        self._step_loads = []

    def _end_load(self, running: RunningLoad) -> None:
        """Waits for a load, and reports the blocks that it has brought."""
        job, count = running.job, 0
        if running.load is not None and not running.is_withdrawn:
            running.load.wait()
            try:
                count = running.load.result()
            except Exception as error:  # noqa: BLE001 - its blocks are computed
                self._log.log("load", error)
        seconds = 0.0
        if running.load is not None and running.load.throttled:
            self._report.refused.add(job.number)
        elif running.load is not None:
            ended = time.monotonic() if running.ended is None else running.ended
            seconds = max(1e-9, ended - running.started)
        # The limit of a load in a step is how long that may wait and compute.
        has_timed_out = job.is_in_step and count < len(job.chain) and seconds >= job.timeout_s
        if running.is_late or job.number <= self._void_loads:
            count = 0
        self._invalid |= set(job.pages[count * self._per_block :])
        was_late = running.gave_up or has_timed_out
        self._report.loads[job.number] = [LoadEnd(count, seconds, was_late)]

    def drain(self) -> None:
        """Waits until no save that may be put reads vLLM's blocks."""
        self._saves.drain(self._report)

    def finished(self) -> set[str]:
        """Returns the requests whose loads have ended."""
        self._saves.poll(self._report)
        loads, self._loads, ended = self._loads, [], list[RunningLoad]()
        for running in loads:
            is_done = running.load is None or running.load.done()
            (ended if is_done else self._loads).append(running)
        for running in ended:
            self._end_load(running)
        return {running.job.request_id for running in ended}

    def take_invalid(self) -> set[int]:
        """Returns vLLM's blocks that loads have not brought."""
        invalid, self._invalid = self._invalid, set()
        return invalid

    def take_report(self) -> StepReport | None:
        """Returns what was done since the last call."""
        report, self._report = self._report, StepReport()
        report.backs = self._backs.spans
        if self._memory is not None:
            report.steps = self._memory.clock.take()
        return report or None

    def close(self) -> None:
        """Waits for everything that uses vLLM's KV cache, and lets go of it."""
        for running in [*self._step_loads, *self._loads]:
            if running.load is not None:
                running.load.cancel()
                running.load.wait()
        self._backs.close()
        self._saves.close()
        self._step_loads, self._loads, self._memory, self._namespace = [], [], None, None
        self._space.close()
