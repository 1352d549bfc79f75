"""Every way to a store: whatever was put comes back byte for byte, and nothing else comes."""

from __future__ import annotations

import random

import pytest
from tests.contract.places import Place, fill, holds
from tests.contract.routes import Shape
from tests.contract.subjects import chain


@pytest.mark.parametrize("seed", range(8))
def test_blocks_of_any_shape_and_dtype_come_back_byte_for_byte(seed: int, place: Place) -> None:
    chance = random.Random(seed)
    shape = Shape(
        layers=chance.randint(1, 6),
        tokens=chance.choice([1, 3, 16, 33]),
        heads=chance.randint(1, 5),
        head_dim=chance.choice([1, 8, 24, 64]),
        dtype=place.route.dtypes[seed % len(place.route.dtypes)],
    )
    prompt = chain(chance.randint(1, 20), f"{seed}.")
    with place.open(shape) as session:
        assert all(fill(session, prompt))
        holds(session, prompt, prompt)
    with place.open(shape) as session:
        holds(session, prompt, prompt)


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


def test_missing_blocks_at_the_end_are_misses(place: Place) -> None:
    prompt = chain(5)
    with place.open() as session:
        assert all(fill(session, prompt))
        holds(session, prompt + chain(4, "tail"), prompt)
        holds(session, chain(2, "other"), prompt)
        assert all(fill(session, prompt + chain(4, "tail"), 5))
        holds(session, prompt + chain(4, "tail"), {*prompt, *chain(4, "tail")})


def test_blocks_after_a_gap_are_found_from_there_on(place: Place) -> None:
    prompt = chain(9)
    with place.open() as session:
        assert all(fill(session, prompt[:3]))
        assert all(fill(session, prompt, 5))
        stored = {*prompt[:3], *prompt[5:]}
        for first in range(9):
            holds(session, prompt[first:], stored)
        assert all(fill(session, prompt[:5], 3))
        holds(session, prompt, prompt)


def test_a_prompt_whose_beginning_is_missing_is_a_miss(place: Place) -> None:
    prompt = chain(6)
    with place.open() as session:
        assert all(fill(session, prompt, 2))
        holds(session, prompt, prompt[2:])
        holds(session, prompt[2:], prompt[2:])
    with place.open() as session:
        assert all(fill(session, prompt))
        holds(session, prompt, prompt)


def test_branches_share_the_prefix_that_they_have_in_common(place: Place) -> None:
    trunk = chain(4)
    branches = [trunk + chain(3, f"branch {number}.") for number in range(5)]
    with place.open() as session:
        assert all(fill(session, trunk))
        per_block_bytes = session.counters()["put_bytes"] / 4
        for branch in branches:
            assert all(fill(session, branch))
        assert session.counters()["put_bytes"] == (4 + 5 * 3) * per_block_bytes
        for branch in branches:
            holds(session, branch, branch)
    with place.open() as session:
        for branch in branches:
            holds(session, branch, branch)


def test_a_prompt_grows_over_many_sessions(place: Place) -> None:
    prompt = chain(8)
    for count in range(2, 9, 2):
        with place.open() as session:
            holds(session, prompt, prompt[: count - 2])
            assert all(fill(session, prompt[:count], count - 2))
            holds(session, prompt, prompt[:count])


def test_cleared_blocks_are_gone_and_can_be_put_again(place: Place) -> None:
    prompt = chain(7)
    with place.open() as session:
        for _ in range(3):
            assert all(fill(session, prompt))
            holds(session, prompt, prompt)
            session.clear()
            holds(session, prompt, ())
            holds(session, prompt[3:], ())


def test_counters_count_put_and_loaded_blocks(place: Place) -> None:
    prompt = chain(6)
    with place.open() as session:
        before = session.counters()
        assert all(fill(session, prompt))
        stored = session.counters()
        assert stored["put_bytes"] - before["put_bytes"] >= 6 * session.block_bytes
        assert stored["put_stored_blocks"] > before["put_stored_blocks"]
        assert stored["put_failed_blocks"] == before["put_failed_blocks"]
        session.get(chain(3, "other"))
        assert session.counters()["get_bytes"] == stored["get_bytes"]
        assert None not in session.get(prompt)
        assert session.counters()["get_bytes"] - stored["get_bytes"] >= 6 * session.block_bytes
        assert sum(session.counters()["log"]["misses"].values()) == 0
