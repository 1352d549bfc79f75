"""Every way to a store: blocks of another model are a miss, however alike they look."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.contract.places import SMALL, Place, fill, holds
from tests.contract.subjects import chain

# Each is as large as a block of SMALL, so that nothing but the identity keeps them apart.
OTHERS: dict[str, dict[str, Any]] = {
    "weights": {"identity": "b"},
    "layers": {"shape": replace(SMALL, layers=4, tokens=2)},
    "tokens": {"shape": replace(SMALL, tokens=8, heads=1)},
    "heads": {"shape": replace(SMALL, heads=1, head_dim=32)},
    "dtype": {"shape": replace(SMALL, dtype="float16")},
}


@pytest.mark.parametrize("differs", OTHERS)
def test_a_session_of_another_model_finds_nothing_and_changes_nothing(
    differs: str, place: Place
) -> None:
    prompt = chain(5)
    with place.open() as session:
        assert all(fill(session, prompt))
    with place.open(**OTHERS[differs]) as session:
        holds(session, prompt, ())
        assert all(session.put(prompt[:2], [bytes(session.block_bytes)] * 2))
        assert session.get(prompt)[0] == bytes(session.block_bytes)
        session.clear()
    with place.open() as session:
        holds(session, prompt, prompt)
