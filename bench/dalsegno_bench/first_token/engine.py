"""An engine in virtual time: a queue, steps, a limit of blocks, and sources that load.

1. A step decodes one token of each running request and computes chunks of prompts, in the order of
   arrival, up to `CHUNK` tokens in all.
2. A request holds the blocks of its whole prompt and answer from its first step or load on. A
   request that finds too few free blocks waits, and those behind it wait too.
3. A load ahead runs while the engine computes other requests. A load by layer begins with the first
   step of its request, and every request of that step waits for its layers.
4. A source serves one load after the other.
5. What the policy decides, it decides when a request could begin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from dalsegno_bench.first_token.layers import BYTES_PER_TOKEN, CHUNK, LayerTimes, Part
from dalsegno_bench.first_token.pipeline import NOTHING, Plan, Source, Step, step
from dalsegno_bench.first_token.policies import BLOCK_TOKENS, Hit, Policy

__all__ = ["Allocator", "Batch", "Engine", "Observer", "Request", "Tier", "Totals"]


@dataclass
class Request:
    """A request, and what has become of it; times in seconds.

    Attributes:
        arrival_s: When it comes.
        prompt: Tokens of the prompt.
        output: Tokens of the answer, at least one.
        hit: Leading tokens that its source has, in whole blocks, fewer than the prompt has.
        source: Name of the source.
        plan: What is loaded, once that is decided.
        computed: Tokens that are in the KV cache, or are when its load has ended.
        answered: Tokens of the answer.
        loaded_s: When its load ends.
        first_step_s: When its first step begins; None before.
        first_token_s: When its first token comes.
        end_s: When its last token comes.
    """

    arrival_s: float
    prompt: int
    output: int = 1
    hit: int = 0
    source: str = ""
    plan: Plan | None = None
    computed: int = 0
    answered: int = 0
    loaded_s: float = 0.0
    first_step_s: float | None = None
    first_token_s: float = 0.0
    end_s: float = 0.0

    @property
    def blocks(self) -> int:
        """Blocks of the prompt and the answer."""
        return -(-(self.prompt + self.output) // BLOCK_TOKENS)


class Allocator:
    """Counts blocks of the KV cache."""

    def __init__(self, limit: int) -> None:
        """Starts with all blocks free.

        Args:
            limit: How many there are.
        """
        self.limit, self.used, self.peak = limit, 0, 0

    def take(self, count: int) -> bool:
        """Takes blocks if there are so many.

        Raises:
            ValueError: There never are.
        """
        if count > self.limit:
            raise ValueError(f"a request needs {count} blocks, and there are {self.limit}")
        if self.used + count > self.limit:
            return False
        self.used += count
        self.peak = max(self.peak, self.used)
        return True

    def free(self, count: int) -> None:
        """Frees blocks."""
        self.used -= count
        assert self.used >= 0, "more blocks were freed than taken"


@dataclass
class Tier:
    """A source that serves one load after the other; times in seconds.

    Attributes:
        source: The source.
        free_s: When it has served all loads.
        busy_s: How long it has served.
    """

    source: Source
    free_s: float = 0.0
    busy_s: float = 0.0

    def begin(self, size: int, now: float) -> tuple[float, float]:
        """Begins a load.

        Returns:
            When it gets its turn, and when it ends.
        """
        begin_s, load_s = max(now, self.free_s), self.source.load_s(size)
        self.free_s = begin_s + load_s
        self.busy_s += load_s
        return begin_s, self.free_s

    def queued(self, now: float) -> float:
        """Returns the bytes that are still to come."""
        return max(0.0, self.free_s - now) * self.source.bytes_per_s


class Observer(Protocol):
    """Learns from what an engine does."""

    def step(self, parts: list[Part], seconds: float) -> None:
        """Notes a step that waited for no load."""

    def load(self, tier: str, size: float, seconds: float) -> None:
        """Notes a load; ``size`` has the bytes that were queued before it too."""


@dataclass
class Totals:
    """What an engine has done, in seconds.

    Attributes:
        end_s: When the last request ended.
        compute_s: How long layers have computed.
        bubble_s: How long steps have waited for layers.
        idle_s: How long there was no step.
        stall_s: How long steps have waited in which other requests decoded.
        steps: How many steps there were.
    """

    end_s: float = 0.0
    compute_s: float = 0.0
    bubble_s: float = 0.0
    idle_s: float = 0.0
    stall_s: float = 0.0
    steps: int = 0


@dataclass
class Batch:
    """A step: its parts, the requests they are of, and when each layer arrives."""

    parts: list[Part] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    arrivals: list[list[float]] = field(default_factory=list)
    budget: int = CHUNK
    decodes: int = 0

    def add(self, request: Request, new: int) -> None:
        """Adds tokens of a request."""
        self.parts.append(Part(new, request.computed))
        self.requests.append(request)
        self.budget -= new


class _Load(NamedTuple):
    """A load that has not ended; its bytes are those that were queued before it too."""

    begin_s: float
    end_s: float
    tier: str
    size: float


class Engine:
    """Runs requests.

    Attributes:
        totals: What it has done.
        tiers: Its sources by name.
        blocks: Its KV cache.
    """

    def __init__(
        self,
        times: LayerTimes,
        sources: Iterable[Source],
        policy: Policy,
        blocks: int,
        observer: Observer | None = None,
    ) -> None:
        """Starts at second 0 without requests.

        Args:
            times: Of the GPU.
            sources: Where blocks are.
            policy: What is loaded.
            blocks: Blocks of the KV cache.
            observer: What learns from steps and loads.
        """
        self._times, self._policy, self._observer = times, policy, observer
        self.tiers = {source.name: Tier(source) for source in sources}
        self.blocks = Allocator(blocks)
        self.totals = Totals()
        self._now = 0.0
        self._coming: deque[Request] = deque()
        self._waiting: deque[Request] = deque()
        self._loading: list[Request] = []
        self._running: list[Request] = []
        self._loads: list[_Load] = []

    def run(self, requests: Sequence[Request]) -> Totals:
        """Runs requests until all have ended.

        Args:
            requests: Those that no engine has run.

        Raises:
            ValueError: One needs more blocks than there are.
        """
        assert not any(one.answered for one in requests), "an engine has run a request before"
        self._coming = deque(sorted(requests, key=lambda one: one.arrival_s))
        while self._coming or self._waiting or self._loading or self._running:
            self._receive()
            batch = self._next_batch()
            if batch.parts:
                self._compute(batch)
            else:
                self._idle()
        self.totals.end_s = self._now
        return self.totals

    def _receive(self) -> None:
        """Takes the requests that have come, and those whose loads have ended."""
        while self._coming and self._coming[0].arrival_s <= self._now:
            self._waiting.append(self._coming.popleft())
        ended = [one for one in self._loading if one.loaded_s <= self._now]
        self._running += ended
        self._loading = [one for one in self._loading if one.loaded_s > self._now]
        for load in self._loads:
            if load.end_s <= self._now and self._observer is not None:
                self._observer.load(load.tier, load.size, load.end_s - load.begin_s)
        self._loads = [one for one in self._loads if one.end_s > self._now]

    def _idle(self) -> None:
        """Lets time pass until something can change."""
        times = [one.loaded_s for one in self._loading]
        times += [one.arrival_s for one in list(self._coming)[:1]]
        assert times, "a request waits, and nothing will ever end"
        self.totals.idle_s += min(times) - self._now
        self._now = min(times)

    def _next_batch(self) -> Batch:
        """Gathers what the next step computes, and begins loads."""
        batch = Batch()
        decoding = [one for one in self._running if one.answered]
        for request in decoding:
            batch.add(request, 1)
        batch.decodes = len(decoding)
        for request in self._running:
            if not request.answered and batch.budget > 0:
                self._add_chunk(batch, request)
        while self._waiting and batch.budget > 0 and self._begin(batch, self._waiting[0]):
            self._waiting.popleft()
        return batch

    def _add_chunk(self, batch: Batch, request: Request) -> None:
        if request.first_step_s is None:
            request.first_step_s = self._now
        batch.add(request, min(batch.budget, request.prompt - request.computed))

    def _begin(self, batch: Batch, request: Request) -> bool:
        """Begins a request, if there are blocks for it."""
        if not self.blocks.take(request.blocks):
            return False
        plan = request.plan = self._plan(request)
        request.computed = min(plan.tokens, request.prompt - 1)
        if not plan.tokens:
            self._running.append(request)
            self._add_chunk(batch, request)
            return True
        self._load(batch, request, plan)
        return True

    def _load(self, batch: Batch, request: Request, plan: Plan) -> None:
        """Begins a load."""
        tier, size = self.tiers[request.source], plan.tokens * BYTES_PER_TOKEN
        queued = tier.queued(self._now)
        begin_s, request.loaded_s = tier.begin(size, self._now)
        load = _Load(self._now, request.loaded_s, tier.source.tier, size + queued)
        self._loads.append(load)
        if not plan.by_layer:
            self._loading.append(request)
            return
        batch.arrivals.append(tier.source.arrivals(size, self._times.layers, begin_s))
        self._running.append(request)
        self._add_chunk(batch, request)

    def _plan(self, request: Request) -> Plan:
        if not request.hit:
            return NOTHING
        tier = self.tiers[request.source]
        waiting = len(self._waiting) - 1
        queued = tier.queued(self._now)
        return self._policy(Hit(request.prompt, request.hit, tier.source, waiting, queued))

    def _compute(self, batch: Batch) -> None:
        """Computes a step."""
        times = self._times
        layer_s = [times.batch_s(batch.parts)] * times.layers
        arrivals = [max(column) for column in zip(*batch.arrivals, strict=True)]
        self._computed(batch, step(self._now, layer_s, arrivals or [self._now] * times.layers))

    def _computed(self, batch: Batch, done: Step) -> None:
        """Counts a step."""
        bubble_s = done.fill_s + done.steady_s
        totals = self.totals
        totals.compute_s += done.compute_s
        totals.bubble_s += bubble_s
        totals.stall_s += bubble_s if batch.decodes else 0.0
        totals.steps += 1
        if self._observer is not None and not batch.arrivals:
            self._observer.step(batch.parts, done.compute_s)
        self._now = done.end_s
        for request, part in zip(batch.requests, batch.parts, strict=True):
            self._advance(request, part.new)

    def _advance(self, request: Request, new: int) -> None:
        """Counts the tokens of a step of one request, which may end with them."""
        request.computed += new
        if request.computed < request.prompt:
            return
        request.answered += 1
        if request.answered == 1:
            request.first_token_s = self._now
        if request.answered == request.output:
            request.end_s = self._now
            self.blocks.free(request.blocks)
            self._running.remove(request)
