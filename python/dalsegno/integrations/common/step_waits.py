"""For which tiers the steps of an engine may wait.

A load that is late for its step costs its request all the computing that it was to save. Some disks
deliver in bursts: what a request hardly notices is too long for a step, again and again.

1. After a load was late for its step, no step waits for its tier until another load was in time;
   each further step that is late makes it four times as many, at most 1,024.
2. Sixteen reads in time that nobody waited for count as one such load: they are short. A tier whose
   loads pay only inside a step has nothing else to show.
3. After a tier has changed, no step waits for it until a load was in time: some disks bring
   a few bytes immediately.
4. A tier with a hundred times as many loads in time is trusted as if none had been late.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from dalsegno.integrations.common.wishes import Runs

MORE_NEEDED, MOST_NEEDED = 4, 1024
FORGOTTEN = 100
# What a read counts of a load.
READ_PART = 1 / 16


@dataclass
class _Late:
    """A tier whose load was late for its step.

    Attributes:
        needed: Loads in time until a step waits for it again.
        in_time: Loads in time since then.
    """

    needed: int = 1
    in_time: float = 0.0


class StepWaits:
    """The tiers of one engine."""

    def __init__(self) -> None:
        """Starts with trust."""
        self._late: dict[str, _Late] = {}

    def note_late(self, tier: str) -> None:
        """Notes that a load was late for its step."""
        known, needed = self._late.get(tier), 1
        if known is not None:
            # Loads of one step are late together.
            more = MORE_NEEDED if known.in_time >= known.needed else 1
            needed = min(more * known.needed, MOST_NEEDED)
        self._late[tier] = _Late(needed)

    def note_change(self, tier: str) -> None:
        """Notes that a tier has another speed, which larger loads may not have."""
        known = self._late.setdefault(tier, _Late())
        known.in_time = min(known.in_time, known.needed - 1)

    def note_in_time(self, tier: str) -> None:
        """Notes that a load has ended, for which a step or its request waited."""
        self._note(tier, 1.0)

    def note_read(self, tier: str) -> None:
        """Notes that a read has ended in time, for which nobody waited."""
        self._note(tier, READ_PART)

    def _note(self, tier: str, part: float) -> None:
        known = self._late.get(tier)
        if known is None:
            return
        known.in_time += part
        if known.in_time >= FORGOTTEN * known.needed:
            del self._late[tier]

    def allowed(self, runs: Runs) -> int:
        """Returns for how many leading blocks a step may wait."""
        if not self._late:
            return sys.maxsize
        count = 0
        for tier, blocks in runs:
            known = self._late.get(tier)
            if known is not None and known.in_time < known.needed:
                break
            count += blocks
        return count
