"""The scheduler's half: finds blocks, and decides what each step loads and saves.

1. A request is promised blocks inside a step only if they lie in places under a lease. All others
   are loaded before the request is scheduled, and their errors are known by then.
2. A block that is being loaded for one request is not loaded for another one: that waits, at most
   as long as the load may take, and finds the block in vLLM's own cache.
3. vLLM may give away blocks that are still being saved. Then the step that may write them waits for
   the copies, which take milliseconds.
4. A promise that cannot be kept any more becomes a load that fails: vLLM computes those blocks.
5. After a step load has failed, nothing is saved before vLLM has taken back what it computed
   without the missing blocks.
6. No exception leaves a call: it becomes a miss, a counter and at most one log line per 30 s.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from vllm.distributed.kv_transfer.kv_connector.utils import yield_req_data
from vllm.logger import init_logger

from dalsegno import PoisonedError
from dalsegno.integrations.common.trouble import Trouble
from dalsegno.integrations.vllm import inputs, metrics
from dalsegno.integrations.vllm.direct.choice import StepRule
from dalsegno.integrations.vllm.direct.space import DirectStore
from dalsegno.integrations.vllm.direct.step import LoadJob, SaveJob, StepPlan, StepReport
from dalsegno.integrations.vllm.settings import FAIL_WARNING, ConnectorSettings

logger = init_logger("vllm.dalsegno")

# A put by layer fits into one extent, and several of them into the memory in which layers gather.
SAVE_BYTES = 8 << 20
# Blocks whose failed loads are remembered.
MOST_FAILING = 4096

_T = TypeVar("_T")


@dataclass
class Offer:
    """What a request was promised.

    Attributes:
        first: Position of the first promised block in the prompt.
        count: Number of blocks.
        lease: The blocks in their places, if they may be loaded inside the step.
        is_void: Whether they must not be loaded any more.
    """

    first: int
    count: int
    lease: Any = None
    is_void: bool = False


@dataclass
class DirectRequest:
    """What is known about a request.

    Attributes:
        request: vLLM's.
        content: Its media; None without.
        names: Names of its blocks, as far as they are known.
        pages: vLLM's blocks, in the order of the prompt.
        offer: What it was promised last.
        next_save: Position of the first block that is neither loaded nor saved.
        counted: How many of its blocks were counted as looked up.
    """

    request: Any
    content: inputs.Content | None
    names: list[bytes] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    offer: Offer | None = None
    next_save: int = 0
    counted: int = 0

    def forget_pages(self) -> None:
        """Notes that vLLM took its blocks, and computes all of it again."""
        self.pages.clear()
        self.next_save = 0


class DirectScheduler:
    """Decides what is loaded and saved."""

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
        self._meter, self._log = metrics.Meter(), Trouble(logger)
        self._admissions = inputs.Admissions()
        self._rule = StepRule(settings.max_step_load_s)
        self._plan = StepPlan()
        self._next_save = 0
        # Bytes of the step loads that are planned.
        self._step_bytes = 0
        # Names of blocks that are being loaded, and until when others wait for them.
        self._loading: dict[bytes, float] = {}
        # Names of blocks whose load has failed, and until when no other one tries.
        self._failing: dict[bytes, float] = {}
        self._loads: dict[str, LoadJob] = {}
        self._saves: dict[int, SaveJob] = {}
        # vLLM's blocks that are being saved.
        self._reading: Counter[int] = Counter()
        self._seen_failures, self._committing = 0, 0
        self._store = DirectStore(settings, config, self._void_offers)
        self._most_saved = max(1, SAVE_BYTES // self._store.block_bytes)
        self._has_prefix_cache = vllm_config.cache_config.enable_prefix_caching
        self._pages_per_block = config.cache.blocks_per_chunk
        self._hashes_per_block = self._store.tokens // config.cache.tokens_per_hash
        self._prompt_only = settings.offload_prompt_only
        inputs.warn_of_random_hashes()
        if vllm_config.kv_transfer_config.kv_load_failure_policy == "fail":
            logger.warning(FAIL_WARNING)

    def on_new_request(self, request: Any) -> None:
        """Starts to remember what is known about a request, unless it must not use the store."""
        try:
            content = inputs.examine(request, self._model)
        except Exception as error:  # noqa: BLE001 - what cannot be examined is refused
            self._admissions.refuse(request.request_id, str(error))
            self._admissions.take(request.request_id)
            self._meter.count("bypassed_requests")
            return
        self._requests[request.request_id] = DirectRequest(request, content)

    def matched_tokens(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """Returns how many tokens can be loaded behind the computed ones, and whether it waits.

        Args:
            request: vLLM's request.
            computed: Tokens that vLLM has itself, whole blocks.
        """
        state = self._requests.get(request.request_id)
        if state is None:
            return 0, False
        miss: tuple[int | None, bool] = (0, False)
        return self._safely("lookup", lambda: self._match(state, computed), miss)

    def _match(self, state: DirectRequest, computed: int) -> tuple[int | None, bool]:
        state.offer = None
        namespace, tokens = self._store.namespace, self._store.tokens
        if namespace is None or computed % tokens or not _may_load(state.request):
            return 0, False
        # One token is always computed.
        last = (self._loadable_tokens(state) - 1) // tokens
        wanted = self._names(state)[computed // tokens : last]
        if wanted and self._has_prefix_cache and _is_before(self._loading, wanted[0]):
            self._meter.count("deferred_lookups")
            return None, False
        failing = (at for at, name in enumerate(wanted) if _is_before(self._failing, name))
        wanted = wanted[: next(failing, len(wanted))]
        if not wanted:
            return 0, False
        found = namespace.probe(wanted)
        if len(wanted) > state.counted:
            state.counted = len(wanted)
            self._meter.count("lookup_blocks", found, "hit")
            self._meter.count("lookup_blocks", len(wanted) - found, "miss")
        if not found:
            return 0, False
        lease = self._lease(namespace, wanted[:found])
        state.offer = Offer(computed // tokens, found, lease)
        return found * tokens, lease is None

    def _loadable_tokens(self, state: DirectRequest) -> int:
        """Returns the tokens of a request that it allows to be loaded."""
        request = state.request
        most = (getattr(request, "kv_transfer_params", None) or {}).get("max_load_tokens")
        tokens: int = request.num_tokens
        return min(tokens, most + 1) if type(most) is int and most >= 0 else tokens

    def _names(self, state: DirectRequest) -> list[bytes]:
        """Returns the names of a request's full blocks."""
        hashes, each = state.request.block_hashes, self._hashes_per_block
        new = hashes[len(state.names) * each + each - 1 :: each]
        if state.content is None:
            state.names += map(bytes, new)
        else:
            for one in new:
                end = (len(state.names) + 1) * self._store.tokens
                state.names.append(state.content.name(bytes(one), end))
        return state.names

    def _lease(self, namespace: Any, chain: list[bytes]) -> Any:
        """Returns the blocks in their places, if all are there and may be loaded in a step."""
        if not self._rule.allows(self._step_bytes + len(chain) * self._store.block_bytes):
            return None
        # Without time nothing is read from a disk.
        lease = namespace.lease(chain, timeout_s=0)
        return lease if len(lease) == len(chain) else None

    def allocated(self, request: Any, pages: list[int], tokens: int) -> None:
        """Plans the load of what a request was promised, now that it has blocks.

        Args:
            request: vLLM's request.
            pages: All of its blocks.
            tokens: Tokens to load, 0 for none.
        """
        state = self._requests.get(request.request_id)
        if state is None:
            return
        offer, state.offer = state.offer, None
        if offer is None or not tokens:
            return
        count = min(offer.count, tokens // self._store.tokens)
        each, end = self._pages_per_block, offer.first + count
        job = LoadJob(
            request.request_id,
            state.names[offer.first : end],
            pages[offer.first * each : end * each],
            self._settings.load_timeout_s,
            offer.lease,
            offer.is_void,
        )
        state.next_save = max(state.next_save, end)
        self._plan.loads.append(job)
        self._plan.must_drain |= self._are_saved(job.pages)
        if offer.lease is not None:
            self._step_bytes += count * self._store.block_bytes
            self._meter.count("step_loads")
        else:
            until = time.monotonic() + job.timeout_s
            self._loading.update((name, until) for name in job.chain)
            self._loads[job.request_id] = job

    def plan(self, output: Any) -> StepPlan:
        """Returns what the step loads and saves.

        Args:
            output: vLLM's `SchedulerOutput`.
        """
        plan, self._plan = self._plan, StepPlan()
        plan.seen_failures, self._step_bytes = self._seen_failures, 0
        self._safely("build_connector_meta", lambda: self._plan_saves(plan, output), None)
        return plan

    def _plan_saves(self, plan: StepPlan, output: Any) -> None:
        self._note_pages(plan, output)
        if output.num_scheduled_tokens:
            self._store.note_use()
        if self._store.opened is None:
            return
        for request_id, count in output.num_scheduled_tokens.items():
            if state := self._requests.get(request_id):
                self._plan_save(plan, state, state.request.num_computed_tokens + count)

    def _note_pages(self, plan: StepPlan, output: Any) -> None:
        """Notes which blocks vLLM gave to requests in this step, or took from them."""
        preempted = set(getattr(output, "preempted_req_ids", None) or ())
        for request_id in preempted & self._requests.keys():
            self._requests[request_id].forget_pages()
        for request_id, groups, is_resumed in yield_req_data(output):
            given = groups[0] if groups else []
            # Also blocks of requests that keep away from the store are written.
            plan.must_drain |= self._are_saved(given)
            if state := self._requests.get(request_id):
                if is_resumed:
                    state.forget_pages()
                state.pages += given

    def _are_saved(self, pages: Iterable[int]) -> bool:
        """Whether some of vLLM's blocks are being saved."""
        return any(page in self._reading for page in pages)

    def _plan_save(self, plan: StepPlan, state: DirectRequest, computed: int) -> None:
        """Plans to save the blocks that a request has filled after a step."""
        request, each = state.request, self._pages_per_block
        limits = [computed, request.num_tokens]
        if self._prompt_only:
            limits.append(request.num_prompt_tokens)
        most = (getattr(request, "kv_transfer_params", None) or {}).get("max_offload_tokens")
        if type(most) is int and most >= 0:
            limits.append(most)
        names = self._names(state)
        end = min(min(limits) // self._store.tokens, len(names), len(state.pages) // each)
        if end <= state.next_save:
            return
        for first in range(state.next_save, end, self._most_saved):
            self._next_save += 1
            last = min(first + self._most_saved, end)
            pages = state.pages[first * each : last * each]
            job = SaveJob(self._next_save, request.request_id, names[:last], first, pages)
            plan.saves.append(job)
            self._saves[job.number] = job
            self._reading.update(pages)
        state.next_save = end

    def update(self, output: Any) -> None:
        """Takes what the workers report.

        Args:
            output: vLLM's `KVConnectorOutput`.
        """
        self._safely("update_connector_output", lambda: self._update(output), None)

    def _update(self, output: Any) -> None:
        if invalid := set(getattr(output, "invalid_block_ids", None) or ()):
            self._note_invalid(invalid)
        for request_id in getattr(output, "finished_recving", None) or ():
            job = self._loads.pop(request_id, None)
            for name in job.chain if job is not None else ():
                self._loading.pop(name, None)
        report = getattr(output, "kv_connector_worker_meta", None)
        if isinstance(report, StepReport):
            self._take(report)

    def _note_invalid(self, invalid: set[int]) -> None:
        """Lets requests compute and save blocks again that were not loaded."""
        now = time.monotonic()
        self._failing = {name: until for name, until in self._failing.items() if until > now}
        each = self._pages_per_block
        for state in self._requests.values():
            bad = next((at for at, page in enumerate(state.pages) if page in invalid), None)
            if bad is not None:
                self._pause(state.names[bad // each : bad // each + 1])
                state.next_save = min(state.next_save, bad // each)
        for job in self._loads.values():
            bad = next((at for at, page in enumerate(job.pages) if page in invalid), None)
            if bad is not None:
                self._pause(job.chain[bad // each : bad // each + 1])
                waiting = self._requests.get(job.request_id)
                if waiting is not None:
                    waiting.next_save = 0

    def _pause(self, names: Iterable[bytes]) -> None:
        """Lets no request try to load blocks for a while."""
        until = time.monotonic() + self._settings.failed_load_pause_s
        if len(self._failing) < MOST_FAILING:
            self._failing.update((name, until) for name in names)

    def _take(self, report: StepReport) -> None:
        """Takes the report of the worker."""
        for number in report.copied:
            job = self._saves.pop(number, None)
            if job is None:
                continue
            self._reading -= Counter(job.pages)
            state = self._requests.get(job.request_id)
            if state is not None and number in report.dropped:
                state.next_save = min(state.next_save, job.first)
        self._seen_failures = max(self._seen_failures, report.failures)
        self._rule.note(report.step_bytes, report.step_s)
        self._committing = report.committing
        if report.refusal:
            self._store.refuse(report.refusal)
        self._meter.count("loaded_blocks", report.loaded_blocks)
        self._meter.count("loaded_bytes", report.loaded_bytes)
        self._meter.count("load_failed_blocks", report.failed_blocks)
        self._meter.count("stored_blocks", report.saved_blocks)
        self._meter.count("stored_bytes", report.saved_blocks * self._store.block_bytes)
        self._meter.count("store_failed_blocks", report.unsaved_blocks)

    def finished(self, request: Any) -> None:
        """Forgets a request."""
        state = self._requests.pop(request.request_id, None)
        namespace = self._store.namespace
        if state is not None and namespace is not None and state.names:
            self._safely("touch", lambda: namespace.touch(state.names), 0)

    def has_work(self) -> bool:
        """Whether vLLM must keep stepping, so that loads, saves and metrics end."""
        return bool(self._loads or self._saves or self._committing or self._meter.is_stale())

    def reset(self) -> None:
        """Forgets every block: vLLM's caches are reset, as its weights may have changed."""
        self._plan.must_drain = True
        self._void_offers()
        for state in self._requests.values():
            # Its blocks may be of other weights, unless it is preempted now.
            state.next_save = sys.maxsize
        self._safely("reset_cache", self._store.renew, None)

    def _void_offers(self) -> None:
        """Lets nothing be loaded that was promised."""
        for state in list(self._requests.values()):
            if state.offer is not None:
                state.offer.is_void = True

    def take_stats(self) -> Any:
        """Returns what was counted since the last call."""
        return self._safely("get_stats", lambda: self._meter.take(self._store.stats), None)

    def close(self) -> None:
        """Closes the store; no transfer may be in flight."""
        self._store.close()

    def _safely(self, call: str, work: Callable[[], _T], otherwise: _T) -> _T:
        """Returns what `work` returns, or `otherwise` if it raises: vLLM dies of any exception."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - see above
            self._meter.count("errors", 1, call)
            self._log.log(call, error)
            if isinstance(error, PoisonedError):
                self._store.report_poisoned()
            return otherwise


def ids_of(blocks: Any) -> list[int]:
    """Returns the numbers of vLLM's blocks of a request with one KV-cache group."""
    groups: Iterable[list[int]] = blocks.get_block_ids()
    (ids,) = groups
    return list(ids)


def _may_load(request: Any) -> bool:
    """Whether blocks may be loaded for a request, as it and its parameters say."""
    # vLLM computes all of a prompt for the log-probabilities of its tokens.
    if getattr(request, "skip_reading_prefix_cache", False):
        return False
    tiers = (getattr(request, "kv_transfer_params", None) or {}).get("kv_load_tiers")
    return tiers is None or any(one.get("medium") == "STORAGE" for one in tiers)


def _is_before(times: dict[bytes, float], name: bytes) -> bool:
    """Whether it is before the time of a block."""
    until = times.get(name)
    return until is not None and time.monotonic() < until
