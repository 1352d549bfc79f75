"""Doors: calls that may change the weights of a running engine end its identity.

One engine process, three in the full dose. The rest drives a tier with vLLM's own classes.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
import vllm
from tests.checkout import load_tool
from tests.dose import dose, long_dose
from tests.integration.manual_store import ManualStore
from tests.integration.vllm import small_model, tiers, weights_engine
from tests.integration.vllm.tiers import HIT, MISS, Primary, Request, finished, keys
from vllm.v1.core.sched.interface import SchedulerInterface
from vllm.v1.executor.abstract import Executor
from vllm.v1.worker.worker_base import WorkerBase

from dalsegno.integrations.vllm import door_line, doors
from dalsegno.integrations.vllm.epoch import State
from dalsegno.integrations.vllm.tier import DalsegnoTier

pytestmark = pytest.mark.engine
SEND = """
import sys
from dalsegno.integrations.vllm import door_line
print(door_line.send(*sys.argv[1:]))
"""


class Named:
    """As much of vLLM's configuration as names an engine."""

    def __init__(self, engine_id: str) -> None:
        self.kv_transfer_config, self.engine_id = self, engine_id


class OurExecutor(Executor):  # type: ignore[misc]
    """An executor whose workers do nothing."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> list[Any]:
        self.calls.append(method)
        return ["done"]


class OurScheduler(SchedulerInterface):  # type: ignore[misc]
    """A scheduler that resets its caches as vLLM's does."""

    def __init__(self, engine_id: str, tier: DalsegnoTier) -> None:
        self.vllm_config, self.tier, self.idle = Named(engine_id), tier, True

    def reset_prefix_cache(self, **options: bool) -> bool:
        if options.get("reset_connector"):
            self.reset_connector_cache()
        return self.idle

    def schedule(self, tokens: int) -> Any:
        return SimpleNamespace(total_num_scheduled_tokens=tokens)

    def reset_connector_cache(self) -> bool:
        self.tier.drain_jobs()
        return True


# They are not made to be used: vLLM's abstract methods are left out.
OurExecutor.__abstractmethods__ = OurScheduler.__abstractmethods__ = frozenset()


class Engine:
    """A tier with an executor and a scheduler of its own."""

    def __init__(self, path: Path, primary: Primary, **settings: Any) -> None:
        self.engine_id = f"test-{secrets.token_hex(4)}"
        of = tiers.config(engine_id=self.engine_id)
        self.tier = tiers.open_tier(path, primary.view, of, **settings)
        self.executor, self.scheduler = OurExecutor(), OurScheduler(self.engine_id, self.tier)

    def state(self) -> State:
        return self.tier._guard.epoch.state

    def found(self, of: list[Any]) -> list[Any]:
        """What a new request finds."""
        return Request(self.tier, secrets.token_hex(4), of).lookup_all()


@pytest.fixture
def engine(tmp_path: Path, primary: Primary) -> Iterator[Engine]:
    opened = Engine(tmp_path / "store", primary)
    yield opened
    opened.tier.shutdown()


def test_after_a_door_nothing_is_loaded_or_stored_until_the_caches_are_reset(
    engine: Engine, primary: Primary
) -> None:
    old, new = keys(2), keys(2, prompt="b")
    Request(engine.tier, "r", old).keep(primary)
    assert engine.found(old) == [HIT, HIT]
    assert engine.executor.collective_rpc("reload_weights") == ["done"]
    assert engine.state() is State.MIXED
    assert engine.found(old) == [MISS, MISS]
    asked = Request(engine.tier, "s", new)
    asked.store(5)
    assert not finished(engine.tier)[0].success
    asked.load(6, old)
    assert not finished(engine.tier)[0].success


def test_a_plain_reset_after_a_door_resets_the_connector_and_moves_to_own_namespaces(
    tmp_path: Path, engine: Engine, primary: Primary
) -> None:
    old, new = keys(2), keys(2, prompt="b")
    Request(engine.tier, "r", old).keep(primary)
    engine.executor.collective_rpc("update_weights", kwargs={})
    assert engine.scheduler.reset_prefix_cache()
    assert engine.state() is State.EMPTY
    assert engine.found(old) == [MISS, MISS]
    Request(engine.tier, "s", new).keep(primary)
    assert engine.state() is State.OWN
    assert engine.found(new) == [HIT, HIT]
    engine.tier.shutdown()
    fresh = Engine(tmp_path / "store", primary)
    try:
        assert fresh.found(old) == [HIT, HIT], "the old weights lost their blocks"
        assert fresh.found(new) == [MISS, MISS], "blocks of updated weights were shared"
    finally:
        fresh.tier.shutdown()


def test_a_reset_that_leaves_blocks_in_use_does_not_end_the_mixed_state(
    engine: Engine, primary: Primary
) -> None:
    engine.executor.collective_rpc("wake_up")
    engine.scheduler.idle = False
    assert not engine.scheduler.reset_prefix_cache()
    assert engine.state() is State.MIXED
    assert not engine.scheduler.reset_prefix_cache(reset_connector=True)
    assert engine.state() is State.MIXED
    engine.scheduler.idle = True
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    assert engine.state() is State.EMPTY


def test_a_plain_reset_without_a_door_keeps_the_shared_namespaces(
    engine: Engine, primary: Primary
) -> None:
    ours = keys(2)
    Request(engine.tier, "r", ours).keep(primary)
    assert engine.scheduler.reset_prefix_cache()
    assert engine.state() is State.LOADED
    assert engine.found(ours) == [HIT, HIT]


def test_updates_between_a_reset_and_the_next_request_need_no_second_reset(
    engine: Engine, primary: Primary
) -> None:
    """pause_generation(clear_cache=True) resets first, and the update follows."""
    ours = keys(1)
    engine.scheduler.reset_prefix_cache(reset_connector=True)
    for door in ("start_weight_update", "update_weights", "finish_weight_update"):
        engine.executor.collective_rpc(door)
        assert engine.state() is State.EMPTY
    Request(engine.tier, "r", ours).keep(primary)
    assert engine.state() is State.OWN
    engine.executor.collective_rpc("update_weights")
    assert engine.state() is State.MIXED


def test_steps_without_tokens_leave_the_caches_empty(engine: Engine) -> None:
    """Requests that come during a pause wait, and vLLM makes steps meanwhile."""
    engine.scheduler.reset_prefix_cache(reset_connector=True)
    Request(engine.tier, "r", keys(2)).begin()
    engine.scheduler.schedule(0)
    engine.tier.on_schedule_end(SimpleNamespace(preempted_req_ids=[]))
    engine.executor.collective_rpc("update_weights")
    assert engine.state() is State.EMPTY
    engine.scheduler.schedule(5)
    assert engine.state() is State.OWN


def test_a_harmless_call_is_no_door(engine: Engine) -> None:
    for method in sorted(doors.HARMLESS):
        engine.executor.collective_rpc(method)
        assert engine.state() is State.LOADED, method


@pytest.mark.parametrize(
    "method",
    ["sleep", "a_method_of_a_later_vllm", print, b"pickled", "apply_model", "update_config"],
)
def test_any_other_call_of_the_workers_is_a_door(method: Any, engine: Engine) -> None:
    engine.executor.collective_rpc(method)
    assert engine.state() is State.MIXED


def test_a_load_that_is_in_flight_at_a_door_is_not_delivered(
    manual: ManualStore, tmp_path: Path, primary: Primary
) -> None:
    engine = Engine(tmp_path / "store", primary)
    asked = Request(engine.tier, "r", keys(2))
    asked.begin()
    asked.store(1)
    manual.transfers[0].end()
    finished(engine.tier)
    asked.load(2)
    manual.transfers[1].end()
    engine.executor.collective_rpc("load_weights")
    assert not finished(engine.tier)[0].success
    engine.tier.shutdown()


def test_a_door_in_another_process_is_seen_by_the_next_lookup(
    engine: Engine, primary: Primary
) -> None:
    ours = keys(2)
    Request(engine.tier, "r", ours).keep(primary)
    sent = subprocess.run(
        [sys.executable, "-c", SEND, engine.engine_id, "LlamaForCausalLM.load_weights"],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert sent.stdout.strip() == "True"
    assert engine.found(ours) == [MISS, MISS]
    assert not door_line.send("an engine that does not exist", "load_weights")


def test_more_reports_than_the_queue_holds_do_not_wait(engine: Engine) -> None:
    assert all(door_line.send(engine.engine_id, f"door {number}") for number in range(5000))
    assert engine.state() is State.MIXED


def test_direct_calls_in_a_workers_process_are_doors(engine: Engine) -> None:
    class OurWorker(WorkerBase):  # type: ignore[misc]
        def reload_weights(self) -> str:
            return "reloaded"

        def profile(self, *_: Any) -> None:
            return None

    class OurModel(torch.nn.Module):  # type: ignore[misc]
        def load_weights(self, weights: Any) -> set[str]:
            return set(weights)

    OurWorker.__abstractmethods__ = frozenset()
    doors.watch_worker(engine.engine_id)
    worker = OurWorker.__new__(OurWorker)
    worker.profile()
    assert engine.state() is State.LOADED
    assert worker.reload_weights() == "reloaded"
    assert engine.state() is State.MIXED
    engine.scheduler.reset_prefix_cache()
    engine.tier._guard.epoch.note_use()
    assert engine.state() is State.OWN
    assert OurModel().load_weights(["a"]) == {"a"}
    assert engine.state() is State.MIXED


def test_the_installed_vllm_has_no_door_that_the_table_does_not_know() -> None:
    tool = load_tool("vllm_doors")
    source = Path(vllm.__file__).parent
    table = json.loads(tool.TABLE.read_text(encoding="utf-8"))
    assert set(table) >= {"0.28", "0.32", "0.33"}
    known = {door for version in table.values() for door in version}
    unknown = sorted(set(tool.find(source)) - known)
    assert not unknown, "look at each, then run tools/vllm_doors.py SOURCE --write"


def test_every_door_of_a_worker_in_the_table_is_watched() -> None:
    tool = load_tool("vllm_doors")
    table = json.loads(tool.TABLE.read_text(encoding="utf-8"))
    folders = ("model_executor", "distributed", "v1/worker")
    missing = set()
    for door in {one for version in table.values() for one in version}:
        file, _, name = door.partition(":")
        owner, _, method = name.rpartition(".")
        # Functions call a model's `load_weights`; the state of elastic scaling calls workers.
        if file.startswith(folders) and owner and owner != "ElasticEPScalingState":
            missing |= {door} if method[0] != "_" and method not in doors.DOORS else set()
    assert not missing
    assert not doors.HARMLESS & doors.DOORS


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and the same with other weights."""
    folder = tmp_path_factory.mktemp("weights")
    old = small_model.prepare(folder / "model")
    return old, weights_engine.with_other_weights(old, folder / "next")


@pytest.fixture
def run(tmp_path: Path, models: tuple[Path, Path]) -> Callable[..., dict[str, Any]]:
    """Runs an engine in a process of its own."""

    def run(*steps: str, **changes: Any) -> dict[str, Any]:
        spec = {"model": str(models[0]), "other": str(models[1]), "steps": steps}
        spec |= {"store": str(tmp_path / "store"), **changes}
        command = [sys.executable, "-m", weights_engine.__name__, json.dumps(spec)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    return run


@pytest.mark.timeout(600)
def test_weights_that_are_reloaded_in_a_running_engine_never_meet_other_kv(
    run: Callable[..., dict[str, Any]],
) -> None:
    """The reset is the plain one, which leaves connectors alone."""
    live = run("ask A", "reload", "reset", "ask A salted", "ask A", "ask B")
    first, truth, again, _ = live["answers"]
    assert first["logprobs"] != truth["logprobs"], "the other weights change nothing"
    assert again["external"] == 0
    assert weights_engine.are_equal(again["logprobs"], truth["logprobs"])
    if not dose(0, 1):
        return
    # Old weights again: what was stored before the door still serves, what came later does not.
    after = run("ask A", "ask B")
    assert after["answers"][0]["external"] > 0
    assert weights_engine.are_equal(after["answers"][0]["logprobs"], first["logprobs"])
    assert after["answers"][1]["external"] == 0


@long_dose
@pytest.mark.timeout(600)
def test_doors_of_an_engine_in_several_processes_are_seen(
    run: Callable[..., dict[str, Any]],
) -> None:
    live = run("ask A", "load directly", "reset", "ask A salted", "ask A", processes=True)
    truth, again = live["answers"][1:]
    assert again["external"] == 0
    assert weights_engine.are_equal(again["logprobs"], truth["logprobs"])
