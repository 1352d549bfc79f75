"""What `DalsegnoTier` lets vLLM load, from costs that are given or learned."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

pytest.importorskip("vllm")

from tests.dose import long_dose
from tests.integration.vllm.test_direct import ALL, LONG, OTHER, Stage, one_by_one
from tests.integration.vllm.test_engine import connector
from tests.integration.vllm.tiers import (
    BLOCK_TOKENS,
    HIT,
    MISS,
    ROW_BYTES,
    Primary,
    Request,
    config,
    counted,
    finished,
    keys,
    needs_positions,
)
from vllm.v1.core.sched.output import CachedRequestData
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm.v1.kv_offload.base import ScheduleEndContext

from dalsegno import profiles
from dalsegno.integrations.common.deciding import Decision, LoadDecider
from dalsegno.integrations.common.wishes import Wish
from dalsegno.integrations.vllm import advice, costs
from dalsegno.integrations.vllm.epoch import Epoch
from dalsegno.integrations.vllm.tier import DalsegnoTier
from dalsegno.profiles import ComputePrior, Profile

pytestmark = [pytest.mark.engine, needs_positions, pytest.mark.timeout(1800)]

# A token takes 1 ms to compute, and nothing else counts.
PRIOR = ComputePrior(step_s=1e-6, token_s=1e-3, pair_s=1e-15, read_s=1e-15)
HEADS: dict[str, Any] = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
SHAPE: dict[str, Any] = {"block_size": BLOCK_TOKENS, **HEADS}
FULL = FullAttentionSpec(**SHAPE)
OURS = keys(10)
Make = Callable[..., DalsegnoTier]


def measured(tier: DalsegnoTier, *specs: Any) -> LoadDecider:
    """Shows the tier steps, as `DalsegnoConnector` does; returns what decides then."""
    scheduler = SimpleNamespace(max_num_batched_tokens=512)
    groups = [SimpleNamespace(kv_cache_spec=spec) for spec in specs or (FULL,)]
    tier.adviser.measure(
        SimpleNamespace(scheduler_config=scheduler), SimpleNamespace(kv_cache_groups=groups)
    )
    decider = tier.adviser._decider
    assert decider is not None
    return decider


def become(decider: LoadDecider, seconds: float, rows: int = 10, tier: str = "log") -> None:
    """Lets one load of a tier take so long."""
    decider.begin_bytes(-1, {tier: rows * ROW_BYTES})
    decider.end_load(-1, seconds, is_whole=True)


def always_decide(
    decider: LoadDecider, monkeypatch: pytest.MonkeyPatch, *blocks: int
) -> list[Wish]:
    """Decides for so many blocks, one number after the other; returns what it was asked."""
    asked: list[Wish] = []
    numbers = itertools.cycle(blocks)

    def decide(wish: Wish) -> Decision:
        asked.append(wish)
        return Decision(next(numbers))

    monkeypatch.setattr(decider, "decide", decide)
    return asked


def step(**scheduled: tuple[int, int]) -> Any:
    """vLLM's `SchedulerOutput`: of each request its computed tokens, and those of the step."""
    first, *others = scheduled or [""]
    new = [SimpleNamespace(req_id=first, num_computed_tokens=scheduled.get(first, (0, 0))[0])]
    cached = CachedRequestData.make_empty()
    cached.req_ids = list(others)
    cached.num_computed_tokens = [scheduled[name][0] for name in others]
    return SimpleNamespace(
        scheduled_new_reqs=new if first else [],
        scheduled_cached_reqs=cached,
        num_scheduled_tokens={name: count for name, (_, count) in scheduled.items()},
        scheduled_encoder_inputs={},
    )


@pytest.fixture(autouse=True)
def _given_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(settings: Any, _config: Any, engine: Any, *_: Any, **__: Any) -> LoadDecider:
        return LoadDecider(settings, engine, Profile({}, PRIOR, None))

    monkeypatch.setattr(costs, "create_decider", create)


@pytest.fixture
def filled(make_tier: Make, primary: Primary) -> DalsegnoTier:
    """A tier whose store has a prompt of ten blocks. It may load all of its memory at a time."""
    tier = make_tier(max_load_bytes=1 << 20)
    Request(tier, "filler", OURS).keep(primary)
    return tier


def test_a_fast_tier_is_loaded_from_and_a_slow_one_is_not(filled: DalsegnoTier) -> None:
    decider = measured(filled)
    assert Request(filled, "fast", OURS).lookup_all() == [HIT] * 10
    become(decider, 100.0)
    assert Request(filled, "slow", OURS).lookup_all() == [MISS] * 10
    assert counted(filled.get_stats())["load_declined_blocks"] == 10
    # Nothing of it is left to compute: so the guard decides.
    assert Request(filled, "short", OURS[:1]).lookup(OURS[0]) is MISS


def test_whether_the_store_may_be_used_is_asked_once_for_a_request(
    filled: DalsegnoTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That reads a file, and vLLM's scheduler waits for each lookup."""
    measured(filled)
    asked = Mock(return_value=True)
    monkeypatch.setattr(Epoch, "is_usable", property(asked))
    request = Request(filled, "r", OURS)
    assert request.lookup(OURS[0]) is HIT
    before = asked.call_count
    assert before
    assert [request.lookup(key) for key in OURS[1:]] == [HIT] * 9
    assert asked.call_count == before


@pytest.mark.parametrize("is_seen", [True, False], ids=["connector", "tier of a user"])
@pytest.mark.parametrize(("policy", "answer"), [("always", HIT), ("never", MISS)])
def test_other_policies_need_no_costs(
    make_tier: Make, primary: Primary, policy: str, answer: Any, *, is_seen: bool
) -> None:
    tier = make_tier(load_policy=policy)
    Request(tier, "filler", OURS).keep(primary)
    if is_seen:
        become(measured(tier), 100.0)
    asked = Request(tier, "r", OURS)
    assert asked.lookup_all() == [answer] * 10
    # A second block is asked for in a later step too.
    assert asked.lookup(OURS[3]) is answer
    declined = counted(tier.get_stats()).get("load_declined_blocks", 0)
    assert declined == (0 if answer is HIT else 10)


def test_a_tier_of_a_users_connector_loads_every_hit_and_says_why_once(
    filled: DalsegnoTier, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm.dalsegno"), "propagate", True)
    caplog.set_level(logging.INFO, "vllm.dalsegno")
    for name in ("r1", "r2"):
        assert Request(filled, name, OURS).lookup_all() == [HIT] * 10
    (line,) = [one for one in caplog.messages if "loads every hit" in one]
    assert "only with DalsegnoConnector" in line


def test_without_positions_every_hit_is_loaded(filled: DalsegnoTier) -> None:
    become(measured(filled), 100.0)
    assert [Request(filled, "old").lookup(key) for key in OURS] == [HIT] * 10


def test_a_request_is_decided_once_and_again_after_a_preemption(
    filled: DalsegnoTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for = always_decide(measured(filled), monkeypatch, 3, 0)
    asked = Request(filled, "r", OURS)
    for _ in range(3):
        assert asked.lookup_all() == [HIT] * 3 + [MISS] * 7
    assert len(asked_for) == 1
    filled.on_schedule_end(ScheduleEndContext((), ("r",)))
    assert asked.lookup_all() == [MISS] * 10
    assert len(asked_for) == 2
    assert asked.lookup_all() == [MISS] * 10
    assert len(asked_for) == 2


def test_the_decision_knows_what_is_computed_and_how_long_the_prompt_is(
    filled: DalsegnoTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for = always_decide(measured(filled), monkeypatch, 2)
    more = [*OURS, *keys(5, prompt="never stored")]
    for name in ("first", "second"):
        Request(filled, name, more).begin()
    asked = Request(filled, "r", more)
    # vLLM has four blocks itself.
    assert [asked.lookup(key) for key in more[4:]] == [HIT] * 2 + [MISS] * 9
    (wish,) = asked_for
    assert wish.runs == [("log", 6)]
    assert (wish.computed, wish.prompt) == (4 * BLOCK_TOKENS, 15 * BLOCK_TOKENS + 1)
    assert wish.waiting == 2
    filled.adviser.begin_step(step(first=(0, 128)))
    assert (opened := filled._guard.current)
    assert opened.store.stats()["schedule"]["phase"] == "prefill"
    Request(filled, "second", more).end()
    Request(filled, "s", more).lookup(more[0])
    # The one above still waits.
    assert asked_for[1].waiting == 1
    # What was decided for the other request has not begun to load.
    assert asked_for[1].promised == {"log": 2 * ROW_BYTES}


def test_what_was_declined_is_no_failure_and_not_stored_again(
    filled: DalsegnoTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    always_decide(measured(filled), monkeypatch, 0, 10)
    declined = Request(filled, "declined", OURS)
    assert declined.lookup_all() == [MISS] * 10
    assert Request(filled, "another", OURS).lookup_all() == [HIT] * 10
    filled.get_stats()
    # vLLM has computed them.
    declined.store(2)
    assert finished(filled)[0].success
    numbers = counted(filled.get_stats())
    assert numbers["present_blocks"] == 10
    assert "stored_blocks" not in numbers


def test_a_slow_tier_is_measured_again_and_no_request_waits_for_that(filled: DalsegnoTier) -> None:
    decider = measured(filled)
    become(decider, 100.0)
    rereads = filled.adviser._rereads
    assert rereads is not None
    for number in range(100):
        asked = Request(filled, f"r{number}", OURS)
        answers = asked.lookup_all()
        asked.end()
        if answers[0] is HIT:
            break
        assert HIT not in answers
        until = time.monotonic() + 10
        while rereads._read is not None and time.monotonic() < until:
            rereads.take()
    assert 1 <= number <= 10


def test_loads_are_measured_from_their_start_to_their_end(
    filled: DalsegnoTier, primary: Primary
) -> None:
    decider = measured(filled)
    asked = Request(filled, "r", OURS)
    assert asked.lookup_all() == [HIT] * 10
    asked.load(2, rows=list(range(20, 30)))
    assert decider._running.queued({})["log"] == 10 * ROW_BYTES
    assert finished(filled)[0].success
    assert primary.holds(range(20, 30), OURS)
    assert decider._running.queued({})["log"] == 0
    assert decider.model.explain()["log"]["measured"] == 1


def test_steps_are_measured_although_some_are_empty_or_overlap(
    filled: DalsegnoTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    decider, now = measured(filled), [0.0]
    noted: list[Any] = []
    monkeypatch.setattr(filled.adviser._clock, "_now", lambda: now[0])
    monkeypatch.setattr(decider, "note_step", noted.append)

    def at(seconds: float, output: Any = None) -> None:
        now[0] = seconds
        if output is None:
            filled.adviser.end_step()
        else:
            filled.adviser.begin_step(output)

    at(0, step(a=(128, 10), b=(0, 20)))
    at(1, step())
    at(3)
    at(4, step(a=(138, 1)))
    at(5)
    with_image = step(c=(0, 5))
    with_image.scheduled_encoder_inputs = {"c": [0]}
    at(6, with_image)
    at(7)
    at(9)
    at(9)
    works = [(one.work.tokens, one.work.pairs, one.work.read, one.seconds) for one in noted]
    # Without the time of the empty step before, and of the one with an image.
    assert works == [(30, 10 * 133 + 20 * 10, 138 + 20, 3), (1, 138.5, 139, 2)]


def test_exceptions_become_hits_and_counts(
    filled: DalsegnoTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    decider = measured(filled)

    def broken(*_: Any, **__: Any) -> Any:
        raise OSError("broken")

    for name in ("decide", "begin_bytes", "end_load", "note_step", "close"):
        monkeypatch.setattr(decider, name, broken)
    asked = Request(filled, "r", OURS)
    assert asked.lookup_all() == [HIT] * 10
    asked.load(2, rows=list(range(20, 30)))
    assert finished(filled)[0].success
    filled.adviser.begin_step(SimpleNamespace(num_scheduled_tokens={"r": 1}))
    filled.adviser.begin_step(step(r=(0, 5)))
    filled.adviser.end_step()
    filled.adviser.end_step()
    filled.adviser.close()
    numbers = counted(filled.get_stats())
    calls = ("decide", "end_load", "begin_step", "end_step", "close")
    assert [numbers[f"errors {call}"] for call in calls] == [1] * 5


def test_a_load_that_takes_far_too_long_is_given_up(filled: DalsegnoTier) -> None:
    measured(filled)
    asked = Request(filled, "r", OURS)
    asked.lookup_all()
    state = filled._requests["r"]
    assert filled.adviser.timeout_s(state) == 1.0
    assert filled.adviser.timeout_s(None) == 10.0


@pytest.mark.parametrize("seconds", [0.05, 100.0])
def test_models_with_windows_load_all_or_nothing(
    make_tier: Make, primary: Primary, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    tier = make_tier(of=config(groups=2), max_load_bytes=1 << 20)
    window = keys(10, group=1)
    Request(tier, "filler", OURS, window).keep(primary)
    decider = measured(tier, FULL, SlidingWindowSpec(**SHAPE, sliding_window=200))
    become(decider, seconds)
    wishes: list[Wish] = []
    decide = decider.decide

    def noted(wish: Wish) -> Decision:
        wishes.append(wish)
        return decide(wish)

    monkeypatch.setattr(decider, "decide", noted)
    asked = Request(tier, "r", OURS, window)
    answer = HIT if seconds < 1 else MISS
    assert [asked.lookup(key) for key in [*OURS, *reversed(window)]] == [answer] * 20
    # A window of 200 tokens may lie in three blocks.
    assert [wish.whole_bytes for wish in wishes] == [13 * ROW_BYTES]


def test_two_groups_of_full_attention_count_together(
    make_tier: Make, primary: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = make_tier(of=config(groups=2))
    second = keys(10, group=1)
    Request(tier, "filler", OURS, second).keep(primary, [*OURS, *second[:7]])
    asked_for = always_decide(measured(tier, FULL, FULL), monkeypatch, 5)
    asked = Request(tier, "r", OURS, second)
    assert asked.lookup_all() == [*[HIT] * 5, *[MISS] * 5] * 2
    assert asked_for[0].runs == [("log", 7)]
    assert counted(tier.get_stats())["load_declined_blocks"] == 2 * 2
    assert tier.adviser._decider.engine.block_bytes == 2 * ROW_BYTES  # type: ignore[union-attr]


def test_without_full_attention_every_hit_is_loaded(make_tier: Make, primary: Primary) -> None:
    tier = make_tier()
    Request(tier, "filler", OURS).keep(primary)
    with pytest.raises(AssertionError):
        measured(tier, SlidingWindowSpec(**SHAPE, sliding_window=200))
    asked = Request(tier, "r", OURS)
    assert [asked.lookup(key) for key in reversed(OURS)] == [HIT] * 10
    assert tier.adviser._why == advice._NO_FULL_ATTENTION


@long_dose
def test_real_engines_measure_steps_and_loads_and_their_answers_are_right(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """One without asynchronous scheduling fills the store, one with it loads."""
    stage = Stage(tmp_path_factory.mktemp("deciding"))
    place = stage.folder / "cache" / "dalsegno" / "profiles"
    for is_async, policy in ((False, "auto"), (True, "always")):
        own = connector(stage.folder / "store", load_policy=policy, keep_profile=True)
        steps: list[dict[str, Any]] = [*one_by_one(ALL), {"forget": True}, {"ask": [LONG, OTHER]}]
        records = stage.run(policy, steps, own, async_scheduling=is_async)
        for record, prompt in zip(records, ALL, strict=False):
            stage.check(record, prompt)
        counters = stage.check(records[-1], LONG, OTHER)
        assert counters.get("errors", 0) == 0
        (file,) = place.glob("*.json")
        known = profiles.read(file)
        assert known["engine"]["path"] == "tiered"
        # A prompt needs a step for its first token, and one for each further token.
        assert known["learned"]["compute"]["measured"] > 6 * len(ALL)
    assert counters["loaded_blocks"] > 0
    assert known["learned"]["log"]["measured"] > 0
