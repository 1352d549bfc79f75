"""Both halves of the direct path in a small engine: every answer is right, and every stored block.

The engine is `direct_rig.Rig`. It asserts that no request gets a token that was computed from wrong
blocks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.dose import dose
from tests.integration.vllm.direct_pages import TOKENS, prefix_name
from tests.integration.vllm.direct_rig import Rig
from tests.integration.vllm.slow_copies import LateTransfer
from tests.served import ServerProcess, serving

pytestmark = pytest.mark.engine
# Ten full blocks, and a part.
PROMPT = list(range(1000, 1000 + 10 * TOKENS + 2))


@pytest.fixture(params=[1, 2], ids=["one-rank", "two-ranks"])
def make_rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    opened: list[Rig] = []

    def make(**settings: Any) -> Rig:
        rig = Rig(tmp_path / f"store{len(opened)}", ranks=request.param, **settings)
        opened.append(rig)
        return rig

    yield make
    for rig in opened:
        rig.close()


def cold(rig: Rig) -> None:
    """Lets the engine forget its own blocks."""
    rig.pages.cached.clear()


def common_blocks(rig: Rig, *documents: list[int]) -> list[list[int]]:
    """The blocks of documents that all ranks have, as the tokens up to the end of each."""
    ends = [one[:end] for one in documents for end in range(TOKENS, len(one) + 1, TOKENS)]
    prefixes = {prefix_name(one): one for one in ends}
    there = [namespace.peek(list(prefixes)) for namespace in rig.namespaces]
    return sorted(
        prefix for prefix, *has in zip(prefixes.values(), *there, strict=True) if all(has)
    )


def test_a_prompt_is_saved_and_loaded_inside_a_step(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.ask("first", PROMPT)
    rig.settle()
    assert rig.stored(PROMPT) == 10
    cold(rig)
    rig.ask("second", PROMPT)
    rig.settle()
    assert rig.counts["step_loaded"] == 10
    assert rig.counts["answered"] == 2


def test_routers_learn_which_blocks_all_ranks_have(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.ask("first", PROMPT)
    rig.settle()
    assert len(rig.router.blocks) == 10
    assert sorted(rig.router.blocks.values()) == common_blocks(rig, PROMPT)
    # On one rank.
    rig.namespaces[-1].remove([prefix_name(PROMPT[: 3 * TOKENS])])
    rig.settle()
    assert len(rig.router.blocks) == 9
    cold(rig)
    rig.ask("second", PROMPT)
    rig.settle()
    assert len(rig.router.blocks) == 10
    rig.change_weights()
    rig.step()
    assert not rig.router.blocks
    rig.ask("third", PROMPT)
    rig.settle()
    assert sorted(rig.router.blocks.values()) == common_blocks(rig, PROMPT)


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
    assert sorted(second.router.blocks.values()) == common_blocks(second, PROMPT)


def test_a_longer_prompt_loads_what_it_shares(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.ask("first", PROMPT[: 5 * TOKENS])
    rig.settle()
    cold(rig)
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
        cold(rig)
        rig.ask(name, whole)
        rig.settle()
    # One token is computed, and its block with it.
    assert rig.counts["step_loaded"] == 5


def test_blocks_that_take_too_long_for_a_step_are_waited_for(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(max_step_load_s=1e-9)
    rig.ask("first", PROMPT)
    rig.settle()
    cold(rig)
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
        cold(rig)
        rig.ask(name, PROMPT)
        rig.settle()
    assert rig.counts["step_loaded"] == rig.stored(PROMPT) == 10


def test_blocks_of_two_pages_are_saved_and_loaded(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(pages_per_block=2)
    for name in ("first", "second"):
        cold(rig)
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
        cold(rig)
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
        cold(rig)
        rig.ask(name, PROMPT)
        rig.settle()
    assert (rig.counts["step_loaded"], rig.counts["taken_back"]) == (10, 0)
    offer = rig.scheduler._offer

    def promise_and_evict(*arguments: Any) -> Any:
        promised = offer(*arguments)
        rig.namespaces[-1].remove([prefix_name(PROMPT[: 7 * TOKENS])])
        return promised

    monkeypatch.setattr(rig.scheduler, "_offer", promise_and_evict)
    cold(rig)
    rig.ask("third", PROMPT)
    rig.settle()
    assert rig.counts["taken_back"] > 0
    assert rig.stored(PROMPT) == 10


def test_a_block_that_one_rank_lost_is_a_miss(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.ask("first", PROMPT)
    rig.settle()
    cold(rig)
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
    cold(rig)
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
    cold(rig)
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
    cold(rig)
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
    cold(rig)
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
    cold(rig)
    rig.ask("second", PROMPT, answers=50)
    while not rig.running:
        rig.step()
    worker._begin_load = usual  # type: ignore[method-assign]
    cold(rig)
    rig.ask("third", PROMPT)
    rig.settle()
    assert rig.counts["waited_blocks"] == 10


def test_a_load_under_way_brings_nothing_after_a_reset(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(max_step_load_s=1e-9)
    rig.ask("first", PROMPT)
    rig.settle()
    cold(rig)
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
    cold(rig)
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
    cold(rig)
    rig.ask("second", PROMPT)
    rig.settle()
    assert rig.stored(PROMPT) == 10


def any_rig(make_rig: Callable[..., Rig], choose: random.Random, **settings: Any) -> Rig:
    """Chooses when blocks are loaded, and from where."""
    rig = make_rig(
        max_step_load_s=choose.choice([60.0, 1e-9]),
        failed_load_pause_s=choose.choice([30.0, 0.001]),
        pages_per_block=choose.choice([1, 2]),
        **settings,
    )
    if choose.random() < 0.5:
        rig.slow_down()
    if choose.random() < 0.5:
        rig.read_in_steps()
    return rig


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("served") / "store") as server:
        yield server


@pytest.mark.parametrize("seed", range(dose(6, 200)))
def test_random_histories(make_rig: Callable[..., Rig], seed: int) -> None:
    """With a store in the engine's process."""
    choose = random.Random(seed)
    run_history(any_rig(make_rig, choose), choose)


@pytest.mark.parametrize("seed", range(dose(3, 100)))
def test_random_histories_with_a_server(
    make_rig: Callable[..., Rig], server: ServerProcess, seed: int
) -> None:
    """Each worker is a client of its own, as one in another process is."""
    choose = random.Random(seed)
    # The server is that of the histories before.
    run_history(any_rig(make_rig, choose, path=server.socket, salt=f"history {seed}"), choose)


def run_history(rig: Rig, choose: random.Random) -> None:
    """Requests of a few documents begin, end, are preempted; loads fail; blocks are removed."""
    documents = [
        [*range(100 * common, 100 * common + 18), *range(end, end + choose.randrange(24))]
        for common in (1, 2)
        for end in (1000, 2000, 3000)
    ]
    for number in range(dose(120, 300)):
        known = [*rig.waiting, *rig.running, *rig.remote.values()]
        match choose.randrange(13):
            case 0 | 1 | 2 if len(known) < 6:
                rig.ask(f"{number}", choose.choice(documents), answers=choose.randrange(1, 9))
            case 3 if known:
                rig.abort(choose.choice(known))
            case 4 if rig.running:
                rig.preempt(choose.choice(rig.running))
            case 5:
                document = choose.choice(documents)
                names = [prefix_name(document[:end]) for end in range(TOKENS, 24, TOKENS)]
                choose.choice(rig.namespaces).remove(names)
            case 6:
                rig.failing[choose.randrange(rig.ranks)] += 1
                rig.aborts_in_step = choose.random() < 0.5
            case 7:
                cold(rig)
                rig.hooks_run = choose.random() < 0.7
            case 8 if not rig.holds_loaded and choose.random() < 0.3:
                rig.change_weights()
            case _:
                rig.step()
    rig.failing.clear()
    rig.settle()
    for document in documents:
        rig.stored(document)
    there = common_blocks(rig, *documents)
    assert all(block in there for block in rig.router.blocks.values())
    assert len(rig.pages.free) == 24, "blocks leaked"
    assert rig.counts["answered"] > 0
