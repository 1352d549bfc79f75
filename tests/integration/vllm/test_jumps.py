"""Both ends in the scheduler: when requests jump, when loads end, and what vLLM is sent."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.integration.vllm.direct_jumps import use_both_ends
from tests.integration.vllm.direct_pages import TOKENS, scheduler_output
from tests.integration.vllm.direct_rig import CHUNK, Rig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from dalsegno.integrations.common.meeting import BackSpan, BackState
from dalsegno.integrations.vllm import compat, scheduling
from dalsegno.integrations.vllm.direct import choice
from dalsegno.integrations.vllm.direct.step import LoadJob, StepPlan, StepReport

pytestmark = pytest.mark.engine
# Ten full blocks, and a part.
PROMPT = list(range(1000, 1000 + 10 * TOKENS + 2))
LOADING = BackState.LOADING


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    """An engine that has stored a prompt and forgotten it, and computes two blocks of its front."""
    rig = make_rig()
    rig.ask("first", PROMPT)
    rig.settle()
    rig.forget()
    rig.counts.clear()
    use_both_ends(rig, lambda _: (2, 3))
    return rig


def test_a_front_is_computed_while_the_back_is_loaded(rig: Rig) -> None:
    rig.ask("again", PROMPT)
    rig.settle()
    assert 0 < rig.counts["jumped_tokens"] <= 9 * TOKENS
    assert rig.counts["answered"] == 1
    # vLLM's own cache has the blocks that were jumped over.
    rig.ask("cached", PROMPT)
    rig.step()
    assert rig.running[0].num_computed_tokens == len(PROMPT)
    rig.settle()


def test_another_request_waits_for_the_back_and_finds_it(rig: Rig) -> None:
    rig.slow_down()
    rig.ask("one", PROMPT)
    rig.step()
    rig.ask("other", PROMPT)
    rig.settle()
    assert rig.counts["deferred"] > 0
    assert rig.counts["answered"] == 2


def test_without_blocks_for_the_back_a_request_is_computed(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(pages=12)
    rig.ask("first", PROMPT)
    rig.settle()
    rig.forget()
    use_both_ends(rig, lambda _: (2, 3))
    # It keeps blocks until the other one has all of its own.
    rig.ask("other", [7, *PROMPT[:8]], answers=3)
    rig.ask("again", PROMPT)
    rig.settle()
    assert rig.counts["answered"] == 3


def begun(rig: Rig) -> tuple[Any, Any]:
    """Begins a request with both ends; returns it, and where its ends meet."""
    rig.slow_down()
    request = rig.ask("again", PROMPT)
    rig.step()
    (running,) = rig.scheduler.both_ends._running.values()
    return request, running


def test_reports_of_another_load_are_ignored(rig: Rig) -> None:
    _, running = begun(rig)
    span = BackSpan(0, 10, LOADING, 1.0)
    number = running.planned.job.number
    rig.scheduler.both_ends.take(StepReport(backs={number - 1: [span] * rig.ranks}))
    assert running.meeting.loaded == 0
    rig.scheduler.both_ends.take(StepReport(backs={number: [span] * (rig.ranks - 1)}))
    assert running.meeting.loaded == 0
    rig.scheduler.both_ends.take(StepReport(backs={number: [span] * rig.ranks}))
    assert running.meeting.loaded == 10


def test_nothing_that_may_be_of_other_weights_is_jumped_over(rig: Rig) -> None:
    _, running = begun(rig)
    running.meeting.span = BackSpan(0, 10, LOADING, running.meeting.began_at)
    rig.scheduler._loads.void()
    assert not rig.scheduler.jumps()
    assert not rig.scheduler.both_ends._running
    rig.settle()


def test_a_load_ends_in_the_step_that_may_use_its_blocks(rig: Rig) -> None:
    request, running = begun(rig)
    number = running.planned.job.number
    rig.abort(request)
    assert rig.scheduler.both_ends.is_busy
    plan = rig.scheduler.plan(scheduler_output([], [], {}, set()))
    assert plan.stopped == [number]
    assert not rig.scheduler.both_ends._stopped
    for worker in rig.workers:
        worker.begin_step(plan)
        assert not worker._backs.spans


def test_a_request_that_is_admitted_again_in_the_same_step_keeps_its_new_load(rig: Rig) -> None:
    request, running = begun(rig)
    first = running.planned.job.number
    # Outside of a step, as resets of vLLM's prefix cache do.
    rig.preempt(request)
    rig._preempted.clear()
    seen: list[tuple[StepPlan, list[LoadJob]]] = []
    plan = rig.scheduler.plan

    def noted(output: Any) -> StepPlan:
        planned = plan(output)
        # A worker takes them out.
        seen.append((planned, list(planned.loads)))
        return planned

    rig.scheduler.plan = noted  # type: ignore[method-assign]
    rig.step()
    ((planned, (job,)),) = seen
    assert planned.stopped == [first]
    assert list(planned.frontiers) == [job.number]
    assert job.number > first
    rig.settle()
    assert rig.counts["answered"] == 1


def test_a_request_that_does_not_run_any_more_loses_its_load(rig: Rig) -> None:
    request, running = begun(rig)
    rig.preempt(request)
    rig._preempted.clear()
    # It is not asked for in this step.
    plan = rig.scheduler.plan(scheduler_output([], [], {}, set()))
    assert plan.stopped == [running.planned.job.number]
    for worker in rig.workers:
        worker.begin_step(plan)
    rig.settle()


def test_beside_others_that_compute_prompts_a_request_computes_as_usual(rig: Rig) -> None:
    request, running = begun(rig)
    ends = rig.scheduler.both_ends
    alone = ends.chunk(request.request_id, request.num_computed_tokens, CHUNK)
    assert alone < CHUNK
    other = rig.ask("other", [5, *PROMPT])
    assert ends.chunk(request.request_id, request.num_computed_tokens, CHUNK) == CHUNK
    rig.abort(other)
    running.meeting.begin(running.meeting.began_at + 3600)
    assert ends.chunk(request.request_id, request.num_computed_tokens, CHUNK) < CHUNK


def test_what_a_load_that_failed_took_is_not_learned(rig: Rig) -> None:
    _, running = begun(rig)
    model, number = rig.scheduler._offers.decider.model, running.planned.job.number
    before = model.explain()
    failed = BackSpan(10, 10, BackState.FAILED, running.meeting.began_at, 9)
    rig.scheduler.both_ends.take(StepReport(backs={number: [failed] * rig.ranks}))
    assert model.explain()["log"] == before["log"]
    assert not rig.scheduler._offers.decider._running.loads
    assert not rig.scheduler.jumps()
    rig.settle()


def test_a_step_says_which_blocks_of_the_back_it_computes(rig: Rig) -> None:
    request, running = begun(rig)
    number = running.planned.job.number
    tokens = {request.request_id: CHUNK}
    plan = rig.scheduler.plan(scheduler_output([], [(request, [], False)], tokens, set()))
    end = request.num_computed_tokens + CHUNK
    assert plan.frontiers == {number: -(-end // TOKENS)}


# vLLM's side.


def a_request(name: str, tokens: int, computed: int) -> Any:
    stats = SimpleNamespace(
        num_prompt_tokens=tokens, num_local_cached_tokens=16, num_external_cached_tokens=0
    )
    stats.set = lambda *values: stats.__dict__.update(was_set=values)
    return SimpleNamespace(
        request_id=name,
        prompt_token_ids=list(range(tokens)),
        mm_features=[],
        sampling_params=None,
        pooling_params=None,
        num_computed_tokens=computed,
        lora_request=None,
        prompt_embeds=None,
        prompt_is_token_ids=None,
        replay_start=0,
        num_preemptions=0,
        _all_token_ids=list(range(tokens)),
        status=RequestStatus.RUNNING,
        prefill_stats=stats,
    )


def a_scheduler(*requests: Any) -> Any:
    scheduler: Any = scheduling.JumpingScheduler.__new__(scheduling.JumpingScheduler)
    scheduler.requests = {one.request_id: one for one in requests}
    scheduler.use_v2_model_runner, scheduler._sent_again = True, set()
    scheduler.kv_cache_manager = SimpleNamespace(get_block_ids=lambda name: ([name, 1, 2],))
    return scheduler


def an_output(*names: str) -> Any:
    known = CachedRequestData.make_empty()
    for at, name in enumerate(names):
        known.req_ids.append(name)
        known.new_block_ids.append(None)
        known.num_computed_tokens.append(100 + at)
        known.num_output_tokens.append(0)
    return SimpleNamespace(scheduled_new_reqs=[], scheduled_cached_reqs=known)


def test_a_request_that_jumped_is_sent_to_the_second_runner_as_a_new_one() -> None:
    a, b = a_request("a", 640, 64), a_request("b", 640, 64)
    scheduler = a_scheduler(a, b)
    scheduler._jump(b, 512)
    assert b.num_computed_tokens == 512
    assert b.prefill_stats.was_set == (640, 16, 448)
    # It is not in this step.
    scheduler._send_again(output := an_output("a"))
    assert not output.scheduled_new_reqs
    b.num_computed_tokens = 544
    scheduler._send_again(output := an_output("a", "b"))
    (sent,) = output.scheduled_new_reqs
    assert isinstance(sent, NewRequestData)
    assert (sent.req_id, sent.num_computed_tokens, sent.block_ids) == ("b", 101, (["b", 1, 2],))
    assert output.scheduled_cached_reqs.req_ids == ["a"]
    assert output.scheduled_cached_reqs.num_computed_tokens == [100]
    assert not scheduler._sent_again


def test_only_running_requests_that_are_known_are_sent_again() -> None:
    a, b = a_request("a", 640, 64), a_request("b", 640, 64)
    scheduler = a_scheduler(a, b)
    # One that vLLM sends as a new one anyway.
    scheduler._sent_again = {"a"}
    output = an_output("b")
    output.scheduled_new_reqs.append(SimpleNamespace(req_id="a"))
    scheduler._send_again(output)
    assert len(output.scheduled_new_reqs) == 1
    assert not scheduler._sent_again


def test_a_scheduler_that_must_not_jump_is_vllms(monkeypatch: pytest.MonkeyPatch) -> None:
    connector = SimpleNamespace(jumps=list, join=lambda _: False)

    def create(self: Any) -> None:
        self.connector, self.kv_cache_manager = connector, None

    monkeypatch.setattr(Scheduler, "__init__", create)
    assert scheduling.JumpingScheduler()._jumper is None
    connector.join = lambda _: True
    assert scheduling.JumpingScheduler()._jumper is connector


def test_a_request_that_does_not_run_any_more_does_not_jump() -> None:
    gone = a_request("gone", 640, 0)
    gone.status = RequestStatus.PREEMPTED
    scheduler = a_scheduler(gone)
    scheduler._jump(gone, 512)
    assert gone.num_computed_tokens == 0
    scheduler._sent_again.add("gone")
    scheduler._send_again(output := an_output("gone"))
    assert not output.scheduled_new_reqs
    assert not scheduler._sent_again


def config(*, is_async: bool = False, given: Any = None) -> Any:
    scheduler = SimpleNamespace(async_scheduling=is_async, scheduler_cls=given)
    return SimpleNamespace(scheduler_config=scheduler)


@pytest.mark.parametrize("own", [Scheduler, AsyncScheduler])
def test_our_scheduler_is_the_one_that_the_configuration_asks_for(own: type[Any]) -> None:
    made = scheduling.scheduler_class(config(is_async=own is AsyncScheduler))
    assert issubclass(made, own)
    assert issubclass(made, scheduling.JumpingScheduler)
    assert issubclass(made, AsyncScheduler) is (own is AsyncScheduler)


@pytest.mark.parametrize("changed", [None, lambda self, request: 0])
def test_a_version_that_sizes_chunks_in_another_way_has_its_own_scheduler(
    monkeypatch: pytest.MonkeyPatch, changed: Any
) -> None:
    monkeypatch.setattr(Scheduler, "_reserve_prefill_lookahead", changed)
    assert scheduling.unknown_hook() == "Scheduler._reserve_prefill_lookahead"
    assert "Scheduler._reserve_prefill_lookahead" in scheduling.refusal()
    assert scheduling.scheduler_class(config()) is Scheduler
    assert scheduling.scheduler_class(config(is_async=True)) is AsyncScheduler


def test_this_version_of_vllm_has_all_hooks() -> None:
    assert scheduling.unknown_hook() == ""
    assert "--scheduler-cls" in scheduling.refusal()


def test_a_scheduler_class_of_the_user_stays() -> None:
    for given in (Scheduler, "some.module.Class"):
        engine = config(given=given)
        scheduling.install(engine)
        assert engine.scheduler_config.scheduler_cls is given
    engine = config()
    scheduling.install(engine)
    scheduling.install(engine)
    assert engine.scheduler_config.scheduler_cls is scheduling.make_scheduler


def test_a_scheduler_without_a_connector_of_ours_is_vllms() -> None:
    assert scheduling._jumper_of(None) is None
    assert scheduling._jumper_of(SimpleNamespace(take_events=list)) is None


def test_both_ends_are_used_where_they_are_known_to_work() -> None:
    def why(
        platform: choice.Platform = choice.Platform.CPU,
        *,
        both_ends: str = "auto",
        load_policy: str = "auto",
        in_chunks: bool = True,
    ) -> str:
        scheduler = SimpleNamespace(enable_chunked_prefill=in_chunks)
        settings: Any = SimpleNamespace(both_ends=both_ends, load_policy=load_policy)
        return choice.jump_refusal(SimpleNamespace(scheduler_config=scheduler), settings, platform)

    assert why() == ""
    assert "both_ends is off" in why(both_ends="off")
    assert "load_policy is always" in why(load_policy="always")
    assert "chunks" in why(in_chunks=False)
    assert "device" in why(choice.Platform.NVIDIA)


def test_a_new_request_of_the_second_runner_has_what_was_there_before_its_step() -> None:
    sent = compat.new_request_data(a_request("a", 64, 48), ([1, 2],), 32)
    assert (sent.num_computed_tokens, sent.block_ids) == (32, ([1, 2],))
    assert sent.prefill_token_ids == list(range(64))
