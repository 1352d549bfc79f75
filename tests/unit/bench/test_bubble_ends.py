"""`dalsegno bench bubble`: prompts whose front is computed while their back is loaded."""

from __future__ import annotations

import pytest

from dalsegno_bench.first_token.cells import SOURCES, table_of
from dalsegno_bench.first_token.ends import best_meeting, fronts_of
from dalsegno_bench.first_token.layers import BEFORE, BYTES_PER_TOKEN, H200, NEW, LayerTimes
from dalsegno_bench.first_token.pipeline import Source
from dalsegno_bench.first_token.policies import BLOCK_TOKENS, Hit, Oracle

TOKENS = 16_384
# Every layer of every step takes one second.
SECONDS = LayerTimes("a clock", "made up", tuple(tuple(1e3 for _ in NEW) for _ in BEFORE), 4)


def test_both_ends_meet_where_computing_and_loading_take_as_long() -> None:
    # A block computes for four seconds, whatever it is, and loads in four.
    source = Source("a disk", BLOCK_TOKENS * BYTES_PER_TOKEN / 4.0, 0.0)
    hit = Hit(101 * BLOCK_TOKENS, 100 * BLOCK_TOKENS, source)
    fronts_s = [4.0 * blocks for blocks in range(101)]
    # Half of the blocks in 200 seconds, then four layers.
    assert best_meeting(SECONDS, fronts_s, hit) == pytest.approx(204.0)


def test_both_ends_bring_a_first_token_sooner_than_either() -> None:
    oracle, fronts_s = Oracle(H200, TOKENS), fronts_of(H200, TOKENS)
    table = table_of(H200, SOURCES[-1], oracle, fronts_s, TOKENS, (1,))
    cell = next(one for one in table.cells if one.hit_rate == 0.95)
    both_s, ours_s = cell.first_token_s("both_ends"), cell.first_token_s("ours")
    assert cell.first_token_s("two_sided") <= both_s < 0.9 * ours_s
