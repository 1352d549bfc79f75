"""Both halves of the direct path in a small engine: every answer is right, and every stored block.

The engine is `direct_rig.Rig`. It asserts that no request gets a token that was computed from wrong
blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.integration.vllm.direct_pages import TOKENS, prefix_name, write_if
from tests.integration.vllm.direct_rig import Rig
from tests.integration.vllm.slow_copies import LateTransfer
from tests.integration.vllm.tiers import counted

pytestmark = pytest.mark.engine
# Ten full blocks, and a part.
PROMPT = list(range(1000, 1000 + 10 * TOKENS + 2))


def test_a_prompt_is_saved_and_loaded_inside_a_step(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.ask("first", PROMPT)
    rig.settle()
    assert rig.stored(PROMPT) == 10
    rig.forget()
    rig.ask("second", PROMPT)
    rig.settle()
    assert rig.counts["step_loaded"] == 10
    assert rig.counts["answered"] == 2


def test_blocks_that_no_disk_brings_soon_enough_stay_in_the_pool(
    make_rig: Callable[..., Rig], tmp_path: Path
) -> None:
    rig = make_rig()
    write_if(rig.scheduler, lambda: False)
    rig.ask("first", PROMPT)
    rig.settle()
    assert counted(rig.scheduler.take_stats())["saves_declined"] == 10
    assert rig.stored(PROMPT) == 10
    assert len(rig.router.blocks) == 10
    rig.forget()
    rig.ask("second", PROMPT)
    rig.settle()
    assert rig.counts["step_loaded"] + rig.counts["waited_blocks"] == 10
    # A longer prompt may be worth it: then its blocks are written, also those of the pool.
    write_if(rig.scheduler, lambda: True)
    rig.forget()
    rig.ask("third", [*PROMPT, *range(7000, 7000 + TOKENS)])
    rig.settle()
    rig.close()
    again = make_rig(path=str(tmp_path / "store0"))
    assert again.stored(PROMPT) == 10


def test_a_step_does_not_save_what_it_loads(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    write_if(rig.scheduler, lambda: False)
    rig.ask("first", PROMPT)
    rig.settle()
    rig.forget()
    # A longer prompt may be worth it, and the store does not say in time what it has.
    write_if(rig.scheduler, lambda: True)
    for worker in rig.workers:
        prepare = worker._saves._prepare
        worker._saves._prepare = hasty(prepare)  # type: ignore[method-assign]
    rig.ask("second", [*PROMPT, *range(7000, 7000 + TOKENS)])
    rig.settle()
    assert rig.counts["step_loaded"] == 10
    assert not counted(rig.scheduler.take_stats()).get("load_failed_blocks")
    assert rig.stored(PROMPT) == 10


def hasty(prepare: Callable[..., None]) -> Callable[..., None]:
    """Prepares saves without time to look blocks up."""
    return lambda *args: prepare(*args[:-1], 1e-9)


def test_routers_learn_which_blocks_all_ranks_have(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.ask("first", PROMPT)
    rig.settle()
    assert len(rig.router.blocks) == 10
    assert sorted(rig.router.blocks.values()) == rig.common_blocks(PROMPT)
    # On one rank.
    rig.namespaces[-1].remove([prefix_name(PROMPT[: 3 * TOKENS])])
    rig.settle()
    assert len(rig.router.blocks) == 9
    rig.forget()
    rig.ask("second", PROMPT)
    rig.settle()
    assert len(rig.router.blocks) == 10
    rig.change_weights()
    rig.step()
    assert not rig.router.blocks
    rig.ask("third", PROMPT)
    rig.settle()
    assert sorted(rig.router.blocks.values()) == rig.common_blocks(PROMPT)


def test_routers_learn_of_blocks_of_an_earlier_engine(
    make_rig: Callable[..., Rig], tmp_path: Path
) -> None:
    first = make_rig()
    first.ask("first", PROMPT)
    first.settle()
    first.close()
    second = make_rig(path=str(tmp_path / "store0"))
    second.ask("second", PROMPT)
    second.settle()
    # All but the last one were loaded, and that was found when it was saved.
    assert second.counts["step_loaded"] + second.counts["waited_blocks"] == 10
    assert sorted(second.router.blocks.values()) == second.common_blocks(PROMPT)


def test_a_longer_prompt_loads_what_it_shares(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.ask("first", PROMPT[: 5 * TOKENS])
    rig.settle()
    rig.forget()
    longer = [*PROMPT[: 5 * TOKENS], *range(TOKENS)]
    rig.ask("second", longer)
    rig.settle()
    assert rig.counts["step_loaded"] == 5
    assert rig.stored(longer) == 6


def test_the_last_block_of_a_prompt_that_ends_with_it_is_computed(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    whole = PROMPT[: 6 * TOKENS]
    for name in ("first", "second"):
        rig.forget()
        rig.ask(name, whole)
        rig.settle()
    # One token is computed, and its block with it.
    assert rig.counts["step_loaded"] == 5


def test_blocks_that_take_too_long_for_a_step_are_waited_for(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(max_step_load_s=1e-9)
    rig.ask("first", PROMPT)
    rig.settle()
    rig.forget()
    # They ask for the same blocks at the same time.
    for name in "abcd":
        rig.ask(name, PROMPT)
    rig.settle()
    assert (rig.counts["step_loaded"], rig.counts["waited_blocks"]) == (0, 10)
    assert rig.counts["deferred"] > 0
    assert rig.counts["answered"] == 5


def test_steps_without_hooks_load_before_and_save_after_they_compute(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    rig.hooks_run = False
    for name in ("first", "second"):
        rig.forget()
        rig.ask(name, PROMPT)
        rig.settle()
    assert rig.counts["step_loaded"] == rig.stored(PROMPT) == 10


def test_blocks_of_two_pages_are_saved_and_loaded(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(pages_per_block=2)
    for name in ("first", "second"):
        rig.forget()
        rig.ask(name, PROMPT)
        rig.settle()
    assert rig.counts["step_loaded"] == 10
    assert rig.stored(PROMPT) == 5


@pytest.mark.parametrize("hooks_run", [True, False])
@pytest.mark.parametrize("max_step_load_s", [60.0, 1e-9])
def test_copies_that_are_late(
    make_rig: Callable[..., Rig],
    hooks_run: bool,  # noqa: FBT001
    max_step_load_s: float,
) -> None:
    """Blocks go to other requests while they are saved, and are computed from while they load."""
    rig = make_rig(max_step_load_s=max_step_load_s)
    rig.slow_down()
    rig.hooks_run = hooks_run
    others = [[document, *PROMPT] for document in range(6)]
    for name in ("first", "second"):
        rig.forget()
        for prompt in (PROMPT, *others):
            rig.ask(f"{name} {prompt[0]}", prompt)
        rig.settle()
    assert rig.counts["step_loaded"] + rig.counts["waited_blocks"] >= 40
    assert [rig.stored(prompt) for prompt in (PROMPT, *others)] == [10] * 7


def test_blocks_are_read_inside_a_step_and_those_that_are_gone_are_computed(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(failed_load_pause_s=0.001)
    rig.read_in_steps()
    rig.slow_down()
    for name in ("first", "second"):
        rig.forget()
        rig.ask(name, PROMPT)
        rig.settle()
    assert (rig.counts["step_loaded"], rig.counts["taken_back"]) == (10, 0)
    offer = rig.scheduler._offers.make

    def promise_and_evict(*arguments: Any) -> Any:
        promised = offer(*arguments)
        rig.namespaces[-1].remove([prefix_name(PROMPT[: 7 * TOKENS])])
        return promised

    monkeypatch.setattr(rig.scheduler._offers, "make", promise_and_evict)
    rig.forget()
    rig.ask("third", PROMPT)
    rig.settle()
    assert rig.counts["taken_back"] > 0
    assert rig.stored(PROMPT) == 10


def test_a_block_that_one_rank_lost_is_a_miss(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.ask("first", PROMPT)
    rig.settle()
    rig.forget()
    rig.namespaces[-1].remove([prefix_name(PROMPT[: 7 * TOKENS])])
    rig.ask("second", PROMPT)
    rig.settle()
    assert (rig.counts["step_loaded"], rig.counts["taken_back"]) == (6, 0)
    assert rig.stored(PROMPT) == 10


def test_a_failed_step_load_is_computed_and_nothing_wrong_is_saved(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(failed_load_pause_s=0.001)
    rig.ask("first", PROMPT[: 5 * TOKENS])
    rig.settle()
    rig.forget()
    # On one rank. What the others compute is wrong, too.
    rig.failing[rig.ranks - 1] = 1
    rig.ask("second", PROMPT)
    rig.settle()
    assert rig.counts["taken_back"] > 0
    assert rig.stored(PROMPT) == 10


def test_a_step_load_that_comes_too_late_is_computed(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.ask("first", PROMPT)
    rig.settle()
    rig.forget()
    worker = rig.workers[-1]
    usual = worker._begin_load
    worker._begin_load = lambda job: LateTransfer(lambda: usual(job))  # type: ignore[method-assign]
    rig.ask("second", PROMPT)
    rig.settle()
    assert rig.counts["taken_back"] > 0
    assert rig.stored(PROMPT) == 10


def test_blocks_of_a_failed_step_load_are_used_by_nobody(make_rig: Callable[..., Rig]) -> None:
    """vLLM's own cache offers them as soon as they are allocated, and keeps them."""
    rig = make_rig()
    rig.ask("first", PROMPT)
    rig.settle()
    rig.forget()
    rig.failing[rig.ranks - 1] = 1
    rig.aborts_in_step = True
    rig.ask("ended", PROMPT)
    rig.ask("beside", PROMPT)
    rig.settle()
    rig.ask("later", [*PROMPT, *range(3 * TOKENS)])
    rig.settle()
    assert rig.counts["answered"] == 3
    assert rig.stored([*PROMPT, *range(3 * TOKENS)]) == 13


@pytest.mark.parametrize("steps", range(7))
def test_a_request_is_aborted_before_while_and_after_it_is_loaded(
    make_rig: Callable[..., Rig], steps: int
) -> None:
    """Its blocks are written until the load has ended, and belong to others then."""
    rig = make_rig(max_step_load_s=1e-9)
    rig.ask("first", PROMPT)
    rig.settle()
    rig.forget()
    rig.slow_down()
    ended = rig.ask("ended", PROMPT, answers=20)
    beside = [*range(2000, 2000 + 8 * TOKENS)]
    rig.ask("beside", beside)
    for _ in range(steps):
        rig.step()
    rig.abort(ended)
    for name in "abc":
        rig.ask(name, [*PROMPT, ord(name), *range(2 * TOKENS)])
    rig.settle()
    assert rig.counts["answered"] == 5
    assert len(rig.pages.free) == 24
    assert rig.stored(beside) == 8


def test_a_load_that_is_refused_is_computed_and_others_may_try_again(
    make_rig: Callable[..., Rig],
) -> None:
    """Too many transfers were queued: that says nothing about its blocks."""
    rig = make_rig(max_step_load_s=1e-9, failed_load_pause_s=60.0)
    rig.ask("first", PROMPT)
    rig.settle()
    worker = rig.workers[-1]
    usual = worker._begin_load
    refused = SimpleNamespace(
        throttled=True,
        on_end=lambda _: None,
        done=lambda: True,
        wait=lambda: True,
        result=lambda: 0,
    )
    worker._begin_load = lambda job: refused  # type: ignore[method-assign]
    rig.forget()
    rig.ask("second", PROMPT, answers=50)
    while not rig.running:
        rig.step()
    worker._begin_load = usual  # type: ignore[method-assign]
    rig.forget()
    rig.ask("third", PROMPT)
    rig.settle()
    assert rig.counts["waited_blocks"] == 10


def test_a_load_under_way_brings_nothing_after_a_reset(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(max_step_load_s=1e-9)
    rig.ask("first", PROMPT)
    rig.settle()
    rig.forget()
    rig.slow_down()
    rig.ask("second", PROMPT)
    rig.step()
    assert rig.remote
    rig.scheduler.reset()
    rig.settle()
    assert rig.counts["waited_blocks"] == 0


def test_blocks_that_were_removed_after_the_promise_are_computed(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(max_step_load_s=1e-9, failed_load_pause_s=0.001)
    rig.ask("first", PROMPT)
    rig.settle()
    rig.forget()
    rig.ask("second", PROMPT)
    match = rig.scheduler._match

    def promise_and_evict(*arguments: Any) -> Any:
        promised = match(*arguments)
        # On one rank, before the load begins.
        rig.namespaces[-1].remove([prefix_name(PROMPT[: 7 * TOKENS])])
        return promised

    monkeypatch.setattr(rig.scheduler, "_match", promise_and_evict)
    rig.settle()
    assert rig.counts["waited_blocks"] == 6
    assert rig.stored(PROMPT) == 10


def test_a_reset_while_requests_run_saves_nothing_of_them(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.ask("first", PROMPT, answers=20)
    for _ in range(3):
        rig.step()
    rig.scheduler.reset()
    rig.settle()
    assert rig.stored(PROMPT) == 0
    rig.forget()
    rig.ask("second", PROMPT)
    rig.settle()
    assert rig.stored(PROMPT) == 10
