"""The direct path in a small engine (`direct_rig.Rig`) when loads, servers and watches hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.integration.vllm.direct_pages import TOKENS, prefix_name
from tests.integration.vllm.direct_rig import Rig
from tests.served import serving

from dalsegno.integrations.common.deciding import Decision
from dalsegno.integrations.vllm import events
from dalsegno.integrations.vllm.direct import choice

pytestmark = pytest.mark.engine
# Ten full blocks, and a part.
PROMPT = list(range(1000, 1000 + 10 * TOKENS + 2))


class HangingLoad:
    """A load that ends when it is cancelled, or when its time is over."""

    throttled = False

    def __init__(self, timeout_s: float) -> None:
        self._until = time.monotonic() + timeout_s

    def on_end(self, _: Callable[[], None]) -> None:
        """Nobody learns how long it took."""

    def done(self) -> bool:
        return time.monotonic() >= self._until

    def wait(self, timeout_s: float | None = None) -> bool:
        left_s = max(0.0, self._until - time.monotonic())
        time.sleep(left_s if timeout_s is None else min(left_s, timeout_s))
        return self.done()

    def wait_layer(self, _: int, *, timeout_s: float) -> bool | None:
        return False if self.wait(timeout_s) else None

    def order_layer(self, layer: int, _: int, *, timeout_s: float) -> bool | None:
        return self.wait_layer(layer, timeout_s=timeout_s)

    def withdraw(self) -> bool:
        self.cancel()
        return False

    def cancel(self) -> None:
        self._until = 0.0

    def result(self) -> int:
        return 0


@pytest.mark.parametrize("hooks_run", [True, False])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_all_loads_of_a_step_delay_it_together_for_a_bounded_time(
    make_rig: Callable[..., Rig],
    hooks_run: bool,  # noqa: FBT001
    count: int,
) -> None:
    documents = [[*range(1000 * at, 1000 * at + 4 * TOKENS + 2)] for at in range(1, count + 1)]
    rig = make_rig(max_step_load_s=0.1, pages=60)
    rig.read_in_steps()
    for at, document in enumerate(documents):
        rig.ask(f"first {at}", document)
    rig.settle()
    rig.forget()
    decider = rig.scheduler._offers.decider
    decided = Decision(4, in_step=True, step_s=10.0, wait_s=0.1)
    decider.decide = lambda wish: decided  # type: ignore[method-assign]
    rig.hooks_run = hooks_run
    for worker in rig.workers:
        worker._begin_load = lambda job: HangingLoad(job.timeout_s)  # type: ignore[method-assign]
    for at, document in enumerate(documents):
        rig.ask(f"second {at}", document)
    rig.step()
    assert rig.counts["step_loaded"] == 4 * count
    for worker in rig.workers:
        assert 0.09 < worker._waited_s < 0.2
    rig.settle()
    assert rig.counts["answered"] == 2 * count


@pytest.mark.parametrize("in_step", [True, False])
def test_a_load_in_a_step_whose_time_is_over_was_late_for_it(
    make_rig: Callable[..., Rig],
    in_step: bool,  # noqa: FBT001
) -> None:
    """No step waits for its tier then, until a load was in time."""
    rig = make_rig(max_step_load_s=0.5, load_timeout_s=0.05)
    rig.read_in_steps()
    document = list(range(1000, 1000 + 4 * TOKENS + 2))
    rig.ask("first", document)
    rig.settle()
    rig.forget()
    decider, noted = rig.scheduler._offers.decider, list[bool]()
    decided = Decision(4, in_step=in_step, step_s=10.0, wait_s=0.5)
    decider.decide = lambda wish: decided  # type: ignore[method-assign]

    def end(_number: int, _seconds: float, *, is_whole: bool, was_late: bool) -> None:
        assert not is_whole
        noted.append(was_late)

    decider.end_load = end  # type: ignore[method-assign, assignment]
    for worker in rig.workers:
        worker._begin_load = lambda job: HangingLoad(job.timeout_s)  # type: ignore[method-assign]
    rig.ask("second", document)
    rig.settle()
    assert noted[:1] == [in_step]
    assert rig.counts["answered"] == 2


def test_a_step_computes_at_most_what_the_least_limit_allows() -> None:
    limits = {"max_num_batched_tokens": 8192, "long_prefill_token_threshold": 0}
    assert choice.most_tokens(SimpleNamespace(**limits)) == 8192
    for name in ("max_num_scheduled_tokens", "long_prefill_token_threshold"):
        assert choice.most_tokens(SimpleNamespace(**{**limits, name: 512})) == 512


@pytest.mark.parametrize("when", ["before it is announced", "after it was announced"])
def test_a_block_is_announced_only_behind_its_parent(
    make_rig: Callable[..., Rig], when: str
) -> None:
    """Its parent leaves before the events of a step are taken; later it is stored again."""
    rig = make_rig()
    take, left = rig.scheduler.take_events, 1

    def take_without_a_parent() -> list[Any]:
        nonlocal left
        waiting = rig.scheduler._announcer._events._stored  # type: ignore[union-attr]
        published = rig.scheduler._announcer._events._published  # type: ignore[union-attr]
        if left and len(waiting) >= 2 and (published or when.startswith("before")):
            left -= 1
            at = next(iter(waiting))[:32] if when.startswith("before") else max(published)[:32]
            rig.namespaces[-1].remove([at])
        return take()

    rig.scheduler.take_events = take_without_a_parent  # type: ignore[method-assign]
    # The rig's router fails if it does not know the parent of a block.
    for name in ("first", "second", "third"):
        rig.forget()
        rig.ask(name, PROMPT)
        rig.settle()
    assert left == 0
    assert sorted(rig.router.blocks.values()) == rig.common_blocks(PROMPT)
    assert len(rig.router.blocks) == 10


def test_an_engine_sleeps_although_a_server_refuses_its_watch(
    make_rig: Callable[..., Rig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "served") as server:
        rig = make_rig(path=server.socket)
        rig.ask("first", PROMPT)
        rig.settle()
        monkeypatch.setattr(events, "PAUSE_S", 60.0)
        # It knows only that something was lost, each time.
        watch = SimpleNamespace(waiting=1, take=lambda _: ({}, False))
        monkeypatch.setattr(rig.scheduler._announcer._events, "_watch", watch)
        rig.settle()
        assert not rig.scheduler._announcer.is_pending()
        assert len(rig.router.blocks) == 10


def test_a_server_that_hangs_is_waited_for_once(
    make_rig: Callable[..., Rig], tmp_path: Path
) -> None:
    with serving(tmp_path / "served") as server:
        rig = make_rig(path=server.socket)
        rig.ask("first", PROMPT)
        rig.settle()
        assert rig.router.blocks
        server.pause()
        started = time.monotonic()
        rig.scheduler.matched_tokens(rig.ask("second", PROMPT), 0)
        looked_up_s = time.monotonic() - started
        rig.scheduler.take_events()
        rig.scheduler.has_work()
        # A second wait would take a second.
        assert time.monotonic() - started - looked_up_s < 0.5
        server.go_on()
        rig.settle()
        # What left meanwhile is known.
        rig.namespaces[-1].remove([prefix_name(PROMPT[:TOKENS])])
        rig.settle()
        assert sorted(rig.router.blocks.values()) == rig.common_blocks(PROMPT)
