"""What a request is promised of the blocks that the store has.

1. A step waits for blocks only if vLLM is known to compute them again rightly when their load
   fails: those in places under a lease, or those whose load is predicted to take little longer than
   the step computes. All others are loaded before the request is scheduled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm.platforms import current_platform

from dalsegno import merge_located
from dalsegno.integrations.common.deciding import Decision, Engine, LoadDecider
from dalsegno.integrations.common.meeting import BackState, Meeting
from dalsegno.integrations.common.rereads import Rereads
from dalsegno.integrations.common.steps import StepTime, StepWork
from dalsegno.integrations.common.wishes import Others, Wish, part
from dalsegno.integrations.vllm import costs
from dalsegno.integrations.vllm.direct import choice
from dalsegno.integrations.vllm.direct.planned import Awaited, PlannedLoad
from dalsegno.integrations.vllm.direct.requests import DirectRequest, Offer
from dalsegno.integrations.vllm.direct.space import DirectStore, RankNamespaces
from dalsegno.integrations.vllm.direct.step import LoadWay
from dalsegno.integrations.vllm.metrics import Meter
from dalsegno.integrations.vllm.settings import ConnectorSettings

# How long a step waits for copies from places. They take milliseconds.
IN_PLACE_S = 1.0


class Offers:
    """Makes promises to requests.

    Attributes:
        decider: Decides how many blocks are loaded.
        can_take_back: Whether blocks can be taken out of vLLM's own cache.
        may_jump: Says whether a request may go on behind blocks that are loaded while it computes.
        others: The requests of the engine.
    """

    def __init__(
        self,
        settings: ConnectorSettings,
        store: DirectStore,
        decider: LoadDecider,
        meter: Meter,
        *,
        in_steps: bool,
    ) -> None:
        """Starts without promises.

        Args:
            settings: Of the connector.
            store: The store.
            decider: Decides how many blocks are loaded.
            meter: Counts blocks that are not loaded.
            in_steps: Whether a step may wait for blocks.
        """
        self._settings, self._store, self.decider, self._meter = settings, store, decider, meter
        self._in_steps, self.can_take_back = in_steps, False
        self.may_jump: Callable[[str], bool] = lambda _: False
        self.others = Others()
        self._rereads = Rereads(decider)

    def make(
        self, ranks: RankNamespaces, state: DirectRequest, first: int, count: int
    ) -> Offer | None:
        """Decides how blocks of a request are loaded; None if they are not.

        Args:
            ranks: The namespaces of the engine.
            state: The request.
            first: Position of the first block that vLLM does not have.
            count: How many leading blocks from there on all ranks have.
        """
        self._rereads.take()
        chain = state.names[first : first + count]
        runs = merge_located([namespace.locate(chain) for namespace in ranks.values()], count)
        wish = self._wish(ranks, state, runs, first)
        offer = self._offer(ranks, state, wish, first)
        taken = 0 if offer is None else offer.count
        if taken < count and not state.declined:
            state.declined = True
            self._meter.count("load_declined_blocks", count - taken)
            if self._settings.load_policy == "auto":
                rest, computed_s = part(runs, taken), self.decider.computed_s(wish)
                spaces, loaded = list(ranks.values()), part(runs, 0, taken)
                self._rereads.offer(spaces, chain[taken:], rest, computed_s, loaded)
        return offer

    def _wish(
        self, ranks: RankNamespaces, state: DirectRequest, runs: list[tuple[str, int]], first: int
    ) -> Wish:
        """Returns what a request could load."""
        each = self.decider.engine.block_tokens
        wish = Wish(runs, first * each, state.request.num_tokens)
        self.others.describe(wish, state.request.request_id, state.saved_s)
        has_media = bool(getattr(state.request, "mm_features", None))
        wish.both_ends = not has_media and self.may_jump(state.request.request_id)
        if self._in_steps and self.can_take_back:
            if self.decider.knows_steps:
                wish.most_read = min(ranks.most_by_layer, wish.blocks)
            if runs and runs[0][0] == "dram" and not state.was_short:
                wish.most_copied = runs[0][1]
        return wish

    def _offer(
        self, ranks: RankNamespaces, state: DirectRequest, wish: Wish, first: int
    ) -> Offer | None:
        decided = self.decider.decide(wish)
        if not decided.blocks:
            return None
        most_s, delay_s = self._settings.load_timeout_s, self._settings.max_step_load_s
        offer = Offer(first, decided.blocks, LoadWay.AHEAD, most_s, runs=wish.runs)
        offer.load_s, offer.saved_s = decided.load_s, decided.saved_s
        if decided.front:
            offer.way, offer.meeting = LoadWay.BACK, self._meeting(decided, first)
            offer.timeout_s = self.decider.limit_s(decided, most_s)
            return offer
        if not decided.in_step:
            offer.timeout_s = self.decider.limit_s(decided, most_s)
            return offer
        if decided.blocks <= wish.most_copied:
            chain = state.names[first : first + decided.blocks]
            if leases := self._lease(ranks, chain):
                wait_s = max(IN_PLACE_S, 2 * delay_s)
                offer.way, offer.leases = LoadWay.COPY, leases
                offer.timeout_s = offer.wait_s = wait_s
                return offer
            # Not in places any more: what is decided without them is another question.
            state.was_short = True
            return self._offer(
                ranks, state, self._wish(ranks, state, list(wish.runs), first), first
            )
        offer.way, offer.wait_s = LoadWay.READ, decided.wait_s
        offer.layer_s = decided.step_s / self.decider.engine.layers
        offer.timeout_s = min(decided.wait_s + decided.step_s, most_s)
        return offer

    def _meeting(self, decided: Decision, first: int) -> Meeting:
        """Returns where a prompt meets its back, of which the first block has a position."""
        tokens = self.decider.engine.block_tokens
        part_s = decided.load_s * decided.part / (decided.blocks - decided.front)
        return Meeting(first * tokens, decided.blocks, decided.part, tokens, decided.front, part_s)

    @staticmethod
    def _lease(ranks: RankNamespaces, chain: list[bytes]) -> Sequence[Any]:
        """Returns blocks in their places, if all are there on all ranks."""
        leases = []
        for namespace in ranks.values():
            # Asked first: a lease would make room for blocks that are not in places.
            if all(run["tier"] == "dram" for run in namespace.locate(chain)):
                leases.append(namespace.lease(chain, timeout_s=ranks.lease_s))
                if len(leases[-1]) == len(chain):
                    continue
            for lease in leases:
                lease.release()
            return ()
        return leases

    def most_wait_s(self, state: DirectRequest, computed: int, awaited: Awaited) -> float:
        """Returns how long a request may wait in all for what is loaded for another one.

        Args:
            state: The request.
            computed: Tokens that it has.
            awaited: Its blocks behind them that are being loaded.
        """
        most_s = self._settings.load_timeout_s
        if self._settings.load_policy != "auto":
            return most_s
        end = computed + awaited.count * self.decider.engine.block_tokens
        wish = Wish([], computed, end)
        self.others.describe(wish, state.request.request_id, state.saved_s)
        computed_s = self.decider.computed_s(wish)
        is_late = awaited.left_s + self.decider.notice_s(wish) > computed_s
        return 0.0 if is_late else min(most_s, computed_s + self.decider.guard_s(wish))

    def end_back(
        self, ranks: RankNamespaces | None, planned: PlannedLoad, offer: Offer, until: float
    ) -> None:
        """Learns from the load of the back of a prompt, which has ended.

        Args:
            ranks: The namespaces of the engine.
            planned: The load.
            offer: What was promised.
            until: When the workers last said what they have loaded; 0 if they have not.
        """
        meeting = offer.meeting
        assert meeting is not None, "it was loaded from the last block on"
        low, high, state = meeting.span.low, meeting.span.high, meeting.span.state
        if low < high:
            until = meeting.span.changed_at
        elif state is not BackState.LOADING:
            # That says how long a failure takes.
            until = 0.0
        seconds = max(0.0, until - meeting.began_at)
        if meeting.span.failed_at is not None:
            seconds = 0.0
        number, runs = planned.job.number, offer.runs
        back = self.decider.end_back(number, runs, (low, high), seconds, meeting.part)
        if back is not None and ranks is not None:
            chain, front = planned.job.chain[:low], part(runs, 0, low)
            computed_s = self.decider.between_s(meeting.start, meeting.token_of(low))
            self._rereads.offer_behind(list(ranks.values()), chain, front, computed_s, back)

    def arrive(self, state: DirectRequest) -> None:
        """Notes that a request waits from now on."""
        self.others.wait(state.request.request_id, state.request.num_tokens)
        state.saved_s = self.others.saved_s

    def begin_step(self, work: StepWork | None, scheduled: Mapping[str, int]) -> None:
        """Notes that a step begins.

        Args:
            work: What it computes; None if that is not known.
            scheduled: The new tokens of its requests.
        """
        self.others.compute(scheduled)
        if opened := self._store.opened:
            self.decider.phases.begin_step(opened.store, work, computes=bool(scheduled))

    def note_steps(self, steps: Sequence[StepTime]) -> None:
        """Learns how long steps took."""
        self._rereads.take()
        for step in steps:
            self.decider.note_step(step)

    def begin(self, number: int, offer: Offer, count: int) -> None:
        """Notes that a promise is kept: a load begins.

        Args:
            number: Of the load.
            offer: What was promised.
            count: How many blocks are loaded.
        """
        first = offer.meeting.front if offer.meeting else 0
        self.decider.begin_load(number, offer.runs, count, first)
        self._rereads.note_loaded(part(offer.runs, first, count))
        if offer.meeting is None:
            self.others.saved_s += offer.saved_s


def create(
    settings: ConnectorSettings, vllm_config: Any, store: DirectStore, meter: Meter
) -> Offers:
    """Creates what makes promises for an engine.

    Args:
        settings: Of the connector.
        vllm_config: vLLM's configuration.
        store: The store.
        meter: Counts blocks that are not loaded.
    """
    platform = choice.platform_of(current_platform)
    chunk = choice.most_tokens(vllm_config.scheduler_config)
    engine = Engine(store.layers, store.block_bytes, store.tokens, chunk, settings.max_step_load_s)
    token_bytes = store.block_bytes / store.tokens
    decider = costs.create_decider(settings, vllm_config, engine, token_bytes, store.place)
    in_steps = choice.loads_in_steps(vllm_config, platform)
    return Offers(settings, store, decider, meter, in_steps=in_steps)
