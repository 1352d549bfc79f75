"""The scheduler's half of both ends: prompts whose front is computed while their back is loaded.

1. vLLM is promised nothing: the request computes as if nothing was loaded. When its front has met
   its back, it goes on behind the back. So a load that fails or is late costs nothing.
2. A request has the blocks of its back from the start, and they count against what others are
   given. vLLM's own cache gets them when the request has passed them.
3. The end of a load is in the plan of the first step that may use its blocks for anything else.
   What is heard of a load after its end is ignored: each has a number of its own.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from vllm.v1.request import RequestStatus

from dalsegno.integrations.common.meeting import BackSpan, BackState, Meeting
from dalsegno.integrations.vllm.calls import Calls
from dalsegno.integrations.vllm.direct.offering import Offers
from dalsegno.integrations.vllm.direct.planned import PlannedLoad, PlannedLoads
from dalsegno.integrations.vllm.direct.requests import DirectRequest, Offer
from dalsegno.integrations.vllm.direct.space import DirectStore
from dalsegno.integrations.vllm.direct.step import StepPlan, StepReport
from dalsegno.integrations.vllm.metrics import Meter


class Jump(NamedTuple):
    """A request whose front has met its back.

    Attributes:
        state: The request.
        tokens: How many of its tokens are there.
        first: Position in the prompt of the first block that could have been loaded.
        end: Position behind the last one that was.
        front: How many blocks were computed until then, of those that could have been loaded.
        predicted: How many should have been.
    """

    state: DirectRequest
    tokens: int
    first: int
    end: int
    front: float
    predicted: int


@dataclass
class _Running:
    """A load of the back of a prompt.

    Attributes:
        meeting: Where the front meets it.
        planned: The load.
        offer: What was promised.
        reported_at: When the workers last said what they have loaded, in seconds of the monotonic
            clock; 0 if they have not.
        is_learned: Whether its costs are known.
    """

    meeting: Meeting
    planned: PlannedLoad
    offer: Offer
    reported_at: float = 0.0
    is_learned: bool = False


class BothEnds:
    """All prompts of which both ends are under way."""

    def __init__(
        self,
        requests: Mapping[str, DirectRequest],
        store: DirectStore,
        offers: Offers,
        loads: PlannedLoads,
        calls: Calls,
        meter: Meter,
    ) -> None:
        """Starts without any.

        Args:
            requests: All requests that may use the store.
            store: Where the blocks are.
            offers: Promises blocks, and learns what loads cost.
            loads: All loads of the engine.
            calls: Catches exceptions.
            meter: Counts what is jumped over.
        """
        self._requests, self._store, self._offers = requests, store, offers
        self._loads, self._calls, self._meter = loads, calls, meter
        self._manager: Any = None
        self._running: dict[str, _Running] = {}
        # Loads that the next step ends.
        self._stopped: list[int] = []

    def join(self, manager: Any) -> None:
        """Notes that vLLM's scheduler lets requests jump.

        Args:
            manager: Its `KVCacheManager`.
        """
        self._manager = manager
        self._offers.may_jump = lambda request_id: not self._has_rivals(request_id)

    @property
    def is_possible(self) -> bool:
        """Whether vLLM's scheduler lets requests jump."""
        return self._manager is not None

    @property
    def is_busy(self) -> bool:
        """Whether a worker must hear that a load has ended."""
        return bool(self._stopped)

    def allocate(self, request: Any, offer: Offer) -> list[int]:
        """Gives a request that was just admitted the blocks of its back; returns all it has.

        Args:
            request: vLLM's request.
            offer: What it was promised.

        Returns:
            Nothing if vLLM has not so many blocks.
        """
        assert offer.meeting is not None, "it is loaded from the last block on"
        if request.num_computed_tokens:
            # vLLM would count the tokens from another place.
            return []
        end = offer.meeting.token_of(offer.count)
        if self._manager.allocate_slots(request, end, delay_cache_blocks=True) is None:
            self._meter.count("load_declined_blocks", offer.count)
            return []
        (pages,) = self._manager.get_block_ids(request.request_id)
        return list(pages)

    def begin(self, planned: PlannedLoad, offer: Offer) -> None:
        """Notes that a load begins."""
        assert offer.meeting is not None, "it is loaded from the last block on"
        assert planned.job.request_id not in self._running, "an earlier load has ended"
        offer.meeting.begin(time.monotonic())
        self._running[planned.job.request_id] = _Running(offer.meeting, planned, offer)

    def chunk(self, request_id: str, computed: int, most: int) -> int:
        """Returns how many tokens of a request a step computes.

        Args:
            request_id: vLLM's name of the request.
            computed: Tokens that are computed.
            most: Tokens that the step could compute.
        """
        return self._calls.safely("chunk", lambda: self._chunk(request_id, computed, most), most)

    def _chunk(self, request_id: str, computed: int, most: int) -> int:
        running, state = self._running.get(request_id), self._requests.get(request_id)
        now, meeting = time.monotonic(), None
        if running is not None:
            meeting = running.meeting
        elif state is not None and state.offer is not None and state.offer.meeting is not None:
            # It begins with this step, if vLLM has blocks for it.
            meeting = state.offer.meeting
            meeting.begin(now)
        if meeting is None or most <= 0 or self._has_rivals(request_id):
            return most
        seconds = self._offers.decider.between_s
        may_wait = running is not None and not self._offers.others.are_beside(request_id)
        return meeting.chunk(computed, most, now, seconds, may_wait=may_wait)

    def _has_rivals(self, request_id: str) -> bool:
        """Whether others would compute their prompts with what a request leaves of a step."""
        return (
            self._offers.others.wait_beside(request_id)
            or self._loads.are_of_others(request_id)
            or any(
                name != request_id and state.is_computing_prompt
                for name, state in self._requests.items()
            )
        )

    def take(self, report: StepReport) -> None:
        """Takes what workers report."""
        for running in self._running.values():
            spans = report.backs.get(running.planned.job.number, ())
            # All workers must have a block.
            if len(spans) == self._loads.workers:
                running.meeting.span = functools.reduce(BackSpan.joined, spans)
                running.reported_at = time.monotonic()
                if running.meeting.span.state is not BackState.LOADING:
                    self._learn(running)

    def _learn(self, running: _Running) -> None:
        """Learns from a load that brings no more blocks."""
        if not running.is_learned:
            running.is_learned = True
            ranks, until = self._store.ranks, running.reported_at
            self._calls.safely(
                "end_load",
                lambda: self._offers.end_back(ranks, running.planned, running.offer, until),
                None,
            )

    def jumps(self) -> list[Jump]:
        """Returns the requests that go on behind their backs, whose loads it ends.

        Loads that are of no use any more end, too.
        """
        return self._calls.safely("jumps", self._jumps, [])

    def _jumps(self) -> list[Jump]:
        found = []
        for request_id, running in list(self._running.items()):
            planned, meeting = running.planned, running.meeting
            request = planned.request.request
            computed = request.num_computed_tokens
            tokens = meeting.target(computed)
            is_void = planned.job.number <= self._loads.void_up_to
            if is_void or meeting.is_lost(computed):
                self.end(request_id)
            elif tokens is not None:
                found.append(self._jump(running, computed, tokens))
        return found

    def _jump(self, running: _Running, computed: int, tokens: int) -> Jump:
        meeting, meter = running.meeting, self._meter
        state, count = running.planned.request, meeting.loaded
        size = count * self._store.block_bytes * len(self._store.ranks or ())
        meter.count("loaded_blocks", count)
        meter.count("loaded_bytes", size)
        meter.count("load_declined_blocks", meeting.span.low)
        meter.count("jumped_tokens", tokens - computed)
        meter.observe("meeting_point", (computed - meeting.start) / (tokens - meeting.start))
        self._offers.others.saved_s += self._offers.decider.between_s(computed, tokens)
        span, first = meeting.span, running.planned.first
        self.end(state.request.request_id, has_jumped=True)
        front = (computed - meeting.start) / meeting.tokens
        return Jump(state, tokens, first, first + span.high, front, meeting.front)

    def end(self, request_id: str, *, has_jumped: bool = False) -> None:
        """Ends the load of a request, if there is one.

        Args:
            request_id: vLLM's name of the request.
            has_jumped: Whether it goes on behind what was loaded.
        """
        running = self._running.pop(request_id, None)
        if running is None:
            return
        planned, failed_at = running.planned, running.meeting.span.failed_at
        state = planned.request
        # First of all: its blocks may be given away.
        self._stopped.append(planned.job.number)
        self._loads.drop(planned.job.number)
        if failed_at is not None:
            # It may not be in the store any more: it is computed, and saved again.
            state.next_save = min(state.next_save, planned.first + failed_at)
            self._loads.note_failing(planned.job.chain[failed_at : failed_at + 1])
            self._meter.count("load_failed_blocks")
        if not has_jumped:
            # Routers hear of its blocks when they are saved, as of any that were computed.
            state.next_save = min(state.next_save, planned.first)
            self._meter.count("load_declined_blocks", running.meeting.blocks)
        self._learn(running)

    def plan(self, plan: StepPlan, output: Any) -> None:
        """Adds to the plan of a step what its workers must know.

        Args:
            plan: Of the step.
            output: vLLM's `SchedulerOutput`.
        """
        preempted = set(getattr(output, "preempted_req_ids", None) or ())
        preempted |= set(getattr(output.scheduled_cached_reqs, "resumed_req_ids", None) or ())
        begun = {job.number for job in plan.loads}
        for request_id, running in list(self._running.items()):
            # One that was preempted may have been admitted again in the same step.
            is_new = running.planned.job.number in begun
            if not is_new and (request_id in preempted or not _runs(running.planned)):
                self.end(request_id)
        plan.stopped, self._stopped = self._stopped, []
        for request_id, running in self._running.items():
            request = running.planned.request.request
            scheduled = output.num_scheduled_tokens.get(request_id, 0)
            frontier = running.meeting.frontier(request.num_computed_tokens + scheduled)
            plan.frontiers[running.planned.job.number] = frontier


def _runs(planned: PlannedLoad) -> bool:
    """Whether vLLM computes a request, so that its blocks are its own."""
    return bool(planned.request.request.status == RequestStatus.RUNNING)
