"""Halves of an engine that have mapped different files for their memory tier share no bytes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.dose import long_dose
from tests.integration.vllm import engine as engine_program
from tests.integration.vllm import engines as engines_module
from tests.integration.vllm import tiers
from tests.integration.vllm.engines import connector, engines
from tests.integration.vllm.tiers import MISS, Primary, Request, counted, finished, open_tier

from dalsegno.integrations.vllm import shared_memory
from dalsegno.integrations.vllm import spec as cpu
from dalsegno.integrations.vllm.tier import DalsegnoTier

pytestmark = pytest.mark.engine
ROWS, ROW_BYTES = 6, 4096


class Halves:
    """The halves of an engine without its model: workers, then the scheduler, as vLLM starts them.

    Attributes:
        spec: That of the scheduler.
    """

    def __init__(self, ranks: int, removed_after: int) -> None:
        """Starts them.

        Args:
            ranks: How many workers there are.
            removed_after: After how many workers another program removes the file; more: never.
        """
        name = f"dalsegno-test-{secrets.token_hex(4)}"
        path = shared_memory.path_of(name)
        self._regions = []
        for rank in range(ranks):
            self._regions.append(tiers.region(name, ROWS, rank, ROW_BYTES, ranks))
            shared_memory.mark(self._regions[-1], rank)
            if rank + 1 == removed_after:
                path.unlink()
        self.scheduler = tiers.region(name, ROWS, None, ROW_BYTES, ranks)
        self._regions.append(self.scheduler)
        self.spec: Any = object.__new__(cpu.DalsegnoSpec)
        self.spec.config = SimpleNamespace(parallel=SimpleNamespace(world_size=ranks))
        self.spec._scheduler_mmap = self.scheduler
        self.path = path

    def stop(self) -> None:
        for region in self._regions:
            shared_memory.quiet_cleanup(region)
            region.cleanup()
        self.path.unlink(missing_ok=True)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_scheduler_finds_the_marks_of_all_workers_and_removes_them(ranks: int) -> None:
    halves = Halves(ranks, removed_after=ranks + 1)
    assert shared_memory.split(halves.spec) == ""
    assert not any(halves.scheduler.mmap_obj[: ROWS * ROW_BYTES]), "blocks have no bytes of ours"
    halves.stop()


@pytest.mark.parametrize(("ranks", "removed_after"), [(1, 1), (2, 1), (3, 2), (3, 3)])
def test_a_file_that_was_removed_while_the_engine_started_is_noticed(
    ranks: int, removed_after: int
) -> None:
    halves = Halves(ranks, removed_after)
    problem = shared_memory.split(halves.spec)
    assert problem.startswith(f"{removed_after} of {ranks} workers have other memory than /dev/shm")
    halves.stop()


def test_memory_that_cannot_be_looked_at_is_not_trusted() -> None:
    spec: Any = object.__new__(cpu.DalsegnoSpec)
    spec.config = SimpleNamespace(parallel=SimpleNamespace(world_size=1))
    assert "does not show" in shared_memory.split(spec)


def test_with_the_spec_of_vllm_a_file_that_the_scheduler_made_is_noticed() -> None:
    name = f"dalsegno-test-{secrets.token_hex(4)}"
    worker = tiers.region(name, ROWS, 0, ROW_BYTES)
    joined = tiers.region(name, ROWS, None, ROW_BYTES)
    assert shared_memory.split(SimpleNamespace(_scheduler_mmap=joined)) == ""
    shared_memory.path_of(name).unlink()
    made = tiers.region(name, ROWS, None, ROW_BYTES)
    assert "no worker has mapped" in shared_memory.split(SimpleNamespace(_scheduler_mmap=made))
    shared_memory.quiet_cleanup(worker)
    for region in (worker, joined, made):
        region.cleanup()


@pytest.fixture
def split_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DalsegnoTier]:
    monkeypatch.setattr(tiers.Spec, "split_memory", lambda _: "1 of 1", raising=False)
    primary = Primary(tiers.ROWS)
    tier = open_tier(tmp_path / "split", primary.view)
    yield tier
    tier.shutdown()
    primary.free()


def test_split_halves_store_nothing_and_load_nothing(split_tier: DalsegnoTier) -> None:
    request = Request(split_tier, "a", tiers.keys(4))
    request.begin()
    request.store(1)
    assert not finished(split_tier)[0].successful_keys
    # What another engine has stored is a miss, too.
    assert request.lookup_all() == [MISS] * 4
    request.load(2)
    assert not finished(split_tier)[0].success
    # A reset does not make one memory of two.
    split_tier.drain_jobs()
    assert request.lookup_all() == [MISS] * 4
    assert counted(split_tier.get_stats())["available"] == 0


def run_split(spec: dict[str, Any], orders: Connection, answers: Connection) -> None:
    """An engine whose file is removed between its halves, if its name says so."""
    made = cpu.DalsegnoCpuSpec._new_worker

    def removed(self: Any, kv_caches: Any) -> Any:
        worker = made(self, kv_caches)
        shared_memory.path_of(self._engine_id).unlink()
        return worker

    if Path(spec["log_file"]).name.startswith("split"):
        cpu.DalsegnoCpuSpec._new_worker = removed  # type: ignore[method-assign]
    engine_program.run(spec, orders, answers)


@long_dose
@pytest.mark.timeout(600)
def test_an_engine_in_two_files_answers_right_and_spoils_no_store(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines_module, "engine_program", SimpleNamespace(run=run_split))
    store = tmp_path / "store"
    with engines(tmp_path, small, split=connector(str(store))) as first:
        answer = first["split"].ask()
    with engines(tmp_path, small, whole=connector(str(store))) as second:
        fresh = second["whole"].ask()
    assert fresh["external_tokens"] == 0, "nothing was stored"
    with engines(tmp_path, small, split=connector(str(store))) as third:
        again = third["split"].ask()
    assert again["external_tokens"] == 0, "nothing is loaded"
    assert answer["token_ids"] == fresh["token_ids"] == again["token_ids"]
