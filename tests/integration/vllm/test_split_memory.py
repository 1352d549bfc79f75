"""Halves of an engine that have mapped different files for their memory tier share no bytes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
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
from tests.integration.vllm.tiers import Primary, open_tier

from dalsegno import IncompatibleError
from dalsegno.integrations.vllm import shared_memory
from dalsegno.integrations.vllm import spec as cpu

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


@pytest.fixture
def halves() -> Iterator[Callable[[int, int], Halves]]:
    started: list[Halves] = []

    def start(ranks: int, removed_after: int) -> Halves:
        started.append(Halves(ranks, removed_after))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_scheduler_finds_the_marks_of_all_workers_and_removes_them(
    ranks: int, halves: Callable[[int, int], Halves]
) -> None:
    whole = halves(ranks, ranks + 1)
    shared_memory.check(whole.spec)
    assert not any(whole.scheduler.mmap_obj[: ROWS * ROW_BYTES]), "blocks have no bytes of ours"
    # Each tier of an engine asks.
    shared_memory.check(whole.spec)


@pytest.mark.parametrize(("ranks", "removed_after"), [(1, 1), (2, 1), (3, 2), (3, 3)])
def test_a_file_that_was_removed_while_the_engine_started_is_noticed(
    ranks: int, removed_after: int, halves: Callable[[int, int], Halves]
) -> None:
    problem = f"{removed_after} of its {ranks} workers have other memory"
    with pytest.raises(IncompatibleError, match=problem):
        shared_memory.check(halves(ranks, removed_after).spec)


def test_a_mark_of_a_process_that_is_gone_is_none(
    halves: Callable[[int, int], Halves], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = halves(2, 3)
    monkeypatch.setattr(os, "getpid", lambda: 2**22 + 1)
    shared_memory.mark(left.scheduler, 1)
    monkeypatch.undo()
    with pytest.raises(IncompatibleError, match="1 of its 2 workers"):
        shared_memory.check(left.spec)


def test_memory_that_cannot_be_looked_at_is_not_trusted() -> None:
    spec: Any = object.__new__(cpu.DalsegnoSpec)
    spec.config = SimpleNamespace(parallel=SimpleNamespace(world_size=1))
    with pytest.raises(IncompatibleError, match="does not show"):
        shared_memory.check(spec)


def test_with_the_spec_of_vllm_a_missing_half_is_noticed(
    halves: Callable[[int, int], Halves],
) -> None:
    def of_vllm(started: Halves) -> Any:
        return SimpleNamespace(config=started.spec.config, _scheduler_mmap=started.scheduler)

    shared_memory.check(of_vllm(halves(2, 3)))
    for removed_after in (1, 2):
        with pytest.raises(IncompatibleError, match=f"{removed_after} of its 2 workers"):
            shared_memory.check(of_vllm(halves(2, removed_after)))


def test_a_tier_of_split_halves_opens_no_store(
    tmp_path: Path, halves: Callable[[int, int], Halves], monkeypatch: pytest.MonkeyPatch
) -> None:
    split = halves(1, 1)
    monkeypatch.setattr(tiers.Spec, "check_memory", split.spec.check_memory, raising=False)
    primary = Primary(tiers.ROWS)
    with pytest.raises(IncompatibleError, match="start it again"):
        open_tier(tmp_path / "split", primary.view)
    assert not (tmp_path / "split").exists()
    primary.free()


def run_split(spec: dict[str, Any], orders: Connection, answers: Connection) -> None:
    """An engine whose file is removed between its halves."""
    made = cpu.DalsegnoCpuSpec._new_worker

    def removed(self: Any, kv_caches: Any) -> Any:
        worker = made(self, kv_caches)
        shared_memory.path_of(self._engine_id).unlink()
        return worker

    cpu.DalsegnoCpuSpec._new_worker = removed  # type: ignore[method-assign]
    engine_program.run(spec, orders, answers)


@long_dose
@pytest.mark.timeout(600)
def test_an_engine_in_two_files_does_not_start(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines_module, "engine_program", SimpleNamespace(run=run_split))
    before = set(shared_memory.FOLDER.iterdir())
    with (
        engines(tmp_path, small, split=connector(str(tmp_path / "store"))) as first,
        pytest.raises(AssertionError, match="have other memory"),
    ):
        first["split"].ask()
    left = set(shared_memory.FOLDER.iterdir()) - before
    assert not [path for path in left if path.name.startswith("vllm_offload_")]
