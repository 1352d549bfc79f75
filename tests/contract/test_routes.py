"""What every way to a store must hold to: the same bytes, or a miss."""

from __future__ import annotations

from tests.contract.places import Place, fill, holds
from tests.contract.subjects import chain


def test_a_prefix_is_found_from_any_block_on(place: Place) -> None:
    prompt = chain(9)
    with place.open() as session:
        assert fill(session, prompt) == [True] * 9
        for first in range(9):
            holds(session, prompt[first:], prompt)
    with place.open() as session:
        holds(session, prompt, prompt)


def test_a_second_put_is_kept_and_not_written_again(place: Place) -> None:
    prompt = chain(6)
    with place.open() as session:
        assert fill(session, prompt) == [True] * 6
        written = session.counters()["put_bytes"]
        assert fill(session, prompt) == [True] * 6
        assert session.counters()["put_bytes"] == written
        holds(session, prompt, prompt)


def test_a_session_of_other_weights_finds_nothing(place: Place) -> None:
    prompt = chain(3)
    with place.open() as session:
        fill(session, prompt)
    with place.open(identity="b") as session:
        holds(session, prompt, ())
        fill(session, prompt[:1])
        session.clear()
    with place.open() as session:
        holds(session, prompt, prompt)
