"""Orders of reads and saves: the part of `dalsegno bench bubble` with a disk in virtual time."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from tests.dose import compiles_a_bench

from dalsegno_bench.first_token import saves
from dalsegno_bench.first_token.layers import H200


def served(**first_token_s: float) -> dict[str, Any]:
    """Returns what each order leads to."""
    usual = dict.fromkeys(saves.ORDERS, 1.0) | first_token_s
    return {
        order: {"first_token_s": seconds, "saved_bytes": 8, "all_saved_s": seconds}
        for order, seconds in usual.items()
    }


def test_ours_must_not_be_later_than_any_other_order() -> None:
    check = saves.checked({"a": served(fifo=2.0), "b": served(alone=0.5)})
    assert check["holds"]
    assert check["median"]["fifo"] == 0.75
    assert check["beside_none"] == 2.0
    check = saves.checked({"a": served(), "b": served(reads_first=0.9)})
    assert not check["holds"]
    assert check["cell"] == "b"
    # Saves have a part of the time of a request that takes longer than their patience.
    long = dict.fromkeys(saves.ORDERS, 10.0)
    assert saves.checked({"a": served(), "b": served(**long | {"ours": 11.4})})["holds"]
    assert not saves.checked({"a": served(), "b": served(**long | {"ours": 11.6})})["holds"]


def test_a_table_that_serves_better_shows() -> None:
    check = saves.checked({"a": served(), "b": served(table=0.8, stale_table=2.0)})
    # Tables are sources of slack for the same schedule, and no other orders.
    assert check["holds"]
    assert check["sources"] == {
        "table": {"first_token": [1.0, 1.25], "saved": 1.0},
        "stale_table": {"first_token": [0.5, 1.0], "saved": 1.0},
    }


def test_the_sources_of_slack_predict_about_what_steps_take() -> None:
    for cell in saves.cells_of(H200):
        assert cell["model"] == pytest.approx(1, abs=0.15)
        assert 0.3 < cell["table"] < 3
        assert cell["stale_table"] == pytest.approx(cell["table"] / saves.FASTER)


def test_the_cells_have_all_sources_lengths_and_hit_rates() -> None:
    cells = saves.cells_of(H200)
    assert len({cell["name"] for cell in cells}) == len(cells) == 27
    assert all(cell["layer_bytes"] > 0 and cell["layer_s"] > 0 for cell in cells)


@compiles_a_bench
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("cargo") is None, reason="the bench compiles a program")
def test_ours_is_never_later_in_virtual_time() -> None:
    found = saves.measured(H200)
    assert found is not None
    check = saves.checked(found)
    assert check["holds"], check
    assert all(one["ours"]["all_saved_s"] < 60 for one in found.values())
