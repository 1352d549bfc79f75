"""The worker's half of the direct path with a real store: what it saves when a step goes wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from tests.served import serving
from tests.unit.stores import chain

import dalsegno
from dalsegno.integrations.vllm.direct import space
from dalsegno.integrations.vllm.direct.planned import PlannedSaves
from dalsegno.integrations.vllm.direct.requests import DirectRequest
from dalsegno.integrations.vllm.direct.step import (
    BlockSpace,
    LoadEnd,
    LoadJob,
    LoadWay,
    SaveJob,
    StepPlan,
    StepReport,
)
from dalsegno.integrations.vllm.direct.worker import DirectWorker
from dalsegno_bench.vllm.rig import group_config, offloading_config

pytestmark = pytest.mark.engine
LAYERS, PAGES, PAGE = 3, 16, 4096
NAMES = [f"layer.{at}" for at in range(LAYERS)]
CONFIG = offloading_config(
    LAYERS * PAGE, 16, engine_id="engine", groups=(group_config(16, tuple(NAMES), 0),)
)
PATIENCE_S = 60.0


class Engine:
    """A worker, its KV cache, the steps that vLLM would run, and the scheduler's list of saves."""

    def __init__(self, namespace: dalsegno.Namespace) -> None:
        noise = torch.Generator().manual_seed(1)
        shape = (PAGES, PAGE)
        self.caches = {
            name: torch.randint(0, 256, shape, dtype=torch.uint8, generator=noise) for name in NAMES
        }
        self.namespace = namespace
        self.saves = PlannedSaves(1)
        self.worker = DirectWorker(CONFIG, PAGES, 60.0)
        self.worker.register(self.caches)

    def save(self, hashes: list[bytes], pages: list[int], first: int = 0) -> SaveJob:
        request = DirectRequest(SimpleNamespace(request_id="request"), None)
        return self.saves.add(request, hashes, first, pages, is_written=True)

    def run(
        self, plan: StepPlan, *, computed: int = LAYERS, hooks_run: bool = True, fails: bool = False
    ) -> StepReport:
        """Runs a step that computes some layers; returns what it reports."""
        self.worker.begin_step(plan)
        self.worker.start_loads(hooks_run=hooks_run)
        for name in NAMES[:computed] if hooks_run else ():
            self.worker.wait_for_layer(name)
            self.worker.save_layer(name)
        self.worker.end_step(is_aborted=fails)
        self.worker.finished()
        return self.worker.take_report() or StepReport()

    def step(self, plan: StepPlan, **how: Any) -> tuple[int, list[int]]:
        """Runs steps until all saves have ended.

        Returns:
            How many blocks were stored, and the numbers of the saves that stored nothing.
        """
        stored, dropped, until = 0, list[int](), time.monotonic() + PATIENCE_S
        report = self.run(plan, **how)
        while True:
            stored += sum(save.puts[0][0] for save in self.saves.take(report))
            plan = StepPlan()
            dropped += [save.job.number for save in self.saves.decide(plan)]
            if not self.saves.is_busy and not plan.void:
                return stored, dropped
            assert time.monotonic() < until
            report = self.run(plan)

    def has_right_bytes(self, hashes: list[bytes], pages: list[int]) -> bool:
        """Whether the store has exactly what the pages have."""
        out = [bytearray(LAYERS * PAGE) for _ in hashes]
        assert self.namespace.get_batch(hashes, out) == len(hashes)
        rows = [
            b"".join(bytes(self.caches[name][page].numpy()) for name in NAMES) for page in pages
        ]
        return rows == [bytes(one) for one in out]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    settings: dict[str, Any] = {"capacity": "64MiB", "staging": "16MiB", "dram": "8MiB"}
    with dalsegno.open(tmp_path / "store", **settings) as store:
        namespace = store.namespace({}, layers=LAYERS, slice_bytes=PAGE)
        here = SimpleNamespace(ranks={0: namespace})
        monkeypatch.setattr(space, "_known", {"engine": here})
        engine = Engine(namespace)
        yield engine
        engine.worker.close()


@pytest.mark.parametrize("hooks_run", [True, False])
def test_a_step_saves_what_it_computed(engine: Engine, hooks_run: bool) -> None:  # noqa: FBT001
    hashes = chain(3)
    plan = StepPlan(saves=[engine.save(hashes, [5, 2, 9])])
    assert engine.step(plan, hooks_run=hooks_run) == (3, [])
    assert engine.has_right_bytes(hashes, [5, 2, 9])


@pytest.mark.parametrize(
    ("computed", "hooks_run", "fails"), [(1, True, False), (LAYERS, True, True), (0, False, True)]
)
def test_a_step_that_did_not_compute_all_layers_saves_nothing(
    engine: Engine,
    computed: int,
    hooks_run: bool,  # noqa: FBT001
    fails: bool,  # noqa: FBT001
) -> None:
    hashes = chain(2)
    plan = StepPlan(saves=[engine.save(hashes, [0, 1])])
    assert engine.step(plan, computed=computed, hooks_run=hooks_run, fails=fails) == (0, [1])
    assert engine.namespace.probe(hashes) == 0
    # The same blocks may be saved when they were computed.
    assert engine.step(StepPlan(saves=[engine.save(hashes, [0, 1])])) == (2, [])
    assert engine.has_right_bytes(hashes, [0, 1])


def test_a_save_that_is_not_confirmed_puts_nothing(engine: Engine) -> None:
    hashes = chain(2)
    report = engine.run(StepPlan(saves=[engine.save(hashes, [0, 1])]))
    engine.saves.void()
    engine.saves.take(report)
    assert engine.step(StepPlan()) == (0, [1])
    assert engine.namespace.probe(hashes) == 0


def test_blocks_that_are_present_are_not_put_again(engine: Engine) -> None:
    hashes = chain(4)
    assert engine.step(StepPlan(saves=[engine.save(hashes[:2], [0, 1])])) == (2, [])
    assert engine.step(StepPlan(saves=[engine.save(hashes[:2], [3, 4])])) == (0, [])
    assert engine.step(StepPlan(saves=[engine.save(hashes, [0, 1, 2, 3])])) == (2, [])
    assert engine.has_right_bytes(hashes, [0, 1, 2, 3])


def test_blocks_that_another_save_reads_are_saved_later(engine: Engine) -> None:
    hashes, others = chain(2), chain(2, "other")
    plan = StepPlan(saves=[engine.save(hashes, [4, 5]), engine.save(others, [5, 6])])
    assert engine.step(plan) == (2, [2])


def test_a_save_that_is_drained_too_late_is_not_put(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dalsegno.integrations.vllm.direct.saving.DRAIN_S", 0.0)
    worker = engine.worker
    worker.begin_step(StepPlan(saves=[engine.save(chain(1), [7])]))
    (running,) = worker._saves._in_step
    ended = SimpleNamespace(is_done=False, cancel=lambda: None, wait=lambda _: False)
    ended.done = lambda: ended.is_done
    ended.result = lambda: None
    # A copy that hangs.
    running.layers = dict.fromkeys(range(LAYERS), ended)
    worker.end_step(is_aborted=False)
    worker.begin_step(StepPlan())
    worker.drain()
    ended.is_done = True
    assert engine.step(StepPlan()) == (0, [1])
    assert engine.namespace.probe(chain(1)) == 0


def test_a_cache_of_unknown_layout_loads_and_saves_nothing(engine: Engine) -> None:
    worker = DirectWorker(CONFIG, PAGES, 60.0)
    worker.register({name: torch.zeros(3, 5) for name in NAMES})
    engine.worker = worker
    load = LoadJob(1, "request", chain(1), [3], 1.0, 1.0, LoadWay.COPY, lease=object())
    report = engine.run(StepPlan(loads=[load], saves=[engine.save(chain(1), [4])]))
    assert (report.copied, report.loads) == ({1: [False]}, {1: [LoadEnd(0)]})
    assert "counts 16 blocks" in report.refusal
    assert worker.take_invalid() == {3}


@pytest.mark.parametrize("is_named", [True, False])
def test_a_server_is_one_whether_its_socket_or_its_directory_is_named(
    tmp_path: Path,
    is_named: bool,  # noqa: FBT001
) -> None:
    """A lease of a server needs time, and what was sent to it may come after a removal."""
    with serving(tmp_path / "store") as server:
        place = server.socket if is_named else str(server.path)
        described = BlockSpace(place, {}, ({"a": "b"},), {"layers": 1, "slice_bytes": PAGE})
        with dalsegno.open(place) as store:
            ranks = space.RankNamespaces(store, described, PAGE)
            hashes = chain(3)
            ranks[0].put_batch(hashes, [bytes(PAGE)] * 3)
            assert (ranks.is_served, ranks.most_by_layer) == (True, 0)
            assert len(ranks[0].lease(hashes, timeout_s=100 * ranks.lease_s)) == 3
