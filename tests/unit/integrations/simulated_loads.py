"""An engine and its tiers in virtual time, with costs that an oracle knows.

1. A request is served as vLLM's direct path serves it: the load has its time limit, what did not
   arrive is computed, and the decider sees the same measurements. Declined blocks are read again.
2. Outcomes are exact. Only what is measured has noise, and a clock may be wrong.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dalsegno.integrations.common.deciding import Decision, Engine, LoadDecider
from dalsegno.integrations.common.rereads import LEAST_S, Turns
from dalsegno.integrations.common.settings import StoreSettings
from dalsegno.integrations.common.steps import StepTime, work_of
from dalsegno.integrations.common.wishes import Wish, part
from dalsegno.profiles import ComputePrior, Profile

SETTINGS = StoreSettings(path=Path("/store"), keep_profile=False)
# Llama-3-8B: 128 KiB of a token.
ENGINE = Engine(layers=32, block_bytes=2 << 20, block_tokens=16, chunk=8192, max_wait_s=0.05)
NOISE = 0.02
DECODED = 4


@dataclass
class Costs:
    """What computing and loading really take.

    Attributes:
        step_s: Seconds of a step.
        token_s: Of a token.
        pair_s: Of a pair of tokens.
        read_s: Of a token that is read.
        slower: Factor of all of them.
        tiers: Seconds in which so many bytes of a tier arrive; infinite while it hangs.
    """

    step_s: float = 9.6e-3
    token_s: float = 4.3e-5
    pair_s: float = 1.75e-9
    read_s: float = 6.6e-8
    slower: float = 1.0
    tiers: dict[str, Callable[[float], float]] = field(
        default_factory=lambda: {"dram": affine(1e-3, 2e10), "log": affine(2e-3, 3e9)}
    )

    def step(self, before: int, new: int) -> float:
        """Returns the seconds of a step of one request."""
        terms = self.step_s + self.token_s * new + self.read_s * (before + new)
        return self.slower * (terms + self.pair_s * new * (before + new / 2))

    def compute(self, begin: int, end: int) -> float:
        """Returns the seconds in which a request computes its tokens."""
        return sum(self.step(*part) for part in chunks(begin, end))

    def load(self, runs: list[tuple[str, int]], count: int, share: float = 1.0) -> float:
        """Returns the seconds in which leading blocks arrive, or this share of each."""
        each = ENGINE.block_bytes * share
        return sum(self.tiers[tier](blocks * each) for tier, blocks in part(runs, 0, count))


def affine(latency_s: float, bytes_per_s: float) -> Callable[[float], float]:
    """Returns the time of loads from a tier."""
    return lambda size: latency_s + size / bytes_per_s


class Bursts:
    """A disk that brings all bytes of a while at its start, as limits of a disk's rate do."""

    EACH_S = 0.1

    def __init__(self, bytes_per_s: float, seed: int) -> None:
        self._bytes_per_s, self._random = bytes_per_s, random.Random(seed)
        self.next_request()

    def next_request(self) -> None:
        """Lets some time pass: how much of a while is left when a load begins."""
        self._left = self._random.random()

    def __call__(self, size: float) -> float:
        """Returns the seconds in which so many bytes arrive."""
        whiles = math.ceil(size / (self._bytes_per_s * self.EACH_S))
        return 1e-3 + self.EACH_S * max(0.0, whiles - 1 + self._left)


def throttled(bytes_per_s: float) -> Callable[[float], float]:
    """Returns the time of loads from a disk that is limited as cgroups do: what it brings in a
    while comes at once, and more at the rate."""
    return lambda size: 1e-3 + size / (bytes_per_s if size > 0.1 * bytes_per_s else 2e10)


def hangs(size: float) -> float:
    """Returns the time of loads from a tier that does not respond."""
    return math.inf


def chunks(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the steps of a request: tokens before, and new ones."""
    for first in range(begin, end, ENGINE.chunk):
        yield first, min(ENGINE.chunk, end - first)


def decider(*, compute: float = 1.0, disk: float = 1.0, **settings: Any) -> LoadDecider:
    """Returns what decides, with a profile that is wrong by some factors.

    Args:
        compute: By how much it says that computing takes longer.
        disk: By how much it says that the disk takes longer.
        settings: That are not the defaults.
    """
    costs = Costs()
    names = ("step_s", "token_s", "pair_s", "read_s")
    prior = ComputePrior(*(compute * getattr(costs, name) for name in names))
    known = {
        tier: {
            "latency_s": factor * time(0.0),
            "byte_s": factor * (time(1.0) - time(0.0)),
        }
        for tier, factor, time in (
            ("dram", 1.0, costs.tiers["dram"]),
            ("log", disk, costs.tiers["log"]),
            ("far", 1.0, affine(2e-2, 5e8)),
        )
    }

    class Known(Profile):
        def model(self) -> Any:
            return self.model_of({"compute": vars(prior), "tiers": known})

    given = StoreSettings(**{**vars(SETTINGS), **settings})
    return LoadDecider(given, ENGINE, Known({}, prior, None))


@dataclass(frozen=True)
class Served:
    """A request that was served.

    Attributes:
        decision: What was decided.
        first_token_s: When its first token came.
        computed_s: The same if nothing is loaded.
        loaded_s: The same if everything is loaded, ahead.
        limit_s: The time limit of its load; 0 without one.
        is_whole: Whether the load ended within it.
    """

    decision: Decision
    first_token_s: float
    computed_s: float
    loaded_s: float
    limit_s: float
    is_whole: bool

    @property
    def guard_s(self) -> float:
        """By how many seconds it may come later."""
        return max(SETTINGS.load_guard_s, 0.02 * self.computed_s)

    @property
    def late_s(self) -> float:
        """By how many seconds it came later than computing."""
        return self.first_token_s - self.computed_s

    @property
    def is_late(self) -> bool:
        """Whether it came later by more than the guard."""
        return self.late_s > self.guard_s * 1.001

    @property
    def agrees(self) -> bool:
        """Whether the decision was as good as the better one of none and all."""
        best_s = min(self.computed_s, self.loaded_s)
        return self.first_token_s <= best_s + self.guard_s * 1.001


def step(
    load_s: Callable[[float], float], step_s: float, most_wait_s: float
) -> tuple[float, float]:
    """Computes a step that waits for each layer of a load.

    Args:
        load_s: Seconds in which this share of it arrives.
        step_s: Seconds that the step computes.
        most_wait_s: Seconds for which it may wait.

    Returns:
        The seconds for which it waits, and those after which the load ended or was given up.
    """
    now = waited_s = 0.0
    for layer in range(1, ENGINE.layers + 1):
        wait_s = max(0.0, load_s(layer / ENGINE.layers) - now)
        if waited_s + wait_s > most_wait_s:
            return most_wait_s, now + most_wait_s - waited_s
        waited_s += wait_s
        now += wait_s + step_s / ENGINE.layers
    return waited_s, load_s(1.0)


Clock = Callable[[float], float]


class World:
    """Serves requests one after the other.

    Attributes:
        decides: Decides.
        costs: What computing and loading really take.
        clock: What a clock measures of a time.
        in_steps: Whether steps may wait for blocks.
        most_load_s: Seconds after which loads are given up.
        wish: Tokens and blocks of each request; random ones if none.
    """

    def __init__(self, decides: LoadDecider, seed: int = 1, *, in_steps: bool = False) -> None:
        self.decides, self.costs, self.in_steps = decides, Costs(), in_steps
        self.most_load_s = SETTINGS.load_timeout_s
        self.wish: tuple[int, int] | None = None
        self._random = random.Random(seed)
        self._number = 0
        self._turns = Turns()
        self.clock: Clock = lambda seconds: seconds * self._random.gauss(1, NOISE)

    def serve(
        self, count: int, tiers: tuple[str, ...] = ("log",), waiting: int = 0
    ) -> list[Served]:
        """Serves so many requests, of random prompts and hits in some tiers."""
        return [self._serve(self._wish(tiers, waiting)) for _ in range(count)]

    def _wish(self, tiers: tuple[str, ...], waiting: int) -> Wish:
        prompt = int(2 ** self._random.uniform(9, 16))
        left = int(self._random.random() * (prompt - 1)) // ENGINE.block_tokens
        if self.wish is not None:
            prompt, left = self.wish
        runs = []
        for tier in tiers[:-1]:
            runs.append((tier, self._random.randint(0, left)))
            left -= runs[-1][1]
        runs.append((tiers[-1], left))
        wish = Wish([run for run in runs if run[1]], 0, prompt, waiting=waiting)
        if self.in_steps and self.decides.knows_steps:
            wish.most_read = wish.blocks
        return wish

    def _serve(self, wish: Wish) -> Served:
        decision = self.decides.decide(wish)
        runs, prompt = list(wish.runs), wish.prompt
        computed_s = self.costs.compute(0, prompt)
        all_s = self.costs.load(runs, wish.blocks)
        loaded_s = all_s + self.costs.compute(wish.blocks * ENGINE.block_tokens, prompt)
        begin, waited_s, limit_s, is_whole = 0, 0.0, 0.0, True
        if decision.blocks:
            begin, waited_s, limit_s, is_whole = self._load(wish, decision)
        if decision.blocks < wish.blocks:
            self._read_again(part(wish.runs, decision.blocks), computed_s)
        self._measure_steps(begin, prompt)
        first_token_s = waited_s + self.costs.compute(begin, prompt)
        return Served(decision, first_token_s, computed_s, loaded_s, limit_s, is_whole)

    def _load(self, wish: Wish, decision: Decision) -> tuple[int, float, float, bool]:
        """Loads what was decided.

        Returns:
            The tokens that are there, the seconds for which the request waited, the time limit, and
            whether everything arrived within it.
        """
        runs = list(wish.runs)
        load_s = self.costs.load(runs, decision.blocks)
        begin = decision.blocks * ENGINE.block_tokens
        step_s = self.costs.compute(begin, min(wish.prompt, begin + ENGINE.chunk))
        limit_s, was_late = self.decides.limit_s(decision, self.most_load_s), False
        taken_s, is_whole = min(load_s, limit_s), load_s <= limit_s
        waited_s = taken_s
        if decision.in_step:
            blocks = decision.blocks
            waited_s, taken_s = step(
                lambda share: self.costs.load(runs, blocks, share), step_s, decision.wait_s
            )
            is_whole = taken_s == load_s
            was_late = not is_whole
            # What the step has computed behind blocks that are not there is lost.
            limit_s = decision.wait_s + step_s
        self._begin(wish, decision)
        measured_s = self.clock(taken_s)
        self.decides.end_load(self._number, measured_s, is_whole=is_whole, was_late=was_late)
        return (begin, waited_s, limit_s, True) if is_whole else (0, limit_s, limit_s, False)

    def _begin(self, wish: Wish, decision: Decision) -> None:
        """Notes that a load begins."""
        self._turns.note_loaded(part(wish.runs, 0, decision.blocks))
        self._number += 1
        self.decides.begin_load(self._number, wish.runs, decision.blocks)

    def _read_again(self, runs: list[tuple[str, int]], computed_s: float) -> None:
        """Reads some declined blocks while the request is computed, as the direct path does."""
        tier, blocks = max(runs, key=lambda run: run[1])
        kind = self._turns.begin(tier)
        size = self._turns.count(kind, tier, blocks, ENGINE.block_bytes) * ENGINE.block_bytes
        taken_s, limit_s = self.costs.tiers[tier](size), max(computed_s, LEAST_S)
        is_whole, seconds = taken_s <= limit_s, self.clock(min(taken_s, limit_s))
        if size:
            self._turns.end(self.decides, kind, tier, size, seconds, is_whole=is_whole)

    def _measure_steps(self, begin: int, prompt: int) -> None:
        decoded = ((prompt + at, 1) for at in range(DECODED))
        for before, new in (*chunks(begin, prompt), *decoded):
            work = work_of([(before, new)])
            assert work is not None
            self.decides.note_step(StepTime(work, self.clock(self.costs.step(before, new))))


@dataclass
class _Load:
    number: int
    wish: Wish
    began_at: float
    ends_at: float
    is_whole: bool
    blocks: int


class Queue(World):
    """Serves requests that all wait from the start; loads run beside what the engine computes.

    A tier serves one load after the other. An engine has space for some requests that wait for
    their loads.
    """

    SPACE = 16

    def __init__(self, decides: LoadDecider, seed: int = 1) -> None:
        super().__init__(decides, seed)
        self._loads: list[_Load] = []
        self._free_at: dict[str, float] = {}

    def serve_all(self, wishes: list[Wish]) -> list[float]:
        """Returns when the first tokens of requests came."""
        waiting, ready, came = list(reversed(wishes)), list[tuple[int, int]](), list[float]()
        now, self._free_at = 0.0, dict.fromkeys(self.costs.tiers, 0.0)
        while waiting or self._loads or ready:
            ready += self._report(now)
            if waiting and len(self._loads) < self.SPACE:
                wish = waiting.pop()
                wish.waiting = len(waiting)
                wish.longest = max((one.prompt for one in waiting), default=0)
                decision = self.decides.decide(wish)
                if decision.blocks:
                    self._loads.append(self._start(now, wish, decision))
                    continue
                if wish.blocks and not self._loads:
                    self._read_again(list(wish.runs), self.costs.compute(0, wish.prompt))
                ready.insert(0, (0, wish.prompt))
            if ready:
                begin, prompt = ready.pop(0)
                self._measure_steps(begin, prompt)
                now += self.costs.compute(begin, prompt)
                came.append(now)
            else:
                now = min(load.ends_at for load in self._loads)
        return came

    def _report(self, now: float) -> list[tuple[int, int]]:
        """Ends loads; returns the first tokens to compute and the prompts of their requests."""
        ended = [load for load in self._loads if load.ends_at <= now]
        self._loads = [load for load in self._loads if load.ends_at > now]
        for load in ended:
            seconds = self.clock(load.ends_at - load.began_at)
            self.decides.end_load(load.number, seconds, is_whole=load.is_whole)
        each = ENGINE.block_tokens
        return [(one.blocks * each if one.is_whole else 0, one.wish.prompt) for one in ended]

    def wishes(self, count: int, tiers: tuple[str, ...] = ("log",)) -> list[Wish]:
        """Returns so many random requests."""
        return [self._wish(tiers, 0) for _ in range(count)]

    def _start(self, now: float, wish: Wish, decision: Decision) -> _Load:
        free, left, ends_at = dict(self._free_at), decision.blocks, now
        for tier, blocks in wish.runs:
            taken = min(blocks, left)
            left -= taken
            if taken:
                own_s = self.costs.tiers[tier](taken * ENGINE.block_bytes)
                ends_at = free[tier] = max(ends_at, free[tier]) + own_s
        limit_s = self.decides.limit_s(decision, self.most_load_s)
        self._begin(wish, decision)
        last = min(ends_at, now + limit_s)
        for tier, free_at in free.items():
            # A load that is given up leaves its tier to the next one.
            self._free_at[tier] = max(self._free_at[tier], min(free_at, last))
        return _Load(self._number, wish, now, last, last == ends_at, decision.blocks)
