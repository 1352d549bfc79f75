"""The worker's half: copies blocks between places of the store and vLLM's KV cache.

1. A load that runs inside a step has ended before the step reports: its last copy, and the check
   that its places were not reused meanwhile.
2. A save reads vLLM's blocks layer by layer, after the layer was computed. A step that may write
   these blocks waits for the copies first. What is not copied by then is not saved.
3. Only what a step has computed from blocks that are there is saved: not after an exception, nor
   after a failed step load, until the scheduler's half knows of it.
4. What fails is a miss or a block that is not saved; nothing here ends a step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from vllm.logger import init_logger

import dalsegno
from dalsegno.integrations.common.trouble import Trouble
from dalsegno.integrations.vllm.direct import layout, space
from dalsegno.integrations.vllm.direct.step import LoadJob, SaveJob, StepPlan, StepReport

logger = init_logger("vllm.dalsegno")

# How long a step waits for copies of saves whose blocks it may overwrite. They take milliseconds.
DRAIN_S = 1.0
# How long a step waits to learn which blocks are present already.
LOOKUP_S = 0.05


@dataclass
class RunningLoad:
    """A load under way."""

    job: LoadJob
    load: Any
    started: float


@dataclass
class RunningSave:
    """A save under way.

    Attributes:
        job: What is saved.
        writer: The put by layer.
        pages: Where the blocks are, until all layers were copied.
        count: Blocks that the store does not have yet.
        layers: The copies of the layers that were started.
        is_void: Whether it must not be committed.
    """

    job: SaveJob
    writer: Any
    pages: Any
    count: int
    layers: dict[int, Any] = field(default_factory=dict)
    is_void: bool = False

    def give_up(self) -> None:
        """Lets it save nothing. Copies that run go on for a moment."""
        self.is_void = True
        for one in self.layers.values():
            one.cancel()

    def is_copied(self) -> bool:
        """Whether no copy runs."""
        return all(one.done() for one in self.layers.values())


class DirectWorker:
    """Copies blocks."""

    def __init__(self, engine_id: str, config: Any, pages: int, store_timeout_s: float) -> None:
        """Waits for vLLM's KV cache.

        Args:
            engine_id: vLLM's name of the engine.
            config: vLLM's `OffloadingConfig`.
            pages: Number of vLLM's blocks.
            store_timeout_s: Seconds that a put may take.
        """
        (group,) = config.groups
        self._engine_id, self._pages = engine_id, pages
        self._names, self._per_block = list(group.layer_names), config.cache.blocks_per_chunk
        self._index = {name: at for at, name in enumerate(self._names)}
        self._timeout_s = store_timeout_s
        self._slice_bytes = config.worker_kv_bytes_per_block // len(self._names) * self._per_block
        self._memory: Any = None
        self._log = Trouble(logger)
        self._plan = StepPlan()
        self._step_loads: list[RunningLoad] = []
        self._step_saves: list[RunningSave] = []
        self._loads: list[RunningLoad] = []
        self._copying: list[RunningSave] = []
        self._commits: list[tuple[RunningSave, Any]] = []
        self._hooks_run = True
        self._failures = 0
        self._refusal = ""
        self._invalid: set[int] = set()
        self._report = StepReport()

    def register(self, caches: dict[str, Any]) -> None:
        """Takes vLLM's KV cache. If its pages cannot be described, nothing is loaded or saved."""
        try:
            self._memory = layout.paged_memory(
                caches, self._names, self._pages, self._per_block, self._slice_bytes
            )
        except layout.UnknownLayoutError as error:
            self._refusal = str(error)
            logger.warning(
                "Dalsegno does not know how vLLM's KV cache is laid out, so it loads and saves "
                'nothing: %s. Set "path_to_engine": "tiered".',
                error,
            )

    def begin_step(self, plan: StepPlan) -> None:
        """Prepares the saves of a step, before it computes anything."""
        if plan.must_drain:
            self.drain()
        self._plan, self._hooks_run = plan, True
        store = space.of_engine(self._engine_id)
        namespace = None if store is None else store.namespace
        self._report.refusal = self._refusal
        for job in plan.saves:
            if not self._is_sound():
                self._end_save(job, is_dropped=True)
            elif namespace is None or self._memory is None:
                self._end_save(job, is_dropped=False)
            else:
                self._prepare_save(namespace, job)

    def _is_sound(self) -> bool:
        """Whether the step computes from blocks that are all there."""
        return self._plan.seen_failures >= self._failures

    def _prepare_save(self, namespace: Any, job: SaveJob) -> None:
        """Begins a put by layer, unless there is nothing to save."""
        try:
            writer = namespace.layer_writer(job.chain, first=job.first, timeout_s=LOOKUP_S)
            skipped = writer.first - job.first
            if not writer.count:
                return self._end_save(job, is_dropped=False)
        except Exception as error:  # noqa: BLE001 - blocks that are not saved are misses later
            self._log.log("save", error)
            is_passing = isinstance(error, dalsegno.UnavailableError)
            return self._end_save(job, is_dropped=is_passing)
        try:
            pages = self._memory.blocks(job.pages[skipped * self._per_block :])
        except dalsegno.InvalidError:
            # Another request that has some of these blocks saves them at the moment.
            return self._end_save(job, is_dropped=True)
        self._step_saves.append(RunningSave(job, writer, pages, writer.count))
        return None

    def _end_save(self, job: SaveJob, *, is_dropped: bool) -> None:
        """Reports that a save needs vLLM's blocks no more."""
        self._report.copied.add(job.number)
        if is_dropped:
            self._report.dropped.add(job.number)

    def start_loads(self, *, hooks_run: bool) -> None:
        """Starts the loads of the step.

        Args:
            hooks_run: Whether the step calls `wait_for_layer` for each layer.
        """
        self._hooks_run = hooks_run
        loads, self._plan.loads = self._plan.loads, []
        for job in loads:
            self._start_load(job)
        if not hooks_run:
            self._end_step_loads()

    def _start_load(self, job: LoadJob) -> None:
        running = RunningLoad(job, None, time.monotonic())
        try:
            pages = None if job.is_void else self._memory.blocks(job.pages)
            if pages is None:
                pass
            elif job.lease is not None:
                running.load = job.lease.load(pages, timeout_s=job.timeout_s)
            else:
                store = space.of_engine(self._engine_id)
                if store is not None and store.namespace is not None:
                    running.load = store.namespace.load(job.chain, pages, timeout_s=job.timeout_s)
        except Exception as error:  # noqa: BLE001 - its blocks are computed
            self._log.log("load", error)
        (self._loads if job.lease is None else self._step_loads).append(running)

    def wait_for_layer(self, name: str) -> None:
        """Waits until a layer of all loads of the step is there."""
        at = self._index.get(name)
        if at is None or not self._step_loads:
            return
        started = time.monotonic()
        for running in self._step_loads:
            if running.load is not None:
                running.load.wait_layer(at)
        self._report.step_s += time.monotonic() - started

    def save_layer(self, name: str) -> None:
        """Starts to copy a layer of the step's saves."""
        at = self._index.get(name)
        for save in self._step_saves if at is not None else ():
            self._copy_layer(save, at)

    def _copy_layer(self, save: RunningSave, at: int | None) -> None:
        if at is not None and at not in save.layers:
            try:
                save.layers[at] = save.writer.submit_store_layer(at, save.pages)
            except Exception as error:  # noqa: BLE001 - the blocks are not saved
                self._log.log("save", error)

    def end_step(self, *, is_aborted: bool) -> None:
        """Ends the loads of the step, and keeps those saves whose layers it has computed.

        Args:
            is_aborted: Whether the step has raised an exception.
        """
        self._end_step_loads()
        for save in self._step_saves:
            # Without hooks, nobody said when a layer was there. Now all are.
            for at in range(len(self._names)) if not (self._hooks_run or is_aborted) else ():
                self._copy_layer(save, at)
            is_complete = len(save.layers) == len(self._names)
            if is_aborted or not is_complete or not self._is_sound():
                save.give_up()
        self._copying += self._step_saves
        self._step_saves = []

    def _end_step_loads(self) -> None:
        for running in self._step_loads:
            started = time.monotonic()
            count = self._end_load(running)
            self._report.step_s += time.monotonic() - started
            self._report.step_bytes += count * len(self._names) * self._slice_bytes
            if count < len(running.job.chain):
                self._failures += 1
                self._report.failures = self._failures
        self._step_loads = []

    def _end_load(self, running: RunningLoad) -> int:
        """Waits for a load, and reports the blocks that it has not brought; returns the others."""
        job, count = running.job, 0
        if running.load is not None:
            running.load.wait()
            try:
                count = running.load.result()
            except Exception as error:  # noqa: BLE001 - its blocks are computed
                self._log.log("load", error)
        self._invalid |= set(job.pages[count * self._per_block :])
        self._report.loaded_blocks += count
        self._report.failed_blocks += len(job.chain) - count
        self._report.loaded_bytes += count * len(self._names) * self._slice_bytes
        return count

    def drain(self) -> None:
        """Waits until no save that will be committed reads vLLM's blocks."""
        until = time.monotonic() + DRAIN_S
        for save in self._copying:
            for one in save.layers.values() if not save.is_void else ():
                one.wait(max(0.0, until - time.monotonic()))
            if not save.is_copied():
                save.give_up()
        self._commit_copied()

    def finished(self) -> set[str]:
        """Returns the requests whose loads have ended."""
        self._commit_copied()
        self._end_commits()
        loads, self._loads, ended = self._loads, [], list[RunningLoad]()
        for running in loads:
            is_done = running.load is None or running.load.done()
            (ended if is_done else self._loads).append(running)
        for running in ended:
            self._end_load(running)
        return {running.job.request_id for running in ended}

    def _commit_copied(self) -> None:
        """Puts the blocks of which all layers were copied, and gives vLLM's blocks back."""
        copying, self._copying = self._copying, []
        for save in copying:
            # Asked once: it may be copied a moment later.
            if not save.is_copied():
                self._copying.append(save)
                continue
            save.pages = None
            self._end_save(save.job, is_dropped=save.is_void)
            if save.is_void:
                continue
            try:
                for one in save.layers.values():
                    one.result()
            except Exception as error:  # noqa: BLE001 - the blocks are not saved
                self._report.unsaved_blocks += save.count
                self._log.log("save", error)
            else:
                self._commit(save)

    def _commit(self, save: RunningSave) -> None:
        """Starts to put the blocks of a save, all of which were copied."""
        try:
            self._commits.append((save, save.writer.submit_commit(timeout_s=self._timeout_s)))
        except Exception as error:  # noqa: BLE001 - the blocks are not saved
            self._report.unsaved_blocks += save.count
            self._log.log("save", error)

    def _end_commits(self) -> None:
        """Reports how the puts ended."""
        commits, self._commits = self._commits, []
        for save, commit in commits:
            if not commit.done():
                self._commits.append((save, commit))
                continue
            if commit.throttled:
                self._commit(save)
                continue
            try:
                commit.result()
                self._report.saved_blocks += save.count
            except Exception as error:  # noqa: BLE001 - the blocks are not saved
                self._report.unsaved_blocks += save.count
                self._log.log("save", error)

    def take_invalid(self) -> set[int]:
        """Returns vLLM's blocks that loads have not brought."""
        invalid, self._invalid = self._invalid, set()
        return invalid

    def take_report(self) -> StepReport | None:
        """Returns what was done since the last call."""
        self._report.committing = len(self._commits)
        report, self._report = self._report, StepReport()
        return report or None

    def close(self) -> None:
        """Waits for everything that uses vLLM's KV cache, and lets go of it."""
        for running in [*self._step_loads, *self._loads]:
            if running.load is not None:
                running.load.cancel()
                running.load.wait()
        self.end_step(is_aborted=True)
        self.drain()
        self._loads, self._memory = [], None
