"""What each step saves of the blocks that it fills.

1. vLLM may give away blocks that are still being saved. Then the step that may write them waits for
   the copies, at most a second.
2. Saves that were given up are planned again, `MOST_RETRIES` times for a request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dalsegno.integrations.common.keeping import SaveDecider
from dalsegno.integrations.vllm.direct.planned import PlannedSave, PlannedSaves
from dalsegno.integrations.vllm.direct.requests import DirectRequest
from dalsegno.integrations.vllm.direct.space import DirectStore
from dalsegno.integrations.vllm.direct.step import StepPlan, StepReport
from dalsegno.integrations.vllm.metrics import Meter

# How often a request tries again to save blocks that were given up.
MOST_RETRIES = 8


@dataclass(frozen=True)
class SaveShape:
    """What an engine saves.

    Attributes:
        workers: How many workers save each block.
        hashes_per_block: How many of vLLM's hashes a block of the store has.
        pages_per_block: How many of vLLM's blocks a block of the store has.
        prompt_only: Whether only blocks of prompts are saved.
    """

    workers: int
    hashes_per_block: int
    pages_per_block: int
    prompt_only: bool


class SavePlanner:
    """Plans the saves of all requests.

    Attributes:
        under_way: Those that have not ended.
    """

    def __init__(
        self, store: DirectStore, keeping: SaveDecider, meter: Meter, shape: SaveShape
    ) -> None:
        """Starts with none.

        Args:
            store: Where blocks are saved.
            keeping: Decides which ones are written to the disk.
            meter: Counts them.
            shape: What blocks are.
        """
        self._store, self._keeping, self._meter, self._shape = store, keeping, meter, shape
        self.under_way = PlannedSaves(shape.workers)

    def settle(self, plan: StepPlan) -> None:
        """Confirms or voids what was copied."""
        dropped = self.under_way.decide(plan)
        dropped.sort(key=lambda save: save.job.first, reverse=True)
        # The first one of each request.
        for save in {save.request.request.request_id: save for save in dropped}.values():
            if save.request.retries < MOST_RETRIES:
                save.request.retries += 1
                save.request.next_save = min(save.request.next_save, save.job.first)

    def plan(
        self,
        plan: StepPlan,
        requests: Mapping[str, DirectRequest],
        scheduled: Mapping[str, int],
        most: int,
    ) -> None:
        """Plans to save the blocks that a step fills.

        Args:
            plan: Of the step.
            requests: All that may be saved.
            scheduled: Tokens that the step computes, by request.
            most: Blocks of one save.
        """
        for request_id, count in scheduled.items():
            if state := requests.get(request_id):
                self._plan(plan, state, state.request.num_computed_tokens + count, most)

    def _plan(self, plan: StepPlan, state: DirectRequest, computed: int, most: int) -> None:
        """Plans to save the blocks that a request has filled after a step, so many in a save."""
        each, per_block = self._shape.pages_per_block, self._store.tokens
        names = state.names_of_blocks(self._shape.hashes_per_block, per_block)
        tokens = state.savable_tokens(computed, prompt_only=self._shape.prompt_only)
        end = min(tokens // per_block, len(names), len(state.pages) // each)
        if end <= state.next_save or state.is_stale:
            return
        is_written = self._keeping.writes(state.request.num_tokens)
        if not is_written:
            self._meter.count("saves_declined", end - state.next_save)
        for first in range(state.next_save, end, most):
            last = min(first + most, end)
            pages = state.pages[first * each : last * each]
            job = self.under_way.add(state, names[:last], first, pages, is_written=is_written)
            plan.saves.append(job)
        state.next_save = end

    def take(
        self, report: StepReport, announce: Callable[[DirectRequest, int, int], None]
    ) -> Sequence[PlannedSave]:
        """Takes what workers report; returns the saves whose puts have ended on all of them.

        Args:
            report: Of the workers.
            announce: Lets routers know of blocks of a request.
        """
        saves = self.under_way.take(report)
        for save in saves:
            # Also of blocks that were there before.
            announce(save.request, save.job.first, len(save.job.chain))
            taken = min(count for count, _ in save.puts)
            self._meter.count("stored_blocks", taken)
            self._meter.count("stored_bytes", taken * self._store.block_bytes * len(save.puts))
            self._meter.count("store_failed_blocks", max(count for _, count in save.puts))
        return saves
