"""What vLLM's scheduler calls while the disk of a store hangs for ten seconds: nothing waits.

The disk is a folder behind a file system that hangs on command:
see `dalsegno_bench.machine.faulty`.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.dose import long_dose
from tests.integration.vllm.tiers import MISS, Primary, Request, counted, finished, keys, open_tier

from dalsegno_bench.machine import faulty

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]
HANG_S = 10.0
# What one call of vLLM's scheduler may take on a busy machine; a call that waits takes ten seconds.
CALL_S = 8.0


@pytest.mark.parametrize("index", ["memory", pytest.param("lsm", marks=long_dose)])
def test_no_call_of_the_scheduler_waits_for_a_disk_that_hangs(
    disk: faulty.Faulty, index: str
) -> None:
    memory = Primary(32)
    tier = open_tier(
        disk.path / "store",
        memory.view,
        store={"index": index},
        load_timeout_s=1.0,
        store_timeout_s=1.0,
    )
    ours, longest = keys(20), [0.0]
    Request(tier, "before", ours).keep(memory)

    def timed(call: Any, *arguments: Any) -> Any:
        began = time.monotonic()
        result = call(*arguments)
        longest[0] = max(longest[0], time.monotonic() - began)
        return result

    disk.send("add all hang")
    ends, job = time.monotonic() + HANG_S, 0
    seen: dict[str, float] = {}
    while time.monotonic() < ends:
        asked = Request(tier, f"r{job}", ours)
        timed(asked.begin)
        for key in ours:
            timed(asked.lookup, key)
        for start in (asked.load, asked.store):
            job += 1
            timed(start, job)
        for _ in range(20):
            timed(lambda: list(tier.get_finished_jobs()))
            time.sleep(0.002)
        seen = seen | counted(timed(tier.get_stats))
        timed(asked.end)
    assert longest[0] < CALL_S
    assert seen["suspended"] == 1
    assert Request(tier, "suspended", ours).lookup(ours[0]) is MISS
    disk.send("clear")
    _check_recovered(tier, memory, ours)
    tier.shutdown()
    memory.free()


def _check_recovered(tier: Any, memory: Primary, ours: list[Any]) -> None:
    """Waits until blocks are found again, and loads them."""
    back = time.monotonic() + 60
    while Request(tier, f"back{time.monotonic()}", ours).lookup_all() == [MISS] * len(ours):
        assert time.monotonic() < back
        list(tier.get_finished_jobs())
        time.sleep(0.05)
    memory.array[:] = 0
    Request(tier, "again", ours).load(10_000)
    ended = {result.job_id: result for result in _drained(tier)}
    assert ended[10_000].success
    assert memory.holds(range(20), ours)


def _drained(tier: Any) -> list[Any]:
    """Polls until the last load was reported."""
    results: list[Any] = []
    while all(result.job_id != 10_000 for result in results):
        results += finished(tier)
    return results
