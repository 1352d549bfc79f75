"""Decides how many blocks of a request are loaded, and how, from measured costs.

1. With the policy `auto`, the first token is predicted to come no later than if nothing was loaded,
   and no load is chosen that would be given up.
2. A step waits for blocks at most `max_wait_s` while it computes nothing, as predicted, or ten
   times as long if it delays nobody.
3. Nothing here does I/O or waits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

from dalsegno import LoadTerms
from dalsegno.integrations.common.phases import Phases
from dalsegno.integrations.common.running import Back, Running, RunningLoads
from dalsegno.integrations.common.settings import StoreSettings
from dalsegno.integrations.common.step_waits import StepWaits
from dalsegno.integrations.common.steps import StepTime
from dalsegno.integrations.common.wishes import Runs, Wish, farthest, part
from dalsegno.profiles import Profile

# A step whose tokens attend to fewer others decodes, on average over all tokens that are read; so
# many others must have been measured before a step waits for blocks that are read beside it.
PROMPT_PAIRS, FEW_STEPS = 32, 3
# A load is given up if it takes so many times longer than predicted, and at least `LEAST_LOAD_S`.
PATIENCE, LEAST_LOAD_S = 4.0, 1.0
# A load of several tiers is late by far if it takes so many times longer than all of them should.
LATE = 1.5
# A sample is early if it takes so many times less than loads of its size.
EARLY = 1.5
# With so many waiting requests, the first token of one may come later for the sake of all.
BUSY = 4
# No step takes so long: a clock was wrong.
MOST_STEP_S = 1e3
# Waiting requests that count as many as there can be, for the objective `throughput`.
MANY_WAITING = 1_000_000

# What a read has shown: a surprise has to be confirmed by another one.
Shown = Literal["nothing", "surprise", "change"]


@dataclass(frozen=True)
class Engine:
    """What an engine computes and loads.

    Attributes:
        layers: Layers of the model.
        block_bytes: Bytes of a block, on one worker.
        block_tokens: Tokens of a block.
        chunk: Tokens of one request that a step computes at most.
        max_wait_s: Seconds for which a load may delay a step, if that delays others.
    """

    layers: int
    block_bytes: int
    block_tokens: int
    chunk: int
    max_wait_s: float = 0.0


class Decision(NamedTuple):
    """What is loaded.

    Attributes:
        blocks: How many leading blocks.
        in_step: Whether a step waits for them, not their request.
        load_s: Seconds that most such loads do not exceed.
        step_s: Seconds that the step behind them computes.
        saved_s: Seconds of computing that they save.
        front: How many of them are computed, as predicted, while the others are loaded, from the
            last one on; 0 if they are loaded in another way.
        part: Blocks of a part, if they are loaded from the last one on.
        wait_s: Seconds for which the step behind them may wait.
    """

    blocks: int
    in_step: bool = False
    load_s: float = 0.0
    step_s: float = 0.0
    saved_s: float = 0.0
    front: int = 0
    part: int = 0
    wait_s: float = 0.0


class Listener(Protocol):
    """Hears what is measured."""

    def step(self, engine: Engine, step: StepTime) -> None:
        """A step has computed."""

    def load(self, sizes: Mapping[str, int], seconds: float) -> None:
        """A whole load has ended; bytes by tier."""


# Hears what the deciders of this process measure: `dalsegno profile run` sets one.
listeners: list[Listener] = []


class LoadDecider:
    """Decides for one engine.

    Attributes:
        model: What was learned of it.
        profile: Where it is kept.
        phases: Says to the store what the engine does.
    """

    def __init__(self, settings: StoreSettings, engine: Engine, profile: Profile) -> None:
        """Starts with what earlier engines of the same kind have learned.

        Args:
            settings: The policy.
            engine: What the engine computes and loads.
            profile: What is known of it.
        """
        self._settings, self.profile = settings, profile
        self.engine = engine
        self.model: Any = profile.model()
        self._running = RunningLoads()
        self.phases = Phases(self.model, lambda: self._running.is_loading("log"))
        self._step_waits = StepWaits()
        # Steps of prompts that were measured here, and how long the last step took.
        self._steps, self._last_step_s = 0, 0.0

    @property
    def engine(self) -> Engine:
        """What the engine computes and loads."""
        return self._engine

    @engine.setter
    def engine(self, engine: Engine) -> None:
        self._engine = engine
        self._terms = self._terms_of(engine.block_bytes, engine.block_tokens)

    def decide(self, wish: Wish) -> Decision:
        """Decides what is loaded of what could be."""
        policy = self._settings.load_policy
        most_s = self._settings.load_timeout_s
        if policy == "auto" and (overdue := self._running.overdue(self._last_step_s, most_s)):
            runs = list(itertools.takewhile(lambda run: run[0] not in overdue, wish.runs))
            is_cut = len(runs) < len(wish.runs)
            wish = replace(wish, runs=() if is_cut and wish.whole_bytes else runs)
        if policy == "never" or not wish.runs:
            return Decision(0)
        most = self._step_waits.allowed(wish.runs)
        if most < max(wish.most_copied, wish.most_read):
            copied, read = min(wish.most_copied, most), min(wish.most_read, most)
            wish = replace(wish, most_copied=copied, most_read=read)
        choice = self._choose(wish, load_all=policy == "always")
        blocks = wish.blocks * choice.blocks if wish.whole_bytes else choice.blocks
        in_step = choice.overlapped
        step_s, wait_s = (choice.step_s, choice.wait_s) if in_step else (0.0, 0.0)
        front, part = choice.front, choice.part
        return Decision(blocks, in_step, choice.load_s, step_s, choice.saved_s, front, part, wait_s)

    @property
    def knows_steps(self) -> bool:
        """Whether this engine has measured steps: else no step may rely on what it computes."""
        return self._steps >= FEW_STEPS

    def _choose(self, wish: Wish, *, load_all: bool) -> Any:
        objective = self._settings.load_objective
        waiting, backlog_s = wish.waiting, wish.saved_s
        if objective == "latency":
            waiting = 0
        elif objective == "throughput":
            waiting, backlog_s = MANY_WAITING, math.inf
        elif waiting >= BUSY:
            backlog_s = math.inf
        runs, terms = wish.runs, self._terms
        if wish.whole_bytes:
            # One large block.
            runs = [(farthest(tier for tier, _ in wish.runs), 1)]
            terms = self._terms_of(wish.whole_bytes, wish.blocks * self.engine.block_tokens)
        return self.model.choose(
            terms,
            runs,
            wish.computed,
            wish.prompt,
            most_overlapped=max(wish.most_copied, wish.most_read),
            most_copied=wish.most_copied,
            notice_s=self.notice_s(wish),
            backlog_s=backlog_s,
            waiting=waiting,
            queued=tuple(self._running.queued(wish.promised).values()),
            load_all=load_all,
            both_ends=wish.both_ends,
            are_delayed=wish.delays_others,
        )

    def _terms_of(self, block_bytes: int, block_tokens: int) -> LoadTerms:
        """Returns what is the same in all decisions about blocks of a size."""
        return LoadTerms(
            block_bytes=block_bytes,
            block_tokens=block_tokens,
            chunk=self.engine.chunk,
            layers=self.engine.layers,
            guard_s=self._settings.load_guard_s,
            most_wait_s=self.engine.max_wait_s,
            most_load_s=self._settings.load_timeout_s,
        )

    def notice_s(self, wish: Wish) -> float:
        """Returns the seconds for which a request may wait for others after its load has ended."""
        step_s = self._last_step_s if wish.is_beside else 0.0
        others_s = self.model.request_s(0, wish.longest, self.engine.chunk) if wish.longest else 0.0
        return float(max(step_s, others_s))

    def guard_s(self, wish: Wish) -> float:
        """Returns by how many seconds the first token of a request may come later."""
        return float(self.model.guard_s(self._terms, wish.computed, wish.prompt))

    def computed_s(self, wish: Wish) -> float:
        """Returns the seconds in which a request is computed."""
        return float(self.model.request_s(wish.computed, wish.prompt, self.engine.chunk))

    def between_s(self, first: int, end: int) -> float:
        """Returns the seconds in which a request computes its tokens from one to another one."""
        return float(self.model.request_s(first, end, self.engine.chunk))

    def limit_s(self, decided: Decision, most_s: float) -> float:
        """Returns the seconds after which a load is given up for which no step waits.

        Args:
            decided: What is loaded.
            most_s: Most seconds of any load.
        """
        if self._settings.load_policy == "always":
            return most_s
        return min(most_s, max(LEAST_LOAD_S, PATIENCE * decided.load_s))

    def loss_s(self, wish: Wish) -> float:
        """Returns by how many seconds loading all is predicted to be slower than computing it."""
        everything = self._choose(wish, load_all=True)
        return float(everything.load_s - everything.saved_s)

    def sizes(self, wish: Wish, count: int) -> dict[str, int]:
        """Returns the bytes of so many leading blocks by tier."""
        if wish.whole_bytes and count:
            return {farthest(tier for tier, _ in wish.runs): wish.whole_bytes}
        return self._sizes(wish.runs, count)

    def _sizes(self, runs: Runs, end: int, first: int = 0) -> dict[str, int]:
        """Returns the bytes of blocks from a position to another one by tier."""
        sizes: dict[str, int] = {}
        for tier, blocks in part(runs, first, end):
            sizes[tier] = sizes.get(tier, 0) + blocks * self.engine.block_bytes
        return sizes

    def begin_load(self, number: int, runs: Runs, end: int, first: int = 0) -> None:
        """Notes that a load of the blocks from a position to another one begins."""
        self.begin_bytes(number, self._sizes(runs, end, first))

    def begin_bytes(self, number: int, sizes: dict[str, int]) -> None:
        """Notes that a load begins, of so many bytes from each tier."""
        self._running.begin(number, sizes, self.model.load_s)

    def end_load(
        self, number: int, seconds: float, *, is_whole: bool, was_late: bool = False
    ) -> None:
        """Learns how long a load took.

        Args:
            number: Of the load.
            seconds: On the slowest worker; 0 if it did not begin.
            is_whole: Whether it has brought all blocks.
            was_late: Whether it was given up because a step would have waited too long.
        """
        running = self._running.end(number, is_known=is_whole and seconds > 0)
        if running is None or not seconds or not running.sizes:
            return
        for listener in listeners if is_whole else ():
            listener.load(running.sizes, seconds)
        # Else nobody knows what was read before it.
        if not is_whole or running.queued is not None:
            self._learn(running, seconds, is_whole=is_whole, was_late=was_late)

    def end_back(
        self, number: int, runs: Runs, loaded: tuple[int, int], seconds: float, part: int
    ) -> Back | None:
        """Learns how long a load took that was ended where computing had come to.

        Args:
            number: Of the load.
            runs: The tiers of the blocks that it could have loaded.
            loaded: Position of the first block that it has loaded, and behind the last one.
            seconds: Until these were there; without any, for how long the first part was awaited; 0
                if that says nothing.
            part: Blocks of that.

        Returns:
            What was loaded, if it is of one tier.
        """
        low, high = loaded
        if low < high:
            sizes = self._sizes(runs, high, low)
            self._running.shrink(number, sizes)
            self.end_load(number, seconds, is_whole=True)
            return Back(*sizes.popitem(), seconds) if len(sizes) == 1 else None
        running = self._running.loads.get(number)
        self.end_load(number, 0.0, is_whole=False)
        if running is not None and running.queued is not None:
            for tier, size in self._sizes(runs, high, high - part).items():
                # It takes longer, with what was queued before. 0 seconds teach nothing.
                self.note_read(tier, running.queued[tier] + size, seconds, is_whole=False)
        return None

    def _learn(self, running: Running, seconds: float, *, is_whole: bool, was_late: bool) -> None:
        queued = running.queued or {}
        sizes = {tier: queued.get(tier, 0) + size for tier, size in running.sizes.items()}
        # What one load had of several tiers is set against the one that should take longest. If it
        # was late by far, the farthest one is to blame: nothing was heard of it.
        expected = {tier: self.model.load_s(tier, size) for tier, size in sizes.items()}
        slowest = max(expected, key=lambda tier: expected[tier])
        was_in_time = is_whole and seconds <= LATE * sum(expected.values())
        if not was_in_time:
            slowest = farthest(expected)
        own_s = seconds - sum(expected[tier] for tier in expected if tier != slowest)
        if is_whole and own_s > 0:
            shown = self.model.note_load(slowest, sizes[slowest], own_s)
            if shown == "change":
                self._step_waits.note_change(slowest)
            elif was_in_time:
                self._step_waits.note_in_time(slowest)
        elif was_late:
            self.model.note_late_in_step(slowest)
            self._step_waits.note_late(slowest)
        elif own_s > expected[slowest]:
            self.model.note_given_up(slowest, sizes[slowest])

    @property
    def read(self) -> Mapping[str, int]:
        """The bytes, by tier, of a read under way for which no request waits."""
        return self._running.read

    @read.setter
    def read(self, sizes: Mapping[str, int]) -> None:
        self._running.read = sizes

    def is_loading(self, tier: str) -> bool:
        """Whether loads under way have blocks of a tier."""
        return self._running.is_loading(tier)

    def note_read(self, tier: str, size: int, seconds: float, *, is_whole: bool = True) -> Shown:
        """Learns how long a read of so many bytes took that nobody waited for.

        Args:
            tier: Of which it was.
            size: Its bytes.
            seconds: How long it took.
            is_whole: Whether it was not given up after that.

        Returns:
            What it has shown.
        """
        if not seconds > 0:
            return "nothing"
        if is_whole and seconds <= LATE * self.model.load_s(tier, size):
            self._step_waits.note_read(tier)
        shown: Shown = self.model.note_read(tier, size, seconds, whole=is_whole)
        if shown == "change":
            self._step_waits.note_change(tier)
        return shown

    def is_early(self, tier: str, size: int, seconds: float) -> bool:
        """Whether so many bytes took far less time than loads of their size."""
        return 0 < EARLY * seconds < float(self.model.load_s(tier, size))

    def note_sample(self, tier: str, size: int, seconds: float) -> bool:
        """Learns how long a sample took: a small read, whose time is not set against others.

        Returns:
            Whether it was so early that the tier should be measured by larger reads.
        """
        if not self.is_early(tier, size, seconds):
            return False
        self.model.note_early_sample(tier, size)
        return True

    def note_step(self, step: StepTime) -> None:
        """Learns how long a step took."""
        work = step.work
        for listener in listeners:
            listener.step(self.engine, step)
        self.phases.note_step(step)
        self._steps += work.pairs >= PROMPT_PAIRS * work.read
        if 0 < step.seconds < MOST_STEP_S:
            self._last_step_s = step.seconds
        self.model.note_step(work.tokens, work.pairs, work.read, step.seconds)
        self.profile.keep(self.model)

    def close(self) -> None:
        """Keeps what was learned for the next engine of the kind."""
        self.profile.save(self.model)
