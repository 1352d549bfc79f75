"""Saves of one worker: layers are copied out of vLLM's KV cache, and put when they are confirmed.

1. A save reads vLLM's blocks layer by layer, after the layer was computed; without hooks of layers,
   and on a GPU, all layers at once at the end of the step. A step that may write these blocks waits
   for the copies first. What is not copied by then is not saved.
2. A copied save waits until the scheduler's half confirms it: see `planned.py`.
3. What fails is a block that is not saved; nothing here ends a step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from vllm.logger import init_logger

import dalsegno
from dalsegno.integrations.common.trouble import Trouble
from dalsegno.integrations.vllm.direct.step import SaveJob, StepReport

logger = init_logger("vllm.dalsegno")

# How long a step waits for copies of saves whose blocks it may overwrite. They take milliseconds.
DRAIN_S = 1.0
# How long a step waits to learn which blocks are present already, for all of its saves.
LOOKUP_S = 0.05
# Saves that are copied at a time, of those that are copied at once.
MOST_COPIES = 64


@dataclass
class RunningSave:
    """A save under way.

    Attributes:
        job: What is saved.
        writer: The put by layer; None if there is nothing to put.
        memory: vLLM's KV cache.
        pages: Where the blocks are, until all layers were copied.
        layers: The copies that were started, by the first layer of each.
        after: The point up to which vLLM computes the blocks, if all layers are copied at once.
        is_void: Whether it must put nothing.
    """

    job: SaveJob
    writer: Any = None
    memory: Any = None
    pages: Any = None
    layers: dict[int, Any] = field(default_factory=dict)
    after: Any = None
    is_void: bool = False

    def give_up(self) -> None:
        """Lets it save nothing. Copies that run go on for a moment."""
        self.is_void = True
        for one in self.layers.values():
            one.cancel()

    def is_copied(self) -> bool:
        """Whether no copy runs."""
        return all(one.done() for one in self.layers.values())


class WorkerSaves:
    """All saves of a worker."""

    def __init__(
        self, layers: int, block_bytes: int, pages_per_block: int, timeout_s: float
    ) -> None:
        """Starts with none.

        Args:
            layers: Number of layers.
            block_bytes: Bytes of a block.
            pages_per_block: vLLM's blocks that hold one block of the store.
            timeout_s: Seconds that a put may take.
        """
        self._layers, self._block_bytes = layers, block_bytes
        self._per_block, self._timeout_s = pages_per_block, timeout_s
        self._log = Trouble(logger)
        self._in_step: list[RunningSave] = []
        self._copying: list[RunningSave] = []
        # Computed, and copied when others were.
        self._waiting: deque[RunningSave] = deque()
        # Copied and not confirmed, by number.
        self._copied: dict[int, RunningSave] = {}
        # Confirmed and not put. One put at a time: copies of layers run on the same threads.
        self._confirmed: deque[RunningSave] = deque()
        self._put: tuple[RunningSave, Any] | None = None

    def begin(
        self, jobs: Iterable[SaveJob], namespace: Any, memory: Any, report: StepReport
    ) -> None:
        """Prepares the saves of a step.

        Args:
            jobs: What to save.
            namespace: Where to; None: nothing is saved.
            memory: vLLM's KV cache; None: nothing is saved.
            report: Takes those that have ended.
        """
        until = time.monotonic() + LOOKUP_S
        for job in jobs:
            is_open = namespace is not None and memory is not None
            if not is_open or self._held_bytes() > memory.held_bytes:
                report.copied[job.number] = [False]
            else:
                left_s = max(0.001, until - time.monotonic())
                self._prepare(job, namespace, memory, report, left_s)

    def _held_bytes(self) -> int:
        """Returns how many bytes were copied, or are being copied, and not put."""
        copied = [*self._copied.values(), *self._confirmed]
        saves = [*self._in_step, *self._waiting, *self._copying, *copied]
        blocks: int = sum(save.writer.count for save in saves if save.writer is not None)
        return blocks * self._block_bytes

    def _prepare(
        self, job: SaveJob, namespace: Any, memory: Any, report: StepReport, lookup_s: float
    ) -> None:
        """Begins a put by layer, unless all blocks are present."""
        try:
            writer = namespace.layer_writer(job.chain, first=job.first, timeout_s=lookup_s)
            skipped = writer.first - job.first
            if not writer.count:
                self._end_copies(RunningSave(job), report)
                return
        except Exception as error:  # noqa: BLE001 - blocks that are not saved are misses later
            self._log.log("save", error)
            report.copied[job.number] = [False]
            return
        try:
            pages = memory.pages.blocks(job.pages[skipped * self._per_block :])
        except dalsegno.InvalidError:
            # Another request saves some of these blocks at the moment.
            report.copied[job.number] = [False]
            return
        self._in_step.append(RunningSave(job, writer, memory, pages))

    def copy_layer(self, at: int) -> None:
        """Starts to copy a layer of the step's saves."""
        for save in self._in_step:
            if at in save.layers or not save.memory.copies_layers:
                continue
            try:
                save.layers[at] = save.writer.submit_store_layer(at, save.pages)
            except Exception as error:  # noqa: BLE001 - the blocks are not saved
                self._log.log("save", error)

    def end_step(self, *, has_computed: bool) -> None:
        """Keeps those saves of which all layers are being copied, or none: they are from now on.

        Args:
            has_computed: Whether the step has computed all layers.
        """
        saves, self._in_step, after = self._in_step, [], None
        for save in saves:
            if has_computed and not save.layers:
                save.after = after = save.memory.now() if after is None else after
                self._waiting.append(save)
                continue
            if not has_computed or len(save.layers) < self._layers:
                save.give_up()
            self._copying.append(save)
        self._start_copies()

    def _start_copies(self) -> None:
        """Copies saves of which all layers are copied at once, some at a time."""
        running = sum(not save.is_copied() for save in self._copying) if self._waiting else 0
        while self._waiting and running < MOST_COPIES:
            save = self._waiting.popleft()
            try:
                writer, pages = save.writer, save.pages
                save.layers[0] = writer.submit_store_blocks(pages, after=save.after)
            except Exception as error:  # noqa: BLE001 - the blocks are not saved
                self._log.log("save", error)
                save.give_up()
            self._copying.append(save)
            running += 1

    def drain(self, report: StepReport) -> None:
        """Waits until no save that may be put reads vLLM's blocks."""
        until = time.monotonic() + DRAIN_S
        # The list grows while others are started.
        for save in self._copying:
            for one in save.layers.values() if not save.is_void else ():
                one.wait(max(0.0, until - time.monotonic()))
            if not save.is_copied():
                save.give_up()
            if time.monotonic() < until:
                self._start_copies()
        for save in self._waiting:
            save.give_up()
        self._copying += self._waiting
        self._waiting.clear()
        self.poll(report)

    def poll(self, report: StepReport) -> None:
        """Gives vLLM's blocks back that were copied, and reports how puts ended."""
        self._start_copies()
        copying, self._copying = self._copying, []
        for save in copying:
            # Asked once: it may be copied a moment later.
            if save.is_copied():
                self._end_copies(save, report)
            else:
                self._copying.append(save)
        self._poll_puts(report)

    def _poll_puts(self, report: StepReport) -> None:
        """Reports how puts ended, and starts the next one."""
        if self._put is not None:
            save, put = self._put
            if not put.done():
                return
            self._put = None
            if put.throttled:
                self._confirmed.appendleft(save)
            else:
                self._end_put(save, put, report)
        while self._confirmed and self._put is None:
            save = self._confirmed.popleft()
            try:
                put = save.writer.submit_commit(
                    timeout_s=self._timeout_s, pool_only=not save.job.is_written
                )
                self._put = (save, put)
            except Exception as error:  # noqa: BLE001 - the blocks are not saved
                report.puts[save.job.number] = [(0, save.writer.count)]
                self._log.log("save", error)

    def _end_copies(self, save: RunningSave, report: StepReport) -> None:
        """Keeps a save until it is confirmed, if all of its layers were copied."""
        save.pages = None
        try:
            for one in save.layers.values():
                one.result()
        except Exception as error:  # noqa: BLE001 - the blocks are not saved
            if not save.is_void:
                self._log.log("save", error)
            save.is_void = True
        report.copied[save.job.number] = [not save.is_void]
        if not save.is_void:
            self._copied[save.job.number] = save

    def decide(self, confirmed: Iterable[int], void: Iterable[int], report: StepReport) -> None:
        """Puts the blocks of saves that were confirmed, and drops those that are void."""
        for number in void:
            self._copied.pop(number, None)
        for number in confirmed:
            save = self._copied.pop(number, None)
            if save is None or save.writer is None:
                # Every block was present.
                report.puts[number] = [(0, 0)]
            else:
                self._confirmed.append(save)
        self._poll_puts(report)

    def _end_put(self, save: RunningSave, put: Any, report: StepReport) -> None:
        count = save.writer.count
        try:
            put.result()
            report.puts[save.job.number] = [(count, 0)]
        except Exception as error:  # noqa: BLE001 - the blocks are not saved
            report.puts[save.job.number] = [(0, count)]
            self._log.log("save", error)

    def close(self) -> None:
        """Waits for everything that reads vLLM's KV cache, and for puts that were confirmed."""
        self.end_step(has_computed=False)
        report = StepReport()
        self.drain(report)
        # Also what was given up reads it for a moment.
        for save in self._copying:
            for one in save.layers.values():
                one.wait()
        self.poll(report)
        until = time.monotonic() + DRAIN_S
        while self._put is not None and time.monotonic() < until:
            self._put[1].wait(max(0.0, until - time.monotonic()))
            self._poll_puts(report)
        self._copied.clear()
        self._confirmed.clear()
