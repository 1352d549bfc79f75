"""The scheduler's half: finds blocks, and decides what each step loads and saves.

1. A request is promised blocks inside a step only if vLLM is known to compute them again rightly
   when their load fails: if they lie in places under a lease, or if the step computes for about as
   long as they take. All others are loaded before the request is scheduled, and their errors are
   known by then.
2. A request waits for blocks that are loaded for another one, and finds them in vLLM's own cache,
   as long as one load may take; by the policy `auto` only if computing them would take longer.
3. A promise that cannot be kept any more becomes a load that fails: vLLM computes those blocks. If
   that happens inside a step, they are taken out of vLLM's own cache.
4. A block is a hit only if all ranks have it.
5. No exception leaves a call: it becomes a miss, a counter and at most one log line per 30 s.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.utils import yield_req_data
from vllm.logger import init_logger

from dalsegno.integrations.common.keeping import SaveDecider
from dalsegno.integrations.common.steps import StepWork, work_of
from dalsegno.integrations.vllm import inputs, metrics
from dalsegno.integrations.vllm.calls import Calls
from dalsegno.integrations.vllm.direct import offering, space
from dalsegno.integrations.vllm.direct.announcing import Announcer
from dalsegno.integrations.vllm.direct.both_ends import BothEnds, Jump
from dalsegno.integrations.vllm.direct.planned import PlannedLoad, PlannedLoads
from dalsegno.integrations.vllm.direct.requests import DirectRequest, Offer
from dalsegno.integrations.vllm.direct.save_planning import SavePlanner, SaveShape
from dalsegno.integrations.vllm.direct.space import DirectStore
from dalsegno.integrations.vllm.direct.step import (
    LoadJob,
    LoadWay,
    StepPlan,
    StepReport,
)
from dalsegno.integrations.vllm.settings import FAIL_WARNING, ConnectorSettings

logger = init_logger("vllm.dalsegno")


class DirectScheduler:
    """Decides what is loaded and saved.

    Attributes:
        both_ends: The prompts whose front is computed while their back is loaded.
    """

    def __init__(self, settings: ConnectorSettings, config: Any, vllm_config: Any) -> None:
        """Opens the store.

        Args:
            settings: Of the connector.
            config: vLLM's `OffloadingConfig`.
            vllm_config: vLLM's configuration.

        Raises:
            InvalidError: The configuration is wrong.
            IncompatibleError: The store or the model cannot be used with this version.
        """
        self._settings, self._model = settings, vllm_config.model_config
        self._requests: dict[str, DirectRequest] = {}
        self._meter = metrics.Meter()
        self._refusals = inputs.Refusals()
        self._plan = StepPlan()
        ranks = config.parallel.world_size
        self._loads = PlannedLoads(ranks, settings.failed_load_pause_s)
        self._store = DirectStore(settings, config, self._void)
        self._offers = offering.create(settings, vllm_config, self._store, self._meter)
        self._keeping = SaveDecider(settings.min_gain, self._offers.decider, self._store.has_far)
        self._calls = Calls(self._meter, self._store.report_poisoned)
        self._announcer = Announcer(settings, config, self._store.tokens, self._meter)
        self._evict: Callable[[set[int]], None] = lambda _: None
        self._has_prefix_cache = vllm_config.cache_config.enable_prefix_caching
        self._pages_per_block = config.cache.blocks_per_chunk
        self._hashes_per_block = self._store.tokens // config.cache.tokens_per_hash
        shape = SaveShape(
            workers=len(space.names_of_ranks(config)),
            hashes_per_block=self._hashes_per_block,
            pages_per_block=self._pages_per_block,
            prompt_only=settings.offload_prompt_only,
        )
        self._planner = SavePlanner(self._store, self._keeping, self._meter, shape)
        self._saves = self._planner.under_way
        parts = (self._store, self._offers, self._loads, self._calls, self._meter)
        self.both_ends = BothEnds(self._requests, *parts)
        inputs.warn_of_random_hashes()
        if vllm_config.kv_transfer_config.kv_load_failure_policy == "fail":
            logger.warning(FAIL_WARNING)

    def bind(self, cache: Any) -> None:
        """Takes vLLM's own cache: only if blocks can be taken out of it may step loads fail.

        Args:
            cache: vLLM's `KVCacheManager`, or its `BlockPool`.
        """
        evict = getattr(cache, "evict_blocks", None)
        if evict is not None:
            self._evict, self._offers.can_take_back = evict, True

    def jumps(self) -> list[Jump]:
        """Returns the requests that go on behind their backs, whose loads it ends."""
        found = self.both_ends.jumps()
        for jump in found:
            self._announce(jump.state, jump.first, jump.end)
        return found

    def on_new_request(self, request: Any) -> None:
        """Starts to remember what is known about a request, unless it must not use the store."""
        try:
            content = inputs.examine(request, self._model)
        except Exception as error:  # noqa: BLE001 - what cannot be examined is refused
            self._refusals.note(str(error))
            self._meter.count("bypassed_requests")
            self._offers.others.wait(request.request_id, request.num_tokens)
            return
        state = self._requests[request.request_id] = DirectRequest(request, content)
        self._offers.arrive(state)

    def matched_tokens(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """Returns how many tokens can be loaded behind the computed ones, and whether it waits.

        Args:
            request: vLLM's request.
            computed: Tokens that vLLM has itself, whole blocks.
        """
        # It does not run any more, and its blocks may be given away.
        self.both_ends.end(request.request_id)
        miss: tuple[int | None, bool] = (0, False)
        return self._calls.safely("lookup", lambda: self._match_or_wait(request, computed), miss)

    def _match_or_wait(self, request: Any, computed: int) -> tuple[int | None, bool]:
        per_hash = self._store.tokens // self._hashes_per_block
        if self._loads.fills(request.block_hashes[: computed // per_hash]):
            # A step is loading blocks that vLLM takes for computed.
            return None, False
        state = self._requests.get(request.request_id)
        return (0, False) if state is None else self._match(state, computed)

    def _match(self, state: DirectRequest, computed: int) -> tuple[int | None, bool]:
        state.offer = None
        ranks, tokens = self._store.ranks, self._store.tokens
        names = state.names_of_blocks(self._hashes_per_block, tokens)
        if ranks is None or computed % tokens or not state.may_load:
            return 0, False
        # One token is always computed.
        last = (state.loadable_tokens(computed) - 1) // tokens
        wanted = names[computed // tokens : last]
        if self._has_prefix_cache and (awaited := self._loads.awaited(wanted)):
            is_first = state.deferred_at is None
            if state.may_defer(self._offers.most_wait_s(state, computed, awaited)):
                self._meter.count("deferred_lookups", int(is_first))
                return None, False
            if state.deferred_s:
                return 0, False
        state.deferred_at = None
        wanted = self._loads.without_failing(wanted)
        found = len(wanted)
        for namespace in ranks.values():
            found = namespace.probe(wanted[:found]) if found else 0
        if wanted and not state.counted:
            state.counted = True
            self._meter.count("lookup_blocks", found, "hit")
            self._meter.count("lookup_blocks", len(wanted) - found, "miss")
        if not found:
            return 0, False
        offer = state.offer = self._offers.make(ranks, state, computed // tokens, found)
        if offer is None or offer.way is LoadWay.BACK:
            return 0, False
        return offer.count * tokens, offer.way is LoadWay.AHEAD

    def allocated(self, request: Any, pages: list[int], tokens: int) -> None:
        """Plans the load of what a request was promised, now that it has blocks.

        Args:
            request: vLLM's request.
            pages: All of its blocks, if tokens are to be loaded.
            tokens: Tokens to load, 0 for none.
        """
        state = self._requests.get(request.request_id)
        if state is None:
            return
        offer, state.offer = state.offer, None
        if tokens:
            self._offers.others.begin(request.request_id)
        if offer is None or bool(tokens) is (offer.way is LoadWay.BACK):
            return
        count = min(offer.count, tokens // self._store.tokens)
        if offer.way is LoadWay.BACK:
            pages, count = self.both_ends.allocate(request, offer), offer.count
        if pages:
            self._begin_load(state, offer, pages, count)

    def _begin_load(self, state: DirectRequest, offer: Offer, pages: list[int], count: int) -> None:
        """Plans the load of so many blocks that a request was promised, into its pages."""
        request = state.request
        each, per, end = self._pages_per_block, self._hashes_per_block, offer.first + count
        job = LoadJob(
            number=self._loads.next_number(),
            request_id=request.request_id,
            chain=state.names[offer.first : end],
            pages=pages[offer.first * each : end * each],
            timeout_s=offer.timeout_s,
            wait_s=offer.wait_s,
            layer_s=offer.layer_s,
            way=offer.way,
            lease=offer.leases[0] if offer.leases else None,
            is_void=offer.is_void,
            part=offer.meeting.part if offer.meeting else 0,
        )
        hashes = list(map(bytes, request.block_hashes[offer.first * per : end * per]))
        behind = pages[offer.first * each :]
        planned = PlannedLoad(job, state, hashes, behind, offer.first, offer.leases)
        self._loads.add(planned, offer.load_s)
        if not (offer.meeting and self._keeping.has_declined):
            # Else some may be in the pool only. A step that computes or jumps may save them.
            state.next_save = max(state.next_save, end)
        self._offers.begin(job.number, offer, count)
        if offer.meeting:
            self.both_ends.begin(planned, offer)
        self._plan.loads.append(job)
        self._plan.must_drain |= self._saves.read(job.pages)
        if job.is_in_step:
            self._meter.count("step_loads")

    def plan(self, output: Any) -> StepPlan:
        """Returns what the step loads and saves.

        Args:
            output: vLLM's `SchedulerOutput`.
        """
        plan, self._plan = self._plan, StepPlan()
        plan.void_loads = self._loads.void_up_to
        self.both_ends.plan(plan, output)
        self._calls.safely("build_connector_meta", lambda: self._plan_saves(plan, output), None)
        return plan

    def _plan_saves(self, plan: StepPlan, output: Any) -> None:
        ranks = self._store.ranks
        plan.space = None if ranks is None else ranks.space
        plan.work = self._work(output.num_scheduled_tokens)
        self._planner.settle(plan)
        self._note_pages(plan, output)
        self._offers.begin_step(plan.work, output.num_scheduled_tokens)
        if output.num_scheduled_tokens:
            self._store.note_use()
        if ranks is not None:
            self._planner.plan(plan, self._requests, output.num_scheduled_tokens, ranks.most_saved)

    def _work(self, scheduled: Mapping[str, int]) -> StepWork | None:
        """Returns what a step computes; None for nothing, or if it has unknown requests."""
        known = [self._requests.get(request_id) for request_id in scheduled]
        if None in known:
            return None
        before = [state.request.num_computed_tokens for state in known if state]
        return work_of(zip(before, scheduled.values(), strict=True))

    def _note_pages(self, plan: StepPlan, output: Any) -> None:
        """Notes which blocks vLLM gave to requests in this step, or took from them."""
        preempted = set(getattr(output, "preempted_req_ids", None) or ())
        for request_id in preempted:
            self._offers.others.wait(request_id)
            if state := self._requests.get(request_id):
                state.forget_pages()
                self._offers.arrive(state)
        for request_id, groups, is_resumed in yield_req_data(output):
            given = groups[0] if groups else []
            # Also blocks of requests that keep away from the store are written.
            plan.must_drain |= self._saves.read(given)
            self._offers.others.begin(request_id)
            if state := self._requests.get(request_id):
                if is_resumed and state.pages:
                    # A version that does not say when it takes blocks.
                    state.forget_pages()
                state.pages += given

    def update(self, output: Any) -> None:
        """Takes what the workers report.

        Args:
            output: vLLM's `KVConnectorOutput`.
        """
        self._calls.safely("update_connector_output", lambda: self._update(output), None)

    def _update(self, output: Any) -> None:
        if invalid := set(getattr(output, "invalid_block_ids", None) or ()):
            self._note_invalid(invalid)
        report = getattr(output, "kv_connector_worker_meta", None)
        if not isinstance(report, StepReport):
            return
        # Each part for itself: what fails in one must not leave the others undone.
        if report.refusal:
            self._calls.safely("refuse", lambda: self._store.refuse(report.refusal), None)
        for load in self._loads.take(report):
            self._calls.safely("end_load", functools.partial(self._end_load, load), None)
        self._calls.safely("take_spans", lambda: self.both_ends.take(report), None)
        self._calls.safely("end_saves", lambda: self._end_saves(report), None)
        self._calls.safely("note_steps", lambda: self._offers.note_steps(report.steps), None)

    def _end_saves(self, report: StepReport) -> None:
        """Notes what became of saves."""
        for save in self._planner.take(report, self._announce):
            self._loads.forgive(save.job.chain[save.job.first :])

    def _note_invalid(self, invalid: set[int]) -> None:
        """Lets requests compute and save blocks again that were not loaded."""
        each = self._pages_per_block
        for state in self._requests.values():
            bad = next((at for at, page in enumerate(state.pages) if page in invalid), None)
            if bad is not None:
                state.next_save = min(state.next_save, bad // each)

    def _end_load(self, load: PlannedLoad) -> None:
        """Notes what a load has brought."""
        job, loaded = load.job, load.loaded
        is_whole = loaded == len(job.chain)
        decider = self._offers.decider
        decider.end_load(job.number, load.seconds, is_whole=is_whole, was_late=load.was_late)
        self._meter.count("loaded_blocks", loaded)
        self._meter.count(
            "loaded_bytes", sum(end.count for end in load.ends) * self._store.block_bytes
        )
        self._meter.count("load_failed_blocks", len(job.chain) - loaded)
        self._announce(load.request, load.first, load.first + loaded)
        state = load.request
        if is_whole:
            if self._keeping.has_declined:
                # Some may be in the pool only. The step that loads them cannot copy them.
                state.next_save = min(state.next_save, load.first)
            return
        state.was_refused |= load.was_refused
        if job.is_in_step:
            # Steps that were planned before this was known have computed from missing blocks.
            self._saves.void()
            bad = loaded * self._pages_per_block
            pages = {*load.pages[bad:], *state.pages[load.first * self._pages_per_block + bad :]}
            # vLLM keeps them in its own cache, as if they were computed.
            self._evict(pages)
        state.next_save = min(state.next_save, load.first + loaded)

    def _announce(self, state: DirectRequest, first: int, end: int) -> None:
        """Lets routers know of blocks of a request, if the store has them."""
        opened = self._store.opened
        self._calls.safely(
            "announce", lambda: self._announcer.announce(opened, state, first, end), None
        )

    def take_events(self) -> list[Any]:
        """Returns the KV events of this step."""
        return self._calls.safely(
            "take_events", lambda: self._announcer.take(self._store.opened), []
        )

    def finished(self, request: Any) -> None:
        """Forgets a request."""
        self.both_ends.end(request.request_id)
        state = self._requests.pop(request.request_id, None)
        self._offers.others.end(request.request_id)
        ranks = self._store.ranks
        if ranks is None or state is None or not state.names:
            return
        for namespace in ranks.values():
            self._calls.safely("touch", functools.partial(namespace.touch, state.names), 0)

    def has_work(self) -> bool:
        """Whether vLLM must keep stepping, so that loads, saves, events and metrics end."""
        is_busy = self._loads.is_busy or self._saves.is_busy or self.both_ends.is_busy
        return is_busy or self._meter.is_stale() or self._announcer.is_pending()

    def reset(self) -> None:
        """Forgets every block: vLLM's caches are reset, as its weights may have changed."""
        self._plan.must_drain = True
        self._void()
        for state in self._requests.values():
            # Unless it is preempted now.
            state.is_stale = bool(state.pages or state.next_save)
        self._announcer.withdraw_all()
        has_puts = self._saves.is_busy
        self._calls.safely("reset_cache", lambda: self._store.renew(has_puts=has_puts), None)

    def _void(self) -> None:
        """Lets nothing be loaded that was promised, nor be put that is not confirmed."""
        self._saves.void()
        self._loads.void()
        for state in list(self._requests.values()):
            if state.offer is not None:
                state.offer.is_void = True

    def take_stats(self) -> Any:
        """Returns what was counted since the last call."""
        return self._calls.safely("get_stats", lambda: self._meter.take(self._store.stats), None)

    def close(self) -> None:
        """Closes the store; no transfer may be in flight."""
        self._offers.decider.close()
        self._store.close()
