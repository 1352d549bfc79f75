"""A router's view of a `DalsegnoTier`, from the events that the tier hands to vLLM."""

from __future__ import annotations

from vllm.v1.kv_offload.base import Medium, ScheduleEndContext

from dalsegno.integrations.vllm.tier import DalsegnoTier


class Follower:
    """What a router knows of a tier.

    Attributes:
        blocks: The blocks that it counts on.
        announced: How many announcements it got.
    """

    def __init__(self, tier: DalsegnoTier) -> None:
        self._tier = tier
        self.blocks: set[bytes] = set()
        self.announced = 0

    def step(self, *scheduled: str) -> None:
        """Ends a step of vLLM, and reads the events of it."""
        self._tier.on_schedule_end(ScheduleEndContext(scheduled, ()))
        self.read()

    def read(self) -> None:
        """Reads the events."""
        for event in self._tier.take_events():
            assert event.medium == Medium.STORAGE
            # vLLM 0.28 has no owners of events.
            assert getattr(event, "ownership", "dalsegno") == "dalsegno"
            assert len(set(event.keys)) == len(event.keys)
            if event.removed:
                assert self.blocks >= set(event.keys), "withdrawn, but never announced"
                self.blocks -= set(event.keys)
            else:
                assert not self.blocks & set(event.keys), "announced twice"
                self.blocks |= set(event.keys)
                self.announced += len(event.keys)

    def settle(self) -> None:
        """Reads until nothing waits."""
        steps = 0
        while self._tier.has_pending_work():
            self.read()
            steps += 1
            assert steps < 100, "events wait forever"
