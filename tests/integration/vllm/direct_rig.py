"""A small engine around both halves of the direct path, whose KV cache has known right bytes.

It makes vLLM's calls in vLLM's order: prefix caching, chunked prefill, preemption, failed loads. It
computes a block by writing bytes that follow from the tokens up to its end, but noise if a block
that it depends on is wrong on some rank: as in a model, the result is wrong on all ranks.
"""

from __future__ import annotations

import dataclasses
import functools
import pickle
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tests.integration.fake_gpu import FakeGpu
from tests.integration.vllm import tiers
from tests.integration.vllm.direct_jumps import jump
from tests.integration.vllm.direct_pages import (
    PAGE,
    TOKENS,
    Asked,
    Caches,
    Pages,
    Router,
    engine_config,
    prefix_name,
    scheduler_output,
    take_back,
)
from tests.integration.vllm.gpu_caches import GpuCaches
from tests.integration.vllm.slow_copies import SlowNamespace
from vllm.v1.kv_offload.config import OffloadingCacheConfig
from vllm.v1.request import RequestStatus

from dalsegno.integrations.vllm.direct import memory
from dalsegno.integrations.vllm.direct.scheduler import DirectScheduler
from dalsegno.integrations.vllm.direct.step import StepPlan, StepReport
from dalsegno.integrations.vllm.direct.worker import DirectWorker
from dalsegno.integrations.vllm.settings import ConnectorSettings, expand
from dalsegno.paths import SOCKET_PREFIX
from dalsegno_bench.vllm.rig import group_config, offloading_config, parallel_config

LAYERS = 3
# Tokens that a request computes in a step.
CHUNK = 10
PATIENCE_S = 20.0


class Rig:
    """The engine.

    Attributes:
        scheduler: The scheduler's half.
        workers: The workers' halves, by rank.
        caches: The KV cache of each rank, and the weights.
        layers: Their names.
        failing: By rank, how many of the next step loads bring nothing.
        aborts_in_step: Whether the next step ends a request that it computes.
        hooks_run: Whether steps call the hooks of layers; full CUDA graphs do not.
        counts: What was counted.
        router: What a router knows.
    """

    def __init__(
        self,
        folder: Path,
        pages: int = 24,
        ranks: int = 1,
        pages_per_block: int = 1,
        gpu: FakeGpu | None = None,
        layers: int = LAYERS,
        **settings: Any,
    ) -> None:
        self.ranks, self.pages, self.per_block = ranks, Pages(pages), pages_per_block
        self.layers = names = tuple(f"layer.{at}" for at in range(layers))
        parallel = parallel_config(world_size=ranks, tp_size=ranks)
        offloading = offloading_config(
            layers * PAGE,
            TOKENS,
            engine_id=str(folder),
            groups=(group_config(TOKENS, names, 0),),
            cache=OffloadingCacheConfig(TOKENS, pages_per_block),
            enable_kv_cache_events=True,
            parallel=parallel,
        )
        extra: dict[str, Any] = {
            "path": str(folder),
            "capacity": "64MiB",
            "cpu_bytes_to_use": "8MiB",
            "enable_kv_events": pages_per_block == 1,
        }
        extra |= {"path_to_engine": "direct", "load_policy": "always", "keep_profile": False}
        extra |= {"max_step_load_s": 60.0} | settings
        self.is_served = str(extra["path"]).startswith(SOCKET_PREFIX)
        known = ConnectorSettings.of_extra(expand(extra, on_cpu=True))
        known = dataclasses.replace(known, identity=tiers.IDENTITY)
        self.scheduler = DirectScheduler(known, offloading, engine_config(CHUNK, parallel))
        self.scheduler.bind(SimpleNamespace(evict_blocks=self.pages.forget))
        self.caches, self._describe = Caches(names, ranks, pages), memory.of_engine
        if gpu is not None:
            self.caches = on_gpu = GpuCaches(gpu, names, ranks, pages)
            self._describe = on_gpu.describe
        self.workers = [self._worker(offloading, rank) for rank in range(ranks)]
        self.waiting: list[Asked] = []
        self.running: list[Asked] = []
        # Requests that wait for their load.
        self.remote: dict[str, Asked] = {}
        self.ended_remote: dict[str, Asked] = {}
        self.hooks_run, self.aborts_in_step, self.router = True, False, Router()
        self.failing, self.counts, self._preempted = Counter[int](), Counter[str](), set[str]()
        self._ended: Counter[str] = Counter()

    def _worker(self, offloading: Any, rank: int) -> DirectWorker:
        """Makes the worker of a rank; that of a server does not know the scheduler's process."""
        parallel = parallel_config(world_size=self.ranks, tp_size=self.ranks, rank=rank)
        name = f"worker of {offloading.engine_id}" if self.is_served else offloading.engine_id
        config = dataclasses.replace(offloading, parallel=parallel, engine_id=name)
        worker = DirectWorker(config, len(self.pages.free), 60.0, self._describe)
        worker.register(self.caches.ranks[rank])
        return worker

    def read_in_steps(self) -> None:
        """Lets no blocks be leased, so that steps read them, whatever was measured."""
        self.scheduler._offers.decider._steps = 1000
        self.scheduler._offers._lease = lambda *_: ()  # type: ignore[method-assign]

    @property
    def namespaces(self) -> list[Any]:
        """Those of the store, by rank."""
        return list((self.scheduler._store.ranks or {}).values())

    def slow_down(self) -> None:
        """Lets copies end as late as they may."""
        ranks: Any = self.scheduler._store.ranks
        ranks.update({rank: SlowNamespace(namespace) for rank, namespace in ranks.items()})

    def ask(self, name: str, tokens: Sequence[int], answers: int = 2) -> Asked:
        """Begins a request that ends after so many tokens of its answer."""
        request = Asked(name, list(tokens), len(tokens), most_tokens=len(tokens) + answers)
        self.scheduler.on_new_request(request)
        self.waiting.append(request)
        return request

    def abort(self, request: Asked) -> None:
        """Ends a request, wherever it is."""
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)
        self.scheduler.finished(request)
        if request.request_id in self.remote:
            # Its blocks are written until the load has ended.
            self.ended_remote[request.request_id] = self.remote.pop(request.request_id)
        else:
            self.pages.give_back(request.pages)

    def preempt(self, request: Asked) -> None:
        """Takes the blocks of a running request."""
        self.running.remove(request)
        self.pages.give_back(request.pages)
        request.pages, request.num_computed_tokens, request.was_preempted = [], 0, True
        request.status = RequestStatus.PREEMPTED
        self._preempted.add(request.request_id)
        self.waiting.insert(0, request)

    def forget(self) -> None:
        """Lets the engine forget its own blocks."""
        self.pages.cached.clear()

    @property
    def holds_loaded(self) -> bool:
        """Whether requests that do not run have blocks."""
        return bool(self.remote or self.ended_remote or any(one.pages for one in self.waiting))

    def change_weights(self) -> None:
        """Updates the weights and resets all caches, as vLLM does if no blocks are being loaded."""
        for one in list(self.running):
            self.preempt(one)
        self.forget()
        self.caches.weights += 1
        self.scheduler.reset()

    def step(self) -> None:
        """Schedules and runs one step."""
        self.counts["jumped_tokens"] += jump(self)
        new, cached, tokens = list[Any](), list[Any](), dict[str, int]()
        for one in list(self.running):
            while one in self.running:
                if (given := self._grow(one)) is not None:
                    if one.scheduled:
                        cached.append((one, given, False))
                    break
                self.preempt(self.running[-1])
        for one in list(self.waiting):
            if (given := self._admit(one)) is not None:
                (cached if one.was_preempted else new).append((one, given, True))
        if not (new or cached or self.remote or self.running):
            self._unblock()
        for one, *_ in [*new, *cached]:
            tokens[one.request_id] = one.scheduled
        output = scheduler_output(new, cached, tokens, self._preempted)
        self._preempted = set()
        plan = self.scheduler.plan(output)
        # In their order: one may depend on blocks that another one computes in the same step.
        requests = [one for one in self.running if one.request_id in tokens]
        for one in requests:
            one.num_computed_tokens += tokens[one.request_id]
        self._run(plan, requests, tokens)

    def _unblock(self) -> None:
        """Takes the blocks of a request that was loaded, if such requests have all of them."""
        holding = [one for one in self.waiting if one.pages]
        if holding:
            self.waiting.remove(holding[-1])
            self.running.append(holding[-1])
            self.preempt(holding[-1])

    def _chunk(self, request: Asked, computed: int) -> int:
        """Returns how many tokens of a request the next step computes."""
        most = min(CHUNK, request.num_tokens - computed)
        return self.scheduler.both_ends.chunk(request.request_id, computed, most)

    def _grow(self, request: Asked) -> list[int] | None:
        """Gives a running request blocks for its next tokens; None if there are too few."""
        request.scheduled = count = self._chunk(request, request.num_computed_tokens)
        needed = -(-(request.num_computed_tokens + count) // TOKENS) - len(request.pages)
        if needed > len(self.pages.free):
            return None
        given = self.pages.take(max(0, needed))
        request.pages += given
        self._cache_pages(request, request.num_computed_tokens + count)
        return given

    def _admit(self, request: Asked) -> list[int] | None:
        """Lets a request run, or wait for a load; returns all of its blocks if it runs."""
        is_loaded = request.num_computed_tokens > 0
        if is_loaded:
            own, external, is_async = request.pages, 0, False
        else:
            own = self.pages.cached_prefix(request)
            promised, is_async = self.scheduler.matched_tokens(request, len(own) * TOKENS)
            if promised is None:
                self.counts["deferred"] += 1
                return None
            external = promised
        known = request.num_computed_tokens if is_loaded else len(own) * TOKENS + external
        request.scheduled = count = 0 if is_async else self._chunk(request, known)
        assert count or is_async, "a request that is admitted must compute something"
        self.pages.share(() if is_loaded else own)
        needed = -(-(known + count) // TOKENS) - len(own)
        if needed > len(self.pages.free):
            self.pages.give_back(() if is_loaded else own)
            return None
        request.pages = [*own, *self.pages.take(max(0, needed))]
        if not is_loaded:
            self.scheduler.allocated(request, list(request.pages), external)
        request.num_computed_tokens = known
        self.waiting.remove(request)
        if is_async:
            self.remote[request.request_id] = request
            return None
        if external:
            self.counts["step_loaded"] += external // TOKENS
        self._cache_pages(request, known + count)
        self.running.append(request)
        request.status = RequestStatus.RUNNING
        return list(request.pages)

    def _cache_pages(self, request: Asked, computed: int) -> None:
        """Lets other requests find what this one will have after the step, from now on."""
        names = request.block_hashes[: computed // TOKENS]
        for name, page in zip(names, request.pages, strict=False):
            self.pages.cached.setdefault(name, page)

    def _run(self, plan: StepPlan, requests: list[Asked], tokens: dict[str, int]) -> None:
        """Runs a step on all ranks, and takes what they report."""
        plans = [self._plan_of(rank, plan) for rank in range(self.ranks)]
        for worker, own in zip(self.workers, plans, strict=True):
            if own.must_drain:
                worker.drain()
            worker.begin_step(own)
            worker.start_loads(hooks_run=self.hooks_run)
        right = dict.fromkeys(tokens, True)
        for layer, name in enumerate(self.layers if requests else ()):
            hooked = self.workers if self.hooks_run else []
            for worker in hooked:
                worker.wait_for_layer(name)
            for one in requests:
                right[one.request_id] &= self.caches.compute(one, tokens[one.request_id], layer)
            for worker in hooked:
                worker.save_layer(name)
        finished, invalid, reports = list[set[str]](), set[int](), list[StepReport]()
        for worker in self.workers:
            worker.end_step(is_aborted=False)
            finished.append(worker.finished())
            invalid |= worker.take_invalid()
            reports.append(worker.take_report() or StepReport())
        if self.aborts_in_step and requests:
            # vLLM ends it before it looks at what the step reports.
            self.aborts_in_step = False
            self.abort(requests.pop(0))
        taken = take_back(self.remote.values(), requests, tokens, invalid)
        self.counts["taken_back"] += len(taken)
        for name in right.keys() & {one.request_id for one in requests} - taken:
            assert right[name], f"{name} got a wrong token"
        report = functools.reduce(StepReport.aggregate, reports)
        self.scheduler.update(
            SimpleNamespace(invalid_block_ids=invalid, kv_connector_worker_meta=report)
        )
        self.router.follow(self.scheduler.take_events())
        self._end_loads(finished)
        self._answer(requests)

    def _plan_of(self, rank: int, plan: StepPlan) -> StepPlan:
        """What a rank gets: with several of them, or a server, over a pipe."""
        is_sent = self.ranks > 1 or self.is_served
        own: StepPlan = pickle.loads(pickle.dumps(plan)) if is_sent else plan
        for job in own.loads:
            if job.is_in_step and self.failing[rank]:
                self.failing[rank] -= 1
                own.loads[own.loads.index(job)] = dataclasses.replace(job, is_void=True)
        return own

    def _end_loads(self, finished: list[set[str]]) -> None:
        """Lets requests continue whose loads have ended on all ranks."""
        for names in finished:
            self._ended.update(names)
        for name in [name for name, count in self._ended.items() if count == self.ranks]:
            del self._ended[name]
            if (one := self.ended_remote.pop(name, None)) is not None:
                self.pages.give_back(one.pages)
                continue
            one = self.remote.pop(name)
            self.counts["waited_blocks"] += one.num_computed_tokens // TOKENS
            # vLLM keeps the blocks that were loaded, and computes at least one token.
            one.num_computed_tokens = min(one.num_computed_tokens, one.num_tokens - 1)
            self._cache_pages(one, one.num_computed_tokens)
            if not one.num_computed_tokens:
                self.pages.give_back(one.pages)
                one.pages = []
            self.waiting.insert(0, one)

    def _answer(self, requests: list[Asked]) -> None:
        """Gives requests whose prompts are computed their next token, and ends some."""
        for one in requests:
            if one.num_computed_tokens < one.num_tokens:
                continue
            if one.num_tokens == one.most_tokens:
                self.counts["answered"] += 1
                self.abort(one)
            else:
                one.tokens.append(len(one.tokens))

    def settle(self) -> None:
        """Steps until nothing is under way."""
        until = time.monotonic() + PATIENCE_S
        planned = (self.scheduler._loads, self.scheduler._saves, self.scheduler.both_ends)
        queues, announcer = (self.waiting, self.running, self.remote), self.scheduler._announcer
        while any(queues) or any(one.is_busy for one in planned) or announcer.is_pending():
            assert time.monotonic() < until, "the engine does not come to an end"
            self.step()

    def stored(self, tokens: Sequence[int]) -> int:
        """How many leading blocks the store has on all ranks; each has its right bytes."""
        each = self.per_block
        pages = [prefix_name(tokens[:end]) for end in range(TOKENS, len(tokens) + 1, TOKENS)]
        blocks = [pages[at : at + each] for at in range(0, len(pages) - each + 1, each)]
        names, counts = [block[-1] for block in blocks], []
        for rank, namespace in enumerate(self.namespaces):
            out = [bytearray(len(self.layers) * PAGE * each) for _ in names]
            there = namespace.get_each(names, out)
            for block, bytes_, is_there in zip(blocks, out, there, strict=True):
                right = [
                    self.caches.right(name, layer, rank)
                    for layer in range(len(self.layers))
                    for name in block
                ]
                assert not is_there or bytes(bytes_) == bytes(torch.cat(right).numpy())
            counts.append(next((at for at, one in enumerate(there) if not one), len(names)))
        return min(counts)

    def common_blocks(self, *documents: list[int]) -> list[list[int]]:
        """The blocks of documents that all ranks have, as the tokens up to the end of each."""
        ends = [one[:end] for one in documents for end in range(TOKENS, len(one) + 1, TOKENS)]
        prefixes = {prefix_name(one): one for one in ends}
        there = [namespace.peek(list(prefixes)) for namespace in self.namespaces]
        return sorted(
            prefix for prefix, *has in zip(prefixes.values(), *there, strict=True) if all(has)
        )

    def close(self) -> None:
        """Ends both halves."""
        for worker in self.workers:
            worker.close()
        self.scheduler.close()
