"""The epochs of an engine of vLLM, whose weights may change while it runs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import pytest

from dalsegno.integrations.vllm import door_line
from dalsegno.integrations.vllm.epoch import Epoch, State


@pytest.fixture
def one() -> Iterator[Epoch]:
    made = Epoch(f"test-{secrets.token_hex(4)}", lambda: None)
    yield made
    made.close()


EVENTS: dict[str, Callable[[Epoch], None]] = {
    "door": lambda one: one.open_door("reload_weights"),
    "reset": lambda one: one.note_reset(),
    "use": lambda one: one.note_use(),
}


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ("", State.LOADED),
        ("use", State.LOADED),
        ("door", State.MIXED),
        ("door use", State.MIXED),
        ("door door", State.MIXED),
        ("door reset", State.EMPTY),
        ("door reset door", State.EMPTY),
        ("door reset use", State.OWN),
        ("door reset use use", State.OWN),
        ("door reset use door", State.MIXED),
        ("door reset use reset", State.EMPTY),
        ("reset", State.EMPTY),
        ("reset door", State.EMPTY),
        ("reset use", State.OWN),
        ("reset use door", State.MIXED),
        ("use door reset use door reset use", State.OWN),
    ],
)
def test_events_lead_from_state_to_state(events: str, state: State, one: Epoch) -> None:
    for event in events.split():
        EVENTS[event](one)
    assert one.state is state
    assert one.is_usable == (state is not State.MIXED)


def test_what_is_known_is_forgotten_once_when_nothing_may_be_loaded_any_more() -> None:
    forgotten: list[int] = []
    one = Epoch(f"test-{secrets.token_hex(4)}", lambda: forgotten.append(1))
    one.open_door("a")
    one.open_door("b")
    assert len(forgotten) == 1
    one.close()


def test_all_tiers_of_an_engine_in_a_process_see_its_doors(one: Epoch) -> None:
    other = Epoch(one.engine_id, lambda: None)
    assert door_line.send(one.engine_id, "load_weights")
    assert other.state is State.MIXED
    assert one.state is State.MIXED
    other.close()
    again = Epoch(one.engine_id, lambda: None)
    assert again.state is State.LOADED
    again.close()


def test_a_closed_epoch_hears_nothing_and_frees_the_engine_id(one: Epoch) -> None:
    one.close()
    one.close()
    assert not door_line.send(one.engine_id, "load_weights")
    assert one.state is State.LOADED
