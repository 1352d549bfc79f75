"""The tier: vLLM's `SecondaryTierManager` over a store.

vLLM calls every method on its scheduler thread, so none that it calls while it serves waits:
look-ups are answered from the store's index in memory, transfers run on the store's threads
straight from and into the rows of vLLM's primary tier. Two methods wait because that is their
purpose, and both have a bound: `drain_jobs`, with which vLLM's caches are reset, and `shutdown`.

1. No exception leaves a method that vLLM calls while it serves: it becomes a miss or a failed job,
   a counter and at most one log line per 30 s. But memory that is still in use is never returned:
   if a transfer does not end, `drain_jobs` and `shutdown` raise.
2. Every job is reported exactly once, after its last transfer has ended.
3. What is over a bound is refused at once; nothing queues without end.
4. A block that could not be loaded stays a miss for its request: vLLM then computes it.
5. After `shutdown` nothing refers to vLLM's memory any more.
6. Calls come one at a time, but from any thread: vLLM 0.33 holds its manager's lock meanwhile.
7. Keywords that a later vLLM adds to a call are ignored: they are hints, as `expedited` of 0.33 is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingMetricMetadata,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager

from dalsegno.integrations.common.opening import Backend, Opened, OpenNamespaces
from dalsegno.integrations.vllm import compat, doors, inputs, metrics, shared_memory, spaces
from dalsegno.integrations.vllm.advice import LoadAdviser
from dalsegno.integrations.vllm.calls import Calls
from dalsegno.integrations.vllm.events import open_events
from dalsegno.integrations.vllm.jobs import Job
from dalsegno.integrations.vllm.request_state import RequestState
from dalsegno.integrations.vllm.settings import TierSettings
from dalsegno.integrations.vllm.transfers import Block, Mover, Rows, codec_of, contains, touch

logger = init_logger("vllm.dalsegno")

# How long a shutdown waits for what is under way before it is called off, and once more after.
SHUTDOWN_S = 10.0
_STUCK = "Dalsegno's transfers do not end; their memory stays in use"


class DalsegnoTier(SecondaryTierManager):  # type: ignore[misc]
    """Keeps the blocks of vLLM's primary tier in a store, and brings them back.

    Attributes:
        adviser: Decides which blocks are worth loading; `DalsegnoConnector` shows it vLLM's steps.
    """

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **config: Any,
    ) -> None:
        """Opens the store.

        Args:
            offloading_spec: vLLM's spec, whose `config` says what the blocks are.
            primary_kv_view: vLLM's primary tier, `[rows, row_bytes]` bytes; released by `shutdown`.
            tier_type: The name under which the tier was configured.
            backpressure_detector: vLLM's judge of slow tiers, since 0.31.
            **config: See `TierSettings`.

        Raises:
            InvalidError: The configuration is wrong.
            IncompatibleError: The store or the model cannot be used with this version, or the
                workers have other memory than the scheduler.
        """
        shared_memory.check(offloading_spec)
        compat.init_tier(self, offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        settings = TierSettings.parse(config)
        self.locality = Locality(settings.locality) if settings.locality else None
        self._settings, self._config = settings, offloading_spec.config
        self._spec = offloading_spec
        self._meter = metrics.Meter()
        self._requests: dict[str, RequestState] = {}
        self._admissions = inputs.Admissions()
        # Requests that loaded after they had been scheduled, in this step and in the one before.
        self._resumed: list[RequestState] = []
        self._due: list[RequestState] = []
        self._calls = Calls(self._meter, self._report_poisoned)
        self._closed = False
        self._rows = Rows(primary_kv_view)
        self._mover = Mover(self._rows, settings, self._config, self._meter, self._calls.note)
        row_bytes = self._rows.row_bytes
        self.adviser = LoadAdviser(settings, self._config, row_bytes, self._meter, self._calls)
        self.adviser.opened = lambda: self._guard.current
        self._events = open_events(settings, self._config, self.locality, self._meter)
        try:
            codec = codec_of(settings, self._config.model.dtype)
            self._shape = {"layers": 1, "slice_bytes": self._rows.row_bytes, **codec}
            self._backend = Backend(
                spaces.place(settings, self._config),
                settings.store_settings(),
                self._prepare,
                "vLLM",
                logger,
            )
        except BaseException:
            self._rows.release()
            raise
        inputs.watch_requests(OffloadingConnector, DalsegnoTier)
        inputs.warn_of_random_hashes()
        # From here on nothing is loaded or stored but through it.
        self._guard = doors.guard(self._backend, self._config.engine_id, self._forget)

    def _prepare(self) -> OpenNamespaces:
        """Establishes the identity; returns what opens the namespace of each KV-cache group."""
        known = spaces.group_fields(self._settings, self._config, self._rows.row_bytes)

        def namespaces(store: Any, epoch: Mapping[str, str]) -> dict[int, Any]:
            return {
                number: store.namespace({**fields, **epoch}, **self._shape)
                for number, fields in known.items()
            }

        return namespaces

    def admit(self, request_id: str, content: inputs.Content | None) -> None:
        """Takes what the blocks of a request that is about to come depend on."""
        self._admissions.admit(request_id, content)

    def bypass(self, request_id: str, kind: str = "inputs of unknown content") -> None:
        """Keeps a request that is about to come away from the store, in both directions."""
        self._admissions.refuse(request_id, kind)
        self._meter.count("bypassed_requests")

    def on_new_request(self, req_context: Any, **_: Any) -> RequestOffloadingContext:
        """Starts to remember what is known about a request."""
        self._request(req_context)
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any, **_: Any) -> None:
        """Notes that its prompt was used, and forgets the request; jobs may still be in flight."""
        state = self._requests.pop(req_context.req_id, None)
        self._use("on_request_finished", state)
        self.adviser.finish(req_context.req_id)
        if state is not None:
            self._announce_loaded(state)

    def touch(self, keys: Any, req_context: Any, **_: Any) -> None:
        """Notes that a request's prompt was used. vLLM 0.32 declares this and never calls it."""
        del keys
        self._use("touch", self._requests.get(req_context.req_id))

    def _use(self, call: str, state: RequestState | None) -> None:
        """Marks a request's whole prompt as used, without I/O.

        vLLM serves a prompt's beginning from its own memory where it can, and then asks the tier
        for none of it: to eviction it would look idle.
        """
        opened = self._guard.current
        if state is not None and opened is not None and not state.bypass:
            self._calls.safely(call, lambda: touch(opened, state), None)

    def on_schedule_end(self, context: Any, **_: Any) -> None:
        """Ends vLLM's step.

        Preempted requests look up again what they missed, since it may be stored by now. Of
        requests that are scheduled vLLM knows the tokens: their loaded blocks are announced.
        """
        self._mover.gate.end_step()
        for request_id in compat.preempted(context):
            if state := self._requests.get(request_id):
                state.forget_misses()
                self.adviser.arrive(request_id, state)
        # vLLM does not name those that were scheduled before. They look up what was loaded in the
        # step that reported it, or in the next one.
        due, self._due, self._resumed = self._due, self._resumed, []
        for state in due:
            self._announce_loaded(state)
        for request_id in compat.scheduled(context):
            if state := self._requests.get(request_id):
                state.is_scheduled = True
                self._announce_loaded(state)

    def lookup(self, key: Any, req_context: Any, **_: Any) -> LookupResult:
        """Returns whether the store has a block; never waits for the disk."""
        try:
            state = self._request(req_context)
            found = state.known.get(key)
            if found is None:
                found = self._look_up(key, state)
            if not found:
                return LookupResult.MISS
            # Whether the store may be used is asked once for each request: that reads a file.
            opened = self._guard.current if state.advice is None else None
            if not self.adviser.may_load(opened, key, req_context.req_id, state):
                return LookupResult.MISS
            primary = compat.primary_tier(self._spec)
            row_is_free = primary is None or compat.has_free_row(primary)
            return self._mover.gate.answer(key, state, row_is_free=row_is_free)
        except Exception as error:  # noqa: BLE001 - vLLM dies of any exception
            self._calls.note("lookup", error)
            return LookupResult.MISS

    def _request(self, req_context: Any) -> RequestState:
        """Returns what is known about a request."""
        state = self._requests.get(req_context.req_id)
        if state is None:
            bypass, content = self._admissions.take(req_context.req_id)
            positions = compat.key_positions(req_context)
            state = RequestState(positions, bypass=bypass, content=content)
            self._requests[req_context.req_id] = state
            self.adviser.arrive(req_context.req_id, state)
        return state

    def _look_up(self, key: bytes, state: RequestState) -> bool:
        """Looks up a key, and those that vLLM will look up next."""
        # Whatever goes wrong below, the same question is not asked again.
        state.known[key] = False
        opened = self._guard.current
        if opened is None or state.bypass:
            return False
        batch = state.batch(key)
        present = contains(opened, batch, state)
        state.learn(batch, present)
        self._meter.count("lookup_blocks", sum(present), "hit")
        self._meter.count("lookup_blocks", len(present) - sum(present), "miss")
        return state.known[key]

    def submit_store(self, job_metadata: Any, **_: Any) -> None:
        """Starts to write blocks of the primary tier into the store."""
        job = self._job(job_metadata, self._settings.store_timeout_s, is_load=False)
        self._use("submit_store", job.request)
        self._start(job, job_metadata, self._mover.start_store)

    def submit_load(self, job_metadata: Any, **_: Any) -> None:
        """Starts to read blocks of the store into the primary tier."""
        name = job_metadata.req_context.req_id
        timeout_s = self.adviser.timeout_s(self._requests.get(name))
        job = self._job(job_metadata, timeout_s, is_load=True)
        self._start(job, job_metadata, self._mover.start_load)
        self.adviser.begin_load(job, name)

    def _job(self, transfer: Any, timeout_s: float, *, is_load: bool) -> Job:
        """Returns the record of a job."""
        return Job(
            job_id=transfer.job_id,
            is_load=is_load,
            keys=tuple(transfer.keys),
            request=self._requests.get(transfer.req_context.req_id),
            started=time.monotonic(),
            timeout_s=timeout_s,
        )

    def _start(
        self, job: Job, transfer: Any, start: Callable[[Opened | None, Job, list[Block]], None]
    ) -> None:
        """Starts a job; whatever happens, it will be reported."""
        try:
            positions = compat.key_positions(transfer.req_context)
            rows = compat.chunk_ids(transfer)
            blocks = [
                Block(key, row, positions.get(key)) for key, row in zip(job.keys, rows, strict=True)
            ]
            bypass = job.request.bypass if job.request else self._admissions.are_examined
            self._guard.epoch.note_use()
            start(None if bypass else self._guard.current, job, blocks)
        except Exception as error:  # noqa: BLE001 - vLLM dies of any exception
            job.failed = True
            self._calls.note("submit_load" if job.is_load else "submit_store", error)
        self._mover.jobs.add(job)

    def get_finished_jobs(self, **_: Any) -> Iterable[Any]:
        """Reports the jobs that have ended since the last call, and announces what they stored."""
        results = []
        is_usable = self._guard.epoch.is_usable
        for job in self._mover.jobs.take_ended():
            result = self._mover.result(job, is_usable=is_usable)
            results.append(result)
            if job.is_load:
                self.adviser.end_load(job, is_whole=result.success)
            if job.request is not None and job.request.content is not None:
                # Routers know blocks by vLLM's hashes, which say too little about these.
                continue
            if not job.is_load:
                self._announce(job.kept)
            elif job.request is not None and self._events is not None:
                job.request.unannounced += job.kept
                if job.request.is_scheduled:
                    self._resumed.append(job.request)
        return results

    def _announce_loaded(self, state: RequestState) -> None:
        """Announces the blocks that were loaded for a request, once vLLM knows their tokens.

        vLLM notes the tokens of a block when the request finds it in the primary tier, in the step
        that schedules it. Before that, routers could do nothing with the event.
        """
        loaded, state.unannounced = state.unannounced, []
        if state.is_scheduled:
            self._announce(loaded)
        else:
            self._meter.count("events_dropped_blocks", len(loaded))

    def _announce(self, keys: list[bytes]) -> None:
        """Puts blocks that the store has into the next events."""
        if (events := self._events) is not None and keys:
            blocks = dict.fromkeys(keys)
            self._calls.safely(
                "announce", lambda: events.announce(self._guard.current, blocks), None
            )

    def take_events(self) -> Iterable[Any]:
        """Returns the KV events of this step."""
        if (events := self._events) is None or self._closed:
            return ()
        return self._calls.safely("take_events", lambda: events.take(self._guard.current), [])

    def has_pending_work(self) -> bool:
        """Whether KV events or metrics wait: vLLM takes them only at its steps."""
        events = self._events
        waits = self._meter.is_stale() or (events is not None and events.pending())
        return waits and not self._closed

    def drain_jobs(self, **_: Any) -> None:
        """Waits for every job, and forgets every block.

        vLLM calls this when its caches are reset, which it does when the weights may have changed:
        from here on this process shares nothing with what was stored before.

        Raises:
            RuntimeError: A transfer does not end, so vLLM must not use the memory again.
        """
        if not self._mover.jobs.drain(SHUTDOWN_S):
            raise RuntimeError(_STUCK)
        try:
            self._mover.gate.end_step()
            self._forget()
            self._guard.renew()
        except Exception as error:  # noqa: BLE001 - vLLM dies of any exception
            self._calls.note("drain_jobs", error)

    def _forget(self) -> None:
        """Forgets which blocks the store has, and withdraws the announced ones."""
        self._requests = {name: state.fresh_copy() for name, state in self._requests.items()}
        if self._events is not None:
            self._events.withdraw_all()

    def shutdown(self) -> None:
        """Waits for transfers in flight, closes the store and releases vLLM's memory.

        Raises:
            RuntimeError: A transfer does not end, so vLLM must not free the memory.
        """
        if self._closed:
            return
        self._closed = True
        self.adviser.close()
        if not self._mover.jobs.wait(SHUTDOWN_S):
            raise RuntimeError(_STUCK)
        self._mover.jobs.take_ended()
        self._guard.close()
        self._rows.release()

    @classmethod
    def build_metric_definitions(
        cls, extra_config: dict[str, Any]
    ) -> dict[str, OffloadingMetricMetadata]:
        """Declares the tier's metrics; opens nothing."""
        del extra_config
        return metrics.definitions()

    @classmethod
    def config_info_keys(cls, tier_config: dict[str, Any]) -> tuple[str, ...]:
        """Names the labels of `config_info`, since vLLM 0.33."""
        del tier_config
        return metrics.INFO_KEYS

    def config_info(self) -> Mapping[str, str]:
        """Returns what does not change while vLLM runs, for its metric of that name."""
        return metrics.config_info(self._settings, spaces.place(self._settings, self._config))

    def get_stats(self) -> Any:
        """Returns what was counted since the last call."""
        return self._calls.safely("get_stats", lambda: self._meter.take(self._backend.stats), None)

    def _report_poisoned(self) -> None:
        """Reopens the store, as a put failed because nothing more is written."""
        self._backend.report_poisoned()
