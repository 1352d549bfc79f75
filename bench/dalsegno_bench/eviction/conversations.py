"""Conversations behind one system prompt, with other prompts between their turns.

1. The store is filled first, so that every put of a turn may evict something.
2. Conversations take turns. A turn gets, or puts again, the whole chain so far and appends blocks.
3. A conversation *fits* at a turn if an LRU of ``fit_blocks`` single blocks would hold all of it.
   The other prompts are as many as make an LRU of ``FIT_SHARE`` of that enough.
4. The get or put of a turn reports what it found, so measuring adds no use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dalsegno_bench.eviction.prefixes import (
    PROMPT_BLOCKS,
    ROOT,
    Geometry,
    Setup,
    Subject,
    chain_of,
)
from dalsegno_bench.workload import Lru

__all__ = ["CONVERSATIONS", "TURNS", "Outcome", "Way", "converse"]

CONVERSATIONS = 24
TURNS = 6
# What of a full store is put before the first turn.
FILL = 1.5
# A store that evicts whole segments has no use for all of its bytes.
FIT_SHARE = 2 / 3

Way = Literal["get", "put"]


@dataclass
class Outcome:
    """The fate of the conversations; sets hold their numbers.

    Attributes:
        fitting: Those that fitted at some turn.
        lost: Those of them that lacked blocks at a turn at which they fitted.
        lost_blocks: Most blocks that one of them lacked.
        max_loss_blocks: As of :class:`Subject`.
    """

    fitting: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    lost_blocks: int = 0
    max_loss_blocks: int = 0

    def judge(self, number: int, missing: int, *, fits: bool) -> None:
        """Notes how many blocks a conversation lacked."""
        if fits:
            self.fitting.add(number)
            self.lost_blocks = max(self.lost_blocks, missing)
            if missing:
                self.lost.add(number)


def pause_of(geometry: Geometry) -> int:
    """Other prompts after each turn."""
    longest = len(ROOT) + CONVERSATIONS * TURNS * PROMPT_BLOCKS
    spare = int(FIT_SHARE * geometry.fit_blocks) - longest
    return max(0, spare // (CONVERSATIONS * PROMPT_BLOCKS))


def converse(setup: Setup, geometry: Geometry, way: Way) -> Outcome:
    """Runs all conversations on a store of their own.

    Args:
        setup: The store.
        geometry: What it holds.
        way: Whether a turn gets the chain so far and puts what is behind it, or puts all again.
    """
    outcome = Outcome()
    recent: Lru[bytes] = Lru(geometry.fit_blocks)
    chains = [list(ROOT) for _ in range(CONVERSATIONS)]
    others, pause = 0, pause_of(geometry)
    with Subject(setup) as subject:

        def others_prompt() -> None:
            nonlocal others
            others += 1
            chain = ROOT + chain_of(f"other {others}", PROMPT_BLOCKS)
            # The engine serves the root from its own memory.
            subject.put(chain, len(ROOT))
            recent.use(chain)

        subject.put(ROOT)
        for _ in range(int(FILL * geometry.capacity_prompts)):
            others_prompt()
        for turn in range(TURNS):
            for number, chain in enumerate(chains):
                fits = turn > 0 and recent.holds(chain)
                missing = _turn(subject, chain, f"conversation {number} turn {turn}", way)
                outcome.judge(number, missing, fits=fits)
                recent.use(chain)
                for _ in range(pause):
                    others_prompt()
        for number, chain in enumerate(chains):
            missing = subject.namespace.peek(chain).count(False)
            outcome.judge(number, missing, fits=recent.holds(chain))
        outcome.max_loss_blocks = subject.max_loss_blocks
    return outcome


def _turn(subject: Subject, chain: list[bytes], name: str, way: Way) -> int:
    """Adds a turn to a chain; returns how many blocks were missing before."""
    known = len(chain)
    present = subject.get(chain) if way == "get" else 0
    chain += chain_of(name, PROMPT_BLOCKS)
    stored = subject.put(chain, present)
    return known - present if way == "get" else stored - PROMPT_BLOCKS
