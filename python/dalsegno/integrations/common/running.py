"""The loads of an engine that have not ended, and what is queued before the next one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dalsegno.integrations.common.wishes import farthest
from dalsegno.profiles import TIERS

# A load under way is overdue after so many times its expected time, and these seconds and steps: it
# is noticed at the end of a step, and with asynchronous scheduling at the end of the next one.
OVERDUE, OVERDUE_S, OVERDUE_STEPS = 2.0, 0.1, 3


@dataclass
class Running:
    """A load that has not ended.

    Attributes:
        sizes: Bytes by tier.
        queued: The same of those before it; None if one was given up, as nobody knows how much of
            it was read.
        expected_s: Seconds in which it should end.
        began: In seconds of the monotonic clock.
    """

    sizes: dict[str, int]
    queued: dict[str, int] | None
    expected_s: float
    began: float = field(default_factory=time.monotonic)


class Back(NamedTuple):
    """The back of a prompt that was loaded.

    Attributes:
        tier: From which.
        size: Its bytes, of one worker.
        seconds: How long it took.
    """

    tier: str
    size: int
    seconds: float


class RunningLoads:
    """All loads that have not ended.

    Attributes:
        loads: By their numbers.
        read: The bytes, by tier, of a read under way for which no request waits.
    """

    def __init__(self) -> None:
        """Starts with none."""
        self.loads: dict[int, Running] = {}
        self.read: Mapping[str, int] = {}

    def queued(self, promised: Mapping[str, int]) -> dict[str, int]:
        """Returns the bytes that each tier has to bring, of loads and reads, and those promised."""
        queued = dict.fromkeys(TIERS, 0)
        for sizes in (self.read, promised, *[one.sizes for one in self.loads.values()]):
            for tier, size in sizes.items():
                queued[tier] += size
        return queued

    def begin(
        self, number: int, sizes: dict[str, int], load_s: Callable[[str, float], float]
    ) -> None:
        """Notes that a load begins.

        Args:
            number: Of the load.
            sizes: Bytes by tier.
            load_s: Returns the seconds in which a tier brings so many bytes.
        """
        queued = self.queued({})
        expected_s = sum(load_s(tier, queued[tier] + size) for tier, size in sizes.items())
        self.loads[number] = Running(sizes, queued, expected_s)

    def end(self, number: int, *, is_known: bool) -> Running | None:
        """Returns a load that has ended, if what it has read is known; else None.

        Args:
            number: Of the load.
            is_known: Whether it has brought all of its bytes.
        """
        running = self.loads.pop(number, None)
        if running is None:
            return None
        tiers, others = running.sizes.keys(), self.loads.values()
        rivals = [one for one in others if not tiers.isdisjoint(one.sizes)]
        if not is_known:
            for one in rivals:
                if one.began > running.began:
                    one.queued = None
        elif any(one.began < running.began for one in rivals):
            # It has overtaken one: nobody knows what was read before it.
            running.queued = None
        return running

    def shrink(self, number: int, sizes: dict[str, int]) -> None:
        """Notes that a load brings fewer bytes than it was begun for."""
        if running := self.loads.get(number):
            running.sizes = sizes

    def is_loading(self, tier: str) -> bool:
        """Whether loads under way have blocks of a tier."""
        return any(one.sizes.get(tier) for one in self.loads.values())

    def overdue(self, step_s: float, most_s: float) -> set[str]:
        """Returns the tiers of which a load under way is late by far.

        The load will show that its tier has changed, but only when it ends or is given up.

        Args:
            step_s: Seconds of a step.
            most_s: Seconds of any load, after which it is given up.
        """
        if not self.loads:
            return set()
        grace_s = OVERDUE_S + OVERDUE_STEPS * step_s
        now, end_s = time.monotonic(), most_s + grace_s
        return {
            farthest(one.sizes)
            for one in self.loads.values()
            if one.sizes and OVERDUE * one.expected_s + grace_s < now - one.began < end_s
        }
