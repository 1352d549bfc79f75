"""The engine of `dalsegno bench bubble`: queues, steps, blocks and loads in virtual time."""

from __future__ import annotations

import pytest

from dalsegno_bench.first_token.arrivals import BLOCKS, poisson
from dalsegno_bench.first_token.engine import Allocator, Engine, Request, Tier
from dalsegno_bench.first_token.layers import BEFORE, CHUNK, H200, NEW, LayerTimes, Part
from dalsegno_bench.first_token.pipeline import Source
from dalsegno_bench.first_token.policies import BLOCK_TOKENS, FIXED

# Every step takes four seconds, one for each layer.
CLOCK = LayerTimes("a clock", "made up", tuple(tuple(1e3 for _ in NEW) for _ in BEFORE), 4)
# A block takes eight seconds, two for each of four layers.
SLOW = Source("slow", BLOCK_TOKENS * (128 << 10) / 8, 0.0)


class Observed:
    """Remembers what an engine does."""

    def __init__(self) -> None:
        self.steps: list[tuple[list[Part], float]] = []
        self.loads: list[tuple[str, float, float]] = []

    def step(self, parts: list[Part], seconds: float) -> None:
        self.steps.append((parts, seconds))

    def load(self, tier: str, size: float, seconds: float) -> None:
        self.loads.append((tier, size, seconds))


def engine(policy: str, blocks: int = 10_000, observed: Observed | None = None) -> Engine:
    return Engine(CLOCK, [SLOW], FIXED[policy], blocks, observed)


def test_chunks_and_decode_steps_follow_each_other() -> None:
    observed = Observed()
    request = Request(1.0, CHUNK + 10, output=3)
    totals = engine("recompute", observed=observed).run([request])
    assert request.first_step_s == 1
    assert request.first_token_s == 1 + 2 * 4
    assert request.end_s == totals.end_s == 1 + 4 * 4
    assert (totals.steps, totals.idle_s, totals.compute_s) == (4, 1, 16)
    assert [parts for parts, _ in observed.steps] == [
        [Part(CHUNK, 0)],
        [Part(10, CHUNK)],
        [Part(1, CHUNK + 10)],
        [Part(1, CHUNK + 11)],
    ]


def test_a_step_decodes_and_fills_the_rest_of_its_tokens() -> None:
    observed = Observed()
    first, second = Request(0.0, 100, output=9), Request(1.0, 2 * CHUNK)
    engine("recompute", observed=observed).run([first, second])
    sizes = [[part.new for part in parts] for parts, _ in observed.steps]
    assert sizes[:4] == [[100], [1, CHUNK - 1], [1, CHUNK - 1], [1, 2]]
    assert second.first_token_s == 4 * 4


def test_a_load_ahead_lets_others_compute_and_its_request_waits() -> None:
    loading = Request(0.0, 1000, hit=16, source="slow")
    other = Request(0.0, 100)
    totals = engine("load_ahead").run([loading, other])
    assert other.first_token_s == 4
    assert loading.loaded_s == loading.first_step_s == 8
    assert loading.first_token_s == 12
    assert (totals.bubble_s, totals.stall_s, totals.idle_s) == (0, 0, 4)


def test_a_load_by_layer_stops_all_requests_of_its_step() -> None:
    running = Request(0.0, 100, output=3)
    loading = Request(1.0, 1000, hit=16, source="slow")
    totals = engine("load_by_layer").run([running, loading])
    # The step begins at 4. Layers arrive 2, 4, 6 and 8 seconds later, and the last one computes.
    assert loading.first_step_s == 4
    assert loading.first_token_s == 4 + 8 + 1
    assert running.end_s == 13 + 4
    assert totals.bubble_s == totals.stall_s == 2 + 3 * 1


def test_nothing_stalls_if_nothing_decodes() -> None:
    totals = engine("load_by_layer").run([Request(0.0, 1000, hit=16, source="slow")])
    assert (totals.bubble_s, totals.stall_s) == (5, 0)


def test_a_source_serves_loads_in_turn() -> None:
    observed = Observed()
    requests = [Request(0.0, 1000, hit=16, source="slow") for _ in range(3)]
    busy = engine("load_ahead", observed=observed)
    busy.run(requests)
    assert [one.loaded_s for one in requests] == [8, 16, 24]
    assert busy.tiers["slow"].busy_s == 24
    block = BLOCK_TOKENS * (128 << 10)
    assert observed.loads == [("log", block, 8), ("log", 2 * block, 16), ("log", 3 * block, 24)]
    assert Tier(SLOW, free_s=10.0).begin(block, 4.0) == (10.0, 18.0)


def test_steps_that_wait_for_layers_are_not_observed() -> None:
    observed = Observed()
    engine("load_by_layer", observed=observed).run(
        [Request(0.0, CHUNK + 100, hit=16, source="slow")]
    )
    assert [parts for parts, _ in observed.steps] == [[Part(84, CHUNK + 16)]]
    assert observed.loads[0][2] == 8


def test_a_request_waits_for_free_blocks_and_none_passes_it() -> None:
    requests = [Request(0.0, 15 * 16, output=2), Request(0.0, 14 * 16), Request(0.0, 16)]
    limited = engine("recompute", blocks=16)
    limited.run(requests)
    assert requests[0].end_s == 8
    assert requests[1].first_step_s == 8
    assert requests[2].first_step_s in {8, 12}
    assert limited.blocks.peak <= 16
    assert limited.blocks.used == 0


def test_blocks_never_exceed_their_limit() -> None:
    for policy in FIXED:
        requests = poisson("55 GB/s", 3, count=40, rate=2.0)
        source = Source("55 GB/s", 55e9, 5e-5)
        limited = Engine(H200, [source], FIXED[policy], 9000)
        limited.run(requests)
        assert 4000 < limited.blocks.peak <= 9000
        assert limited.blocks.used == 0


def test_a_request_that_never_fits_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 11 blocks, and there are 10"):
        engine("recompute", blocks=10).run([Request(0.0, 160)])
    blocks = Allocator(4)
    assert blocks.take(4)
    assert not blocks.take(1)
    blocks.free(4)
    assert blocks.take(1)


@pytest.mark.parametrize("policy", FIXED)
def test_requests_compute_after_they_come_and_after_their_blocks(policy: str) -> None:
    source = Source("7 GB/s", 7e9, 2e-4)
    requests = poisson(source.name, 2, count=50)
    totals = Engine(H200, [source], FIXED[policy], BLOCKS).run(requests)
    for one in requests:
        assert one.first_step_s is not None
        assert one.plan is not None
        assert one.arrival_s <= one.first_step_s < one.first_token_s <= one.end_s
        assert one.loaded_s < one.first_token_s
        if one.plan.tokens and not one.plan.by_layer:
            assert one.loaded_s <= one.first_step_s
    assert totals.end_s == max(one.end_s for one in requests)
    spent = totals.compute_s + totals.bubble_s + totals.idle_s
    assert spent == pytest.approx(totals.end_s)
    assert totals.stall_s <= totals.bubble_s + 1e-9


def test_the_same_seed_makes_the_same_requests() -> None:
    assert poisson("x", 1, count=5) == poisson("x", 1, count=5)
    assert poisson("x", 1, count=5) != poisson("x", 2, count=5)
    assert all(one.hit < one.prompt and one.hit % BLOCK_TOKENS == 0 for one in poisson("x", 1))
