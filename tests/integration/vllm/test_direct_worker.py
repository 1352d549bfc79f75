"""The worker's half of the direct path with a real store: what it saves when a step goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from tests.unit.stores import chain

import dalsegno
from dalsegno.integrations.vllm.direct import space
from dalsegno.integrations.vllm.direct.step import LoadJob, SaveJob, StepPlan, StepReport
from dalsegno.integrations.vllm.direct.worker import DirectWorker

pytestmark = pytest.mark.engine
LAYERS, PAGES, PAGE = 3, 16, 4096
NAMES = [f"layer.{at}" for at in range(LAYERS)]
CONFIG = SimpleNamespace(
    groups=[SimpleNamespace(layer_names=NAMES)],
    cache=SimpleNamespace(blocks_per_chunk=1),
    worker_kv_bytes_per_block=LAYERS * PAGE,
)


class Engine:
    """A worker, its KV cache, and the steps that vLLM would run."""

    def __init__(self, namespace: dalsegno.Namespace) -> None:
        noise = torch.Generator().manual_seed(1)
        shape = (PAGES, PAGE)
        self.caches = {
            name: torch.randint(0, 256, shape, dtype=torch.uint8, generator=noise) for name in NAMES
        }
        self.namespace = namespace
        self.worker = DirectWorker("engine", CONFIG, PAGES, 60.0)
        self.worker.register(self.caches)

    def step(
        self, plan: StepPlan, *, computed: int = LAYERS, hooks_run: bool = True, fails: bool = False
    ) -> StepReport:
        """Runs a step that computes some layers; returns what it and the next one report."""
        self.worker.begin_step(plan)
        self.worker.start_loads(hooks_run=hooks_run)
        for name in NAMES[:computed] if hooks_run else ():
            self.worker.wait_for_layer(name)
            self.worker.save_layer(name)
        self.worker.end_step(is_aborted=fails)
        report = StepReport()
        while not report.copied >= {job.number for job in plan.saves} or self.worker._commits:
            self.worker.finished()
            report = report.aggregate(self.worker.take_report() or StepReport())
        return report

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
        shared = SimpleNamespace(namespace=namespace)
        monkeypatch.setattr(space, "of_engine", lambda _: shared)
        engine = Engine(namespace)
        yield engine
        engine.worker.close()


def save(number: int, hashes: list[bytes], pages: list[int], first: int = 0) -> SaveJob:
    return SaveJob(number, "request", hashes, first, pages)


@pytest.mark.parametrize("hooks_run", [True, False])
def test_a_step_saves_what_it_computed(engine: Engine, hooks_run: bool) -> None:  # noqa: FBT001
    hashes = chain(3)
    report = engine.step(StepPlan(saves=[save(1, hashes, [5, 2, 9])]), hooks_run=hooks_run)
    assert (report.copied, report.dropped, report.saved_blocks) == ({1}, set(), 3)
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
    plan = StepPlan(saves=[save(1, hashes, [0, 1])])
    report = engine.step(plan, computed=computed, hooks_run=hooks_run, fails=fails)
    assert (report.copied, report.dropped, report.saved_blocks) == ({1}, {1}, 0)
    assert engine.namespace.probe(hashes) == 0
    # The same blocks may be saved when they were computed.
    assert engine.step(StepPlan(saves=[save(2, hashes, [0, 1])])).saved_blocks == 2
    assert engine.has_right_bytes(hashes, [0, 1])


def test_nothing_is_saved_between_a_failed_load_and_the_plan_that_knows_of_it(
    engine: Engine,
) -> None:
    hashes = chain(4)
    lost = LoadJob("request", hashes[:2], [0, 1], 1.0, lease=object(), is_void=True)
    later = save(1, hashes, [2, 3], first=2)
    report = engine.step(StepPlan(loads=[lost], saves=[later]))
    assert (report.dropped, report.failed_blocks, report.failures) == ({1}, 2, 1)
    assert engine.worker.take_invalid() == {0, 1}
    # A step that was planned before the failure was known.
    report = engine.step(StepPlan(saves=[save(2, hashes, [2, 3], first=2)]))
    assert report.dropped == {2}
    assert engine.namespace.probe(hashes[2:]) == 0
    report = engine.step(StepPlan(saves=[save(3, hashes, [0, 1, 2, 3])], seen_failures=1))
    assert (report.dropped, report.saved_blocks) == (set(), 4)
    assert engine.has_right_bytes(hashes, [0, 1, 2, 3])


def test_blocks_that_another_save_reads_are_saved_later(engine: Engine) -> None:
    hashes, others = chain(2), chain(2, "other")
    plan = StepPlan(saves=[save(1, hashes, [4, 5]), save(2, others, [5, 6])])
    report = engine.step(plan)
    assert (report.copied, report.dropped, report.saved_blocks) == ({1, 2}, {2}, 2)


def test_a_save_that_is_drained_too_late_is_not_committed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dalsegno.integrations.vllm.direct.worker.DRAIN_S", 0.0)
    worker = engine.worker
    worker.begin_step(StepPlan(saves=[save(1, chain(1), [7])]))
    (running,) = worker._step_saves
    ended = SimpleNamespace(is_done=False, cancel=lambda: None, wait=lambda _: False)
    ended.done = lambda: ended.is_done
    # A copy that hangs.
    running.layers = dict.fromkeys(range(LAYERS), ended)
    worker.end_step(is_aborted=False)
    worker.begin_step(StepPlan(must_drain=True))
    ended.is_done = True
    worker.finished()
    report = worker.take_report()
    assert report is not None
    assert (report.copied, report.dropped) == ({1}, {1})
    assert not worker._commits
    assert engine.namespace.probe(chain(1)) == 0


def test_a_cache_of_unknown_layout_loads_and_saves_nothing(engine: Engine) -> None:
    worker = DirectWorker("engine", CONFIG, PAGES, 60.0)
    worker.register({name: torch.zeros(3, 5) for name in NAMES})
    engine.worker = worker
    load = LoadJob("request", chain(1), [3], 1.0, lease=object())
    report = engine.step(StepPlan(loads=[load], saves=[save(1, chain(1), [4])]))
    assert (report.copied, report.failed_blocks) == ({1}, 1)
    assert "counts 16 blocks" in report.refusal
    assert worker.take_invalid() == {3}
