"""Whom a request delays: who waits, who is computed, and who was admitted and is not yet."""

from __future__ import annotations

import pytest
from tests.unit.integrations.simulated_loads import ENGINE, decider

from dalsegno.integrations.common.wishes import Others, Wish


def seen(others: Others, name: str = "one") -> Wish:
    wish = Wish([], 0, 100)
    others.describe(wish, name, 0.0)
    return wish


def test_a_request_delays_those_that_wait_are_admitted_or_computed() -> None:
    others = Others()
    others.wait("one", 10)
    assert not seen(others).delays_others
    others.wait("other", 20)
    assert seen(others).delays_others
    others.begin("other")
    # Its blocks are loaded, or its first step begins with that of this request.
    assert seen(others).waiting == 0
    assert seen(others).is_admitted_beside
    assert not seen(others).is_beside
    others.compute(["other"])
    assert not seen(others).is_admitted_beside
    assert seen(others).is_beside
    others.compute(["one"])
    assert not seen(others).delays_others


def test_a_request_that_has_ended_or_waits_again_is_not_admitted() -> None:
    others = Others()
    for name in ("other", "third"):
        others.wait(name)
        others.begin(name)
    others.end("other")
    others.wait("third")
    assert not seen(others).is_admitted_beside
    assert seen(others).waiting == 1
    others.end("third")
    assert not seen(others).delays_others


def test_a_request_that_was_computed_before_is_not_admitted_again() -> None:
    others = Others()
    others.wait("other")
    others.begin("other")
    others.compute(["other"])
    others.begin("other")
    others.compute(["one"])
    assert not seen(others).delays_others


@pytest.mark.parametrize("objective", ["auto", "latency", "throughput"])
@pytest.mark.parametrize("waiting", [0, 3])
def test_an_objective_makes_no_request_alone(objective: str, waiting: int) -> None:
    decides = decider(load_objective=objective)
    decided = decides.decide(Wish([("log", 256)], 0, 8192, most_read=256, waiting=waiting))
    assert decided.in_step
    assert (decided.wait_s > ENGINE.max_wait_s) is (waiting == 0)
