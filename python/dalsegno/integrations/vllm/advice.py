"""Which blocks of a request are worth loading through vLLM's primary tier.

1. How much is loaded is decided once per request: when vLLM first asks for a block that the store
   has, and again after a preemption. Further blocks are misses for this request and no other one.
2. vLLM needs the windows of a model (sliding windows, states of Mamba) whole at the end of what it
   loads. The store may have them at another end only, so such models load all blocks or none. So do
   models whose groups of full attention have blocks of different lengths.
3. Where nothing can be predicted, `auto` loads every hit and logs why: without `DalsegnoConnector`,
   which alone sees vLLM's steps; before vLLM 0.31, which does not say where the blocks of a prompt
   are; and if no group has full attention, as vLLM asks for such blocks from the end.
4. No exception leaves a call, and nothing here waits.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import FullAttentionSpec

from dalsegno import merge_located
from dalsegno.integrations.common.deciding import Decision, Engine, LoadDecider
from dalsegno.integrations.common.opening import Opened
from dalsegno.integrations.common.rereads import Rereads
from dalsegno.integrations.common.steps import StepClock, StepWork, work_of
from dalsegno.integrations.common.wishes import Others, Wish, part
from dalsegno.integrations.vllm import compat, costs, spaces
from dalsegno.integrations.vllm.calls import Calls
from dalsegno.integrations.vllm.direct import choice
from dalsegno.integrations.vllm.jobs import Job
from dalsegno.integrations.vllm.metrics import Meter
from dalsegno.integrations.vllm.request_state import RequestState
from dalsegno.integrations.vllm.settings import TierSettings
from dalsegno.integrations.vllm.transfers import address

logger = init_logger("vllm.dalsegno")

_NO_STEPS = "vLLM's steps are measured only with DalsegnoConnector"
_NO_POSITIONS = "this version of vLLM does not say where the blocks of a prompt are"
_NO_FULL_ATTENTION = "the model has no KV-cache group of full attention"


@dataclass(slots=True)
class Advice:
    """What is loaded for a request.

    Attributes:
        limit: End token of the last block that is loaded.
        timeout_s: Seconds after which a load is given up; None: as every load.
        borders: End tokens of runs of blocks, and their tiers.
        saved_s: Seconds of computing that loading saves, until they are counted.
    """

    limit: float = math.inf
    timeout_s: float | None = None
    borders: Sequence[tuple[int, str]] = ()
    saved_s: float = 0.0

    def tier(self, position: int) -> str:
        """Returns the tier of the block that ends at a token."""
        at = bisect_left(self.borders, position, key=itemgetter(0))
        return self.borders[min(at, len(self.borders) - 1)][1]


@dataclass(frozen=True)
class Groups:
    """The KV-cache groups of a model.

    Attributes:
        full: Tokens of a block of each group of full attention, by its number.
        windows: Of each other group, the tokens of a block, and the blocks of a window.
    """

    full: dict[int, int] = field(default_factory=dict)
    windows: Sequence[tuple[int, int]] = ()

    @property
    def are_equal(self) -> bool:
        """Whether any leading blocks can be loaded; else all or none."""
        return not self.windows and len(set(self.full.values())) <= 1

    def rows(self, tokens: int) -> int:
        """Returns how many blocks all groups load for so many tokens."""
        of_full = sum(tokens // each for each in self.full.values())
        return of_full + sum(min(blocks, -(-tokens // each)) for each, blocks in self.windows)


def groups_of(config: Any, kv_cache_config: Any) -> Groups:
    """Returns the KV-cache groups of a model.

    Args:
        config: vLLM's `OffloadingConfig`.
        kv_cache_config: vLLM's KV-cache groups.
    """
    full, windows = dict[int, int](), list[tuple[int, int]]()
    for number, group in compat.groups(config).items():
        each = group.tokens_per_block * config.cache.blocks_per_chunk
        spec = kv_cache_config.kv_cache_groups[number].kv_cache_spec
        if isinstance(spec, FullAttentionSpec):
            full[number] = each
            continue
        sizes = (getattr(spec, name, 0) for name in ("sliding_window", "attention_chunk_size"))
        # A window may begin inside of a block.
        windows.append((each, -(-max(size or 1 for size in sizes) // each) + 1))
    return Groups(full, windows)


class LoadAdviser:
    """Decides which lookups of a tier are hits.

    Attributes:
        opened: Returns the open store; None without one.
    """

    def __init__(
        self, settings: TierSettings, config: Any, row_bytes: int, meter: Meter, calls: Calls
    ) -> None:
        """Starts without measurements.

        Args:
            settings: Those of the tier.
            config: vLLM's `OffloadingConfig`.
            row_bytes: Bytes of a block.
            meter: Counts blocks that are not loaded.
            calls: Turns exceptions into log lines.
        """
        self._settings, self._config, self._row_bytes = settings, config, row_bytes
        self._meter, self._calls = meter, calls
        self.opened: Callable[[], Opened | None] = lambda: None
        self._decider: LoadDecider | None = None
        self._rereads: Rereads | None = None
        self._others = Others()
        self._groups = Groups()
        self._clock = StepClock()
        self._why, self._has_logged = _NO_STEPS, False
        # Of requests whose loads are decided and have not begun, the bytes by tier.
        self._promised: dict[str, dict[str, int]] = {}

    def measure(self, vllm_config: Any, kv_cache_config: Any) -> None:
        """Begins to decide: steps are seen from now on.

        Args:
            vllm_config: vLLM's configuration.
            kv_cache_config: Its KV-cache groups.
        """
        self._calls.safely("measure", lambda: self._measure(vllm_config, kv_cache_config), None)

    def _measure(self, vllm_config: Any, kv_cache_config: Any) -> None:
        config, groups = self._config, groups_of(self._config, kv_cache_config)
        if not groups.full:
            self._why = _NO_FULL_ATTENTION
            return
        tokens, block_bytes = min(groups.full.values()), self._row_bytes * len(groups.full)
        layers = sum(len(group.layer_names) for group in config.groups)
        chunk = choice.most_tokens(vllm_config.scheduler_config)
        self._decider = costs.create_decider(
            self._settings,
            vllm_config,
            Engine(layers, block_bytes, tokens, chunk),
            self._row_bytes * len(config.groups) / tokens / config.parallel.world_size,
            spaces.place(self._settings, config),
            path="tiered",
        )
        self._groups, self._why, self._rereads = groups, "", Rereads(self._decider)

    def expect(self, request_id: str, tokens: int) -> None:
        """Notes how many tokens a request has that is about to come."""
        if self._decider is not None:
            self._others.wait(request_id, tokens)

    def arrive(self, request_id: str, state: RequestState) -> None:
        """Notes that a request waits from now on."""
        if self._decider is not None:
            self._promised.pop(request_id, None)
            self._others.wait(request_id)
            state.saved_s = self._others.saved_s

    def leave(self, request_id: str) -> None:
        """Notes that a request does not wait any more."""
        self._others.begin(request_id)
        self._promised.pop(request_id, None)

    def finish(self, request_id: str) -> None:
        """Notes that a request has ended."""
        self.leave(request_id)
        self._others.end(request_id)

    def may_load(
        self, opened: Opened | None, key: bytes, request_id: str, state: RequestState
    ) -> bool:
        """Whether a block that the store has is loaded for a request.

        Args:
            opened: The store.
            key: The block.
            request_id: The request.
            state: What is known of it.
        """
        advice = state.advice
        if advice is None:
            is_never = self._settings.load_policy == "never"
            otherwise = Advice(0.0) if is_never else Advice()
            advice = state.advice = self._calls.safely(
                "decide", lambda: self._decide(opened, key, request_id, state), otherwise
            )
        return (state.position(key) or 1) <= advice.limit

    def _decide(
        self, opened: Opened | None, key: bytes, request_id: str, state: RequestState
    ) -> Advice:
        policy, number = self._settings.load_policy, compat.split_key(key)[1]
        keys, at = state.place(key) or ([key], 0)
        why = self._why or (_NO_POSITIONS if state.position(key) is None else "")
        if policy != "never" and (why or number not in self._groups.full):
            if why and policy == "auto" and not self._has_logged:
                self._has_logged = True
                logger.info("Dalsegno loads every hit, because %s.", why)
            return Advice()
        computed = (state.position(keys[at - 1]) or 0) if at else 0
        chains = [keys[at:], *self._further(number, computed, state)]
        runs = [] if opened is None else _located(opened, chains, state)
        if opened is None or not runs or self._decider is None or policy == "never":
            self._decline(sum(count for _, count in runs) * len(chains))
            return Advice(computed if policy == "never" else math.inf)
        wish = Wish(runs, computed, (state.position(keys[-1]) or 0) + 1)
        self._complete(wish, keys[at:], request_id, state)
        decided = self._decider.decide(wish)
        self._decline((wish.blocks - decided.blocks) * len(chains))
        if self._rereads is not None and policy == "auto" and decided.blocks < wish.blocks:
            namespace, names = address(opened, keys[at:][decided.blocks : wish.blocks], state)
            rest, loaded = part(wish.runs, decided.blocks), part(wish.runs, 0, decided.blocks)
            computed_s = self._decider.computed_s(wish)
            self._rereads.offer([namespace], names, rest, computed_s, loaded)
        if not decided.blocks:
            return Advice(computed)
        self._promised[request_id] = self._decider.sizes(wish, decided.blocks)
        return self._advice(self._decider, wish, decided, keys[at:], state)

    def _complete(
        self, wish: Wish, keys: Sequence[bytes], request_id: str, state: RequestState
    ) -> None:
        """Adds what others do, and what the model allows, to what a request could load."""
        self._others.describe(wish, request_id, state.saved_s)
        wish.promised = sum(map(Counter, self._promised.values()), Counter[str]())
        if not self._groups.are_equal:
            end = state.position(keys[wish.blocks - 1]) or 0
            wish.whole_bytes = self._row_bytes * self._groups.rows(end - wish.computed)

    def _advice(
        self,
        decider: LoadDecider,
        wish: Wish,
        decided: Decision,
        keys: Sequence[bytes],
        state: RequestState,
    ) -> Advice:
        """Returns what is loaded of the leading blocks of a chain."""
        ends = [state.position(key) or 0 for key in keys[: wish.blocks]]
        borders, count = [], 0
        for tier, blocks in wish.runs:
            count += blocks
            borders.append((ends[count - 1], tier))
        return Advice(
            math.inf if decided.blocks == wish.blocks else ends[decided.blocks - 1],
            decider.limit_s(decided, self._settings.load_timeout_s),
            borders,
            decided.saved_s,
        )

    def _further(self, number: int, computed: int, state: RequestState) -> list[list[bytes]]:
        """Returns what follows computed tokens in other groups with blocks of the same length."""
        full = self._groups.full
        chains = [
            [key for key in keys if (state.position(key) or 0) > computed]
            for keys in state.chains()
            if (other := compat.split_key(keys[0])[1]) != number
            and full.get(other) == full.get(number, -1)
        ]
        return [keys for keys in chains if keys]

    def _decline(self, count: int) -> None:
        self._meter.count("load_declined_blocks", count)

    def timeout_s(self, state: RequestState | None) -> float:
        """Returns the seconds after which a load of a request is given up."""
        advice = None if state is None else state.advice
        limit_s = None if advice is None else advice.timeout_s
        return self._settings.load_timeout_s if limit_s is None else limit_s

    def begin_load(self, job: Job, request_id: str) -> None:
        """Notes that a job begins to load."""
        self._calls.safely("begin_load", lambda: self._begin_load(job, request_id), None)

    def _begin_load(self, job: Job, request_id: str) -> None:
        state, sizes = job.request, dict[str, int]()
        advice = None if state is None else state.advice
        self.leave(request_id)
        if self._decider is None or state is None or advice is None or not advice.borders:
            return
        for key in job.keys:
            tier = advice.tier(state.position(key) or 0)
            sizes[tier] = sizes.get(tier, 0) + self._row_bytes
        self._decider.begin_bytes(job.job_id, sizes)
        if self._rereads is not None:
            self._rereads.note_loaded(list(sizes.items()))
        self._others.saved_s += advice.saved_s
        advice.saved_s = 0.0
        job.watch()

    def end_load(self, job: Job, *, is_whole: bool) -> None:
        """Learns how long a job has loaded.

        Args:
            job: A load that has ended.
            is_whole: Whether it has brought all blocks.
        """
        if (decider := self._decider) is not None:
            # vLLM asks for ended jobs once per step only.
            ended = max(job.ends) if len(job.ends) == len(job.parts) > 0 else time.monotonic()
            seconds = ended - job.started
            self._calls.safely(
                "end_load",
                lambda: decider.end_load(job.job_id, seconds, is_whole=is_whole),
                None,
            )

    def begin_step(self, output: Any) -> None:
        """Notes that vLLM begins a step.

        Args:
            output: vLLM's `SchedulerOutput`.
        """
        if (decider := self._decider) is not None:
            # A step begins whatever goes wrong, as it will end.
            work = self._calls.safely("begin_step", lambda: _work(output), None)
            self._clock.begin(work)
            computes = bool(output.num_scheduled_tokens)
            if opened := self.opened():
                self._calls.safely(
                    "begin_step",
                    lambda: decider.phases.begin_step(opened.store, work, computes=computes),
                    None,
                )
            for request_id in output.num_scheduled_tokens:
                self.leave(request_id)
            self._others.compute(output.num_scheduled_tokens)

    def end_step(self) -> None:
        """Learns how long the oldest step took that has not ended."""
        if (decider := self._decider) is not None and (step := self._clock.end()) is not None:
            self._calls.safely("end_step", lambda: decider.note_step(step), None)
        if (rereads := self._rereads) is not None:
            self._calls.safely("end_step", rereads.take, None)

    def close(self) -> None:
        """Keeps what was learned for the next engine of the kind."""
        if (decider := self._decider) is not None:
            self._calls.safely("close", decider.close, None)


def _located(
    opened: Opened, chains: Sequence[Sequence[bytes]], state: RequestState
) -> list[tuple[str, int]]:
    """Returns the tiers of the leading blocks that all chains have: the slowest one of each."""
    runs_of_chains = []
    for keys in chains:
        namespace, names = address(opened, keys, state)
        runs_of_chains.append(namespace.locate(names))
    found = min(sum(run["blocks"] for run in runs) for runs in runs_of_chains)
    return merge_located(runs_of_chains, found) if found else []


def _work(output: Any) -> StepWork | None:
    """Returns what a step computes; None for nothing, or if its time says nothing."""
    if output.scheduled_encoder_inputs:
        # It also computes images.
        return None
    cached = output.scheduled_cached_reqs
    before = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    before |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    return work_of((before[name], count) for name, count in output.num_scheduled_tokens.items())
