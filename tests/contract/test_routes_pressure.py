"""Every way to a store under pressure: no room, no time, called off, many at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from tests.contract.places import Place, fill, holds, judged, right_or_missing
from tests.contract.routes import Session, Shape
from tests.contract.subjects import chain
from tests.contract.threads import threads
from tests.outside import disk_bytes

# 32 KiB a block, so that a small store is soon full.
LARGE = Shape(layers=2, tokens=16, heads=4, head_dim=64)
CAPACITY_BYTES = 12 << 20


def test_a_full_store_evicts_old_blocks_and_keeps_recent_ones(place: Place) -> None:
    prompts = [chain(6, f"{number}.") for number in range(100)]
    with place.open(LARGE, capacity=CAPACITY_BYTES) as session:
        for prompt in prompts:
            kept = fill(session, prompt)
            came = right_or_missing(session, prompt)
            assert came == kept
            assert disk_bytes(place.directory) <= CAPACITY_BYTES
        recent = [right_or_missing(session, prompt) for prompt in prompts[-10:]]
        assert sum(came.count(True) for came in recent) >= 48
        for prompt in prompts:
            right_or_missing(session, prompt)
        counters = session.counters()
        assert counters["evicted_blocks"] > 0
        assert counters["disk_bytes"] <= counters["capacity_bytes"] == CAPACITY_BYTES
        block_bytes = session.block_bytes
    with place.open(LARGE, capacity=CAPACITY_BYTES) as session:
        found = sum(right_or_missing(session, prompt).count(True) for prompt in prompts)
        assert 60 <= found <= CAPACITY_BYTES // block_bytes
    assert disk_bytes(place.directory) <= CAPACITY_BYTES


def test_frequently_used_blocks_stay(place: Place) -> None:
    favourite = chain(6)
    with place.open(LARGE, capacity=CAPACITY_BYTES) as session:
        assert all(fill(session, favourite))
        for number in range(80):
            fill(session, chain(6, f"{number}."))
            assert all(right_or_missing(session, favourite))


@pytest.mark.parametrize("timeout_s", [1e-6, 1e-4, 2e-3])
def test_a_short_timeout_yields_right_blocks_or_misses(timeout_s: float, place: Place) -> None:
    old, new = chain(40), chain(40, "new")
    with place.open(LARGE) as session:
        assert all(fill(session, old))
    with place.open(LARGE, timeout_s=timeout_s) as session:
        right_or_missing(session, old)
        kept = fill(session, new)
        right_or_missing(session, new)
        counters = session.counters()
        failed = counters["put_failed_blocks"] + session.failed_blocks()
        failed += counters["put_pending_blocks"] + counters["throttled_transfers"]
        assert all(kept) or failed > 0
    with place.open(LARGE) as session:
        holds(session, old, old)
        came = right_or_missing(session, new)
        assert all(there or not result for there, result in zip(came, kept, strict=True))
        assert all(fill(session, new))
        holds(session, new, new)


def test_no_byte_arrives_in_memory_after_a_cancelled_load(place: Place) -> None:
    prompt = chain(16)
    with place.open(LARGE) as session:
        for _ in range(12):
            assert all(fill(session, prompt))
            judged(session, prompt, session.interrupted_get(prompt))
            as_it_was = session.scribble()
            time.sleep(0.005)
            assert as_it_was is None or as_it_was(), "something landed late"
        assert all(fill(session, prompt))
        holds(session, prompt, prompt)


def works_of(
    session: Session, prompts: list[list[bytes]], *, one_per_direction: bool
) -> list[Callable[[], None]]:
    """What threads do at once: puts and gets of random prompts, as far as the route allows."""

    def work(seed: int, put_share: float) -> Callable[[], None]:
        def go() -> None:
            dice = random.Random(seed)
            for _ in range(30):
                prompt = dice.choice(prompts)
                if dice.random() < put_share:
                    fill(session, prompt)
                else:
                    right_or_missing(session, prompt)
                    session.probe(prompt)

        return go

    if one_per_direction:
        return [work(0, 1.0), work(1, 0.0)]
    return [work(seed, 0.5) for seed in range(4)]


@pytest.mark.parametrize("capacity", ["24MiB", CAPACITY_BYTES], ids=["roomy", "full"])
def test_concurrent_readers_and_writers_see_right_blocks(capacity: object, place: Place) -> None:
    count = 8 if capacity == "24MiB" else 80
    prompts = [chain(2) + chain(6, f"{number}.") for number in range(count)]
    alone = place.route.threads == "one per direction"
    with place.open(LARGE, capacity=capacity) as session:
        with threads(works_of(session, prompts, one_per_direction=alone)):
            pass
        for prompt in prompts:
            assert all(fill(session, prompt))
            assert all(right_or_missing(session, prompt))
        if capacity == "24MiB":
            everything = {one for prompt in prompts for one in prompt}
            for prompt in prompts:
                holds(session, prompt, everything)
    with place.open(LARGE, capacity=capacity) as session:
        for prompt in prompts:
            right_or_missing(session, prompt)
