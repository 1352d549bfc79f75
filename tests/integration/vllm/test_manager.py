"""`DalsegnoTier` under vLLM's own tiering manager, which asserts what a tier must not do."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.integration.vllm import tiers
from tests.integration.vllm.tiers import ROW_BYTES, content, counted, keys, request_context
from vllm.v1.kv_offload.base import LookupResult, ScheduleEndContext
from vllm.v1.kv_offload.tiering.manager import (
    CPUPrimaryTierOffloadingManager,
    TieringOffloadingManager,
)

from dalsegno.integrations.vllm import compat

pytestmark = pytest.mark.engine
ROWS = 16


class Stage:
    """vLLM's manager with a small primary tier and one of ours behind it."""

    def __init__(self, path: Path, **settings: Any) -> None:
        name = f"dalsegno-test-{secrets.token_hex(4)}"
        region = tiers.region(name, ROWS, None, ROW_BYTES)
        primary = CPUPrimaryTierOffloadingManager(ROWS, region)
        self.rows = tiers.mapped(region).view(ROWS, ROW_BYTES).numpy()
        self.tier = tiers.open_tier(path, primary.get_kv_memoryview(), **settings)
        self.manager = TieringOffloadingManager(primary, [self.tier])
        # As vLLM's spec has it, once it made the manager.
        self.tier._spec._manager = self.manager

    def step(self) -> None:
        """Ends an engine step."""
        self.manager.on_schedule_end(ScheduleEndContext((), ()))

    def reset(self) -> None:
        """Empties the primary tier as an engine does between its steps."""
        self.manager.reset_cache()
        # Until it is called, vLLM 0.33 and later answer every lookup with a miss.
        if flushed := getattr(self.manager, "on_reset_flushed", None):
            flushed()

    def close(self) -> None:
        del self.rows
        self.manager.shutdown()

    def prefix(self, wanted: list[bytes], context: Any) -> int | None:
        """vLLM's look-up of a prompt: leading hits, or None if some are on their way."""
        hits, pending = 0, False
        for key in wanted:
            result = self.manager.lookup(key, context)
            if result is LookupResult.MISS:
                break
            pending = pending or result is not LookupResult.HIT
            hits += 1
        return None if pending else hits

    def serve(self, wanted: list[bytes], name: str) -> int:
        """Serves a request as vLLM does; returns how many blocks came from a tier."""
        context = request_context(name, wanted)
        self.manager.on_new_request(context)
        end = time.monotonic() + 60
        while (hits := self.prefix(wanted, context)) is None:
            assert time.monotonic() < end, "the request is deferred forever"
            self.step()
        if hits:
            rows = compat.chunk_ids(self.manager.prepare_load(wanted[:hits], context))
            for row, key in zip(rows, wanted[:hits], strict=True):
                assert self.rows[row].tobytes() == content(key), "wrong bytes"
            self.manager.complete_load(wanted[:hits], context)
        output = self.manager.prepare_store(wanted[hits:], context) if hits < len(wanted) else None
        if output is not None and output.keys_to_store:
            stored = compat.chunk_ids(output.store_spec)
            for row, key in zip(stored, output.keys_to_store, strict=True):
                self.rows[row] = memoryview(content(key)).cast("b")
            self.manager.complete_store(output.keys_to_store, context)
        self.step()
        self.manager.on_request_finished(context)
        return hits

    def settle(self) -> None:
        """Steps until nothing is under way."""
        end = time.monotonic() + 60
        while self.manager.has_pending_work():
            assert time.monotonic() < end
            self.step()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "store")
    yield made
    made.close()


def test_blocks_that_left_the_primary_tier_come_back(stage: Stage) -> None:
    prompts = {name: keys(8, prompt=name) for name in "abcd"}
    for name, wanted in prompts.items():
        assert stage.serve(wanted, name) == 0
        stage.settle()
    for name, wanted in prompts.items():
        assert stage.serve(wanted, f"{name}2") == 8
    numbers = counted(stage.manager.get_stats())
    assert numbers["stored_blocks"] == 32
    assert numbers["loaded_blocks"] >= 16


@pytest.mark.parametrize("seed", range(3))
def test_no_assertion_of_vllm_fails_when_blocks_vanish_and_bounds_are_hit(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    stage = Stage(
        tmp_path / "store", max_load_jobs=1, max_store_jobs=2, max_store_bytes=6 * ROW_BYTES
    )
    served = 0
    for number in range(120):
        name = chance.choice("abcdef")
        served += stage.serve(keys(chance.randint(1, 12), prompt=name), f"r{number}")
        opened = stage.tier._backend.current
        assert opened is not None
        if chance.random() < 0.3:
            victim = chance.choice(keys(12, prompt=chance.choice("abcdef")))
            opened.namespaces[0].remove([victim[:32]])
        if chance.random() < 0.2:
            stage.settle()
        if chance.random() < 0.03:
            stage.reset()
    assert served > 0
    stage.settle()
    stage.close()


def test_a_broken_store_never_stops_vllm(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = keys(8)
    stage.serve(wanted, "a")
    stage.settle()

    def broken(*_: Any) -> Any:
        raise OSError("broken")

    monkeypatch.setattr("dalsegno.integrations.vllm.transfers.address", broken)
    for number in range(5):
        stage.serve(keys(8, prompt=f"p{number}"), f"b{number}")
    stage.settle()
    monkeypatch.undo()
    assert stage.serve(wanted, "c") == 8


def test_many_requests_share_the_loads_that_are_allowed_and_all_are_served(tmp_path: Path) -> None:
    # Together eight times the primary tier, which holds 16 blocks.
    prompts = {f"r{number}": keys(2, prompt=f"p{number} ") for number in range(64)}
    stage = Stage(tmp_path / "store", capacity="256MiB", max_load_bytes=4 * ROW_BYTES)
    for name, wanted in prompts.items():
        stage.serve(wanted, f"{name} first")
        stage.settle()
    waiting = {name: request_context(name, wanted) for name, wanted in prompts.items()}
    for context in waiting.values():
        stage.manager.on_new_request(context)
    served, steps, most = {}, 0, 0
    while waiting:
        for name, context in list(waiting.items()):
            hits = stage.prefix(prompts[name], context)
            if hits is not None:
                served[name] = hits
                stage.manager.on_request_finished(waiting.pop(name))
        stage.step()
        most = max(most, stage.tier._mover.jobs.loading_bytes())
        steps += 1
        assert steps < 20_000, "requests are deferred forever"
        time.sleep(0.0005)
    assert 0 < most <= 4 * ROW_BYTES
    assert sum(served.values()) == 128, "every block that the store has"
    assert counted(stage.tier.get_stats())["deferred_lookups"] > 0
    stage.settle()
    stage.close()


def test_a_request_whose_loads_may_not_start_is_computed_in_time(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "store", max_load_bytes=ROW_BYTES, load_timeout_s=0.2)
    wanted = keys(3)
    stage.serve(wanted, "first")
    stage.settle()
    stage.reset()
    stage.serve(wanted, "again")
    stage.settle()
    stage.manager.primary_tier.reset_cache()
    # Something is always in flight, for others.
    stage.tier._mover.jobs._loading_bytes = ROW_BYTES
    started = time.monotonic()
    assert stage.serve(wanted, "late") == 0
    assert 0.2 < time.monotonic() - started < 60
    numbers = counted(stage.tier.get_stats())
    assert numbers["deferral_timeouts"] == 1
    stage.tier._mover.jobs._loading_bytes = 0
    assert stage.serve(wanted, "later") == 3
    stage.settle()
    stage.close()


def clock_ahead_by(seconds: float) -> float:
    return time.monotonic() + seconds


def test_a_request_whose_loads_keep_failing_is_computed(tmp_path: Path, monkeypatch: Any) -> None:
    stage = Stage(tmp_path / "store", failed_load_pause_s=3600)
    gate = stage.tier._mover.gate
    wanted = keys(3)
    stage.serve(wanted, "first")
    stage.settle()
    opened = stage.tier._backend.current
    assert opened is not None
    space = opened.namespaces[0]
    tried = 0

    class Failing:
        """A namespace whose loads take no time and bring nothing."""

        def __getattr__(self, name: str) -> Any:
            return getattr(space, name)

        def submit_get(self, hashes: list[bytes], out: Any, **options: Any) -> Any:
            nonlocal tried
            tried += 1
            return space.submit_get(hashes, out, **{**options, "timeout_s": 1e-9})

    for number in range(5):
        stage.manager.primary_tier.reset_cache()
        monkeypatch.setitem(opened.namespaces, 0, Failing())
        before = tried
        assert stage.serve(wanted, f"fails {number}") == 0
        assert tried == before + 1, "one attempt for each request"
        stage.settle()
        # For others it is a miss for a while, without an attempt.
        stage.manager.primary_tier.reset_cache()
        assert stage.serve(wanted, f"pauses {number}") == 0
        assert tried == before + 1
        stage.settle()
        gate._clock = partial(clock_ahead_by, 3601 * (number + 1))
    monkeypatch.undo()
    stage.manager.primary_tier.reset_cache()
    assert stage.serve(wanted, "well") == 3
    stage.close()


def fill(stage: Stage) -> tuple[Any, Any]:
    """Lets a transfer from the GPU take every row; returns its request and the keys it stores."""
    others = keys(ROWS, prompt="others")
    stage.manager.primary_tier.reset_cache()
    busy = request_context("busy", others)
    stage.manager.on_new_request(busy)
    output = stage.manager.prepare_store(others, busy)
    assert output is not None
    return busy, output.keys_to_store


def test_lookups_wait_for_a_row_while_transfers_use_the_whole_primary_tier(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "store")
    wanted = keys(3)
    stage.serve(wanted, "first")
    stage.settle()
    busy, stored = fill(stage)
    assert len(stored) == ROWS, "a transfer from the GPU fills every row"
    again = request_context("again", wanted)
    stage.manager.on_new_request(again)
    for _ in range(3):
        assert stage.manager.lookup(wanted[0], again) is LookupResult.RETRY
        stage.step()
    numbers = counted(stage.tier.get_stats())
    assert numbers["full_tier_lookups"] == numbers["deferred_lookups"] == 3
    stage.manager.complete_store(stored, busy)
    stage.settle()
    stage.manager.on_request_finished(busy)
    assert stage.serve(wanted, "again") == 3
    assert "deferral_timeouts" not in counted(stage.tier.get_stats())
    stage.settle()
    stage.close()


def test_a_request_that_waits_for_a_row_is_computed_in_time(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "store", load_timeout_s=0.2)
    wanted = keys(3)
    stage.serve(wanted, "first")
    stage.settle()
    busy, stored = fill(stage)
    started = time.monotonic()
    assert stage.serve(wanted, "late") == 0
    assert time.monotonic() - started > 0.2
    assert counted(stage.tier.get_stats())["deferral_timeouts"] == 1
    stage.manager.complete_store(stored, busy)
    stage.settle()
    stage.manager.on_request_finished(busy)
    stage.close()
