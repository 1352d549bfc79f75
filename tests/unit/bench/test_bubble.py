"""`dalsegno bench bubble`: layer times, the pipeline of layers, policies, checks, a small run."""

from __future__ import annotations

import json
import random
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from dalsegno_bench.first_token import arrivals, bubble, cells, modelled, plot, real
from dalsegno_bench.first_token.cells import HIT_RATES, SOURCES, crossover, table_of
from dalsegno_bench.first_token.checks import checked
from dalsegno_bench.first_token.ends import fronts_of
from dalsegno_bench.first_token.layers import (
    BEFORE,
    H200,
    LAYERS,
    NEW,
    LayerTimes,
    Part,
)
from dalsegno_bench.first_token.learning import STEPS, learned
from dalsegno_bench.first_token.loads_by_layer import MEASURED, reproduced
from dalsegno_bench.first_token.pipeline import NOTHING, Plan, Source, first_token, step
from dalsegno_bench.first_token.policies import (
    BLOCK_TOKENS,
    FIXED,
    Hit,
    OfflineTable,
    Oracle,
    whole,
)

TOKENS = 16_384
# Every layer of every step takes one second.
SECONDS = LayerTimes("a clock", "made up", tuple(tuple(1e3 for _ in NEW) for _ in BEFORE), 4)


@cache
def made_tables() -> list[cells.Table]:
    oracle = Oracle(H200, TOKENS)
    fronts_s = fronts_of(H200, TOKENS)
    return [table_of(H200, source, oracle, fronts_s, TOKENS, (1, 2)) for source in SOURCES]


# Layer times.


@pytest.mark.parametrize("row", range(len(BEFORE)))
@pytest.mark.parametrize("column", range(len(NEW)))
def test_a_measured_layer_takes_what_was_measured(row: int, column: int) -> None:
    found = H200.layer_s(NEW[column], BEFORE[row])
    assert found * 1e3 == pytest.approx(H200.milliseconds[row][column])


def test_between_two_columns_of_many_tokens_the_time_of_a_token_is_a_line() -> None:
    one, two = H200.layer_s(2048, 0) / 2048, H200.layer_s(8192, 0) / 8192
    assert H200.layer_s(5120, 0) / 5120 == pytest.approx((one + two) / 2)
    assert H200.layer_s(320, 0) * 1e3 == pytest.approx((0.30 + 0.44) / 2)
    assert H200.layer_s(512, 24_576) * 1e3 == pytest.approx((0.98 + 1.46) / 2)


def test_behind_the_last_row_the_time_grows_on() -> None:
    last, before = H200.layer_s(8192, 122_880), H200.layer_s(8192, 65_536)
    assert H200.layer_s(8192, 122_880 + 57_344) == pytest.approx(2 * last - before)


def test_a_batch_of_one_is_a_request_and_each_further_one_adds_its_attention() -> None:
    assert H200.batch_s([Part(2048, 4096)]) == H200.layer_s(2048, 4096)
    alone = H200.batch_s([Part(1, 122_880), Part(1, 0)])
    assert alone == pytest.approx(H200.layer_s(2, 0) + (0.51 - 0.28) / 1e3)


def test_a_prompt_takes_the_sum_of_its_chunks() -> None:
    chunks = H200.layer_s(8192, 0) + H200.layer_s(8192, 8192) + H200.layer_s(100, 16_384)
    assert H200.request_s(0, 16_484) == pytest.approx(LAYERS * chunks)
    assert H200.request_s(100, 100) == 0


def test_a_gpu_is_fitted_to_its_prefills() -> None:
    prefills = modelled.prefills_by_formula("llama-3.1-8b/h100")
    h100, figures = modelled.fitted("H100", prefills)
    assert h100.origin == "modelled"
    assert figures["worst_error"] < 0.02
    for tokens, seconds in prefills.items():
        assert h100.request_s(0, tokens) == pytest.approx(seconds, rel=0.02)


def test_the_h200_is_what_its_own_prefills_say() -> None:
    own = {tokens: H200.request_s(0, tokens) for tokens in modelled.LENGTHS}
    again, figures = modelled.fitted("H200", own)
    assert figures == {"token_factor": 1.0, "pair_factor": 1.0, "worst_error": 0.0}
    assert again.layer_s(512, 4096) == pytest.approx(H200.layer_s(512, 4096))


def test_prefills_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prefills.csv"
    rows = [f"x/M,gpu,{tokens},0,{tokens}" for tokens in modelled.LENGTHS]
    rows += [f"x/M,gpu,{tokens},8,1" for tokens in modelled.LENGTHS]
    path.write_text("\n".join(["model,system,L,prefix,ttft_ms", *rows]))
    assert modelled.read_prefills(path, "M", "gpu")[8192] == 8.192
    with pytest.raises(ValueError, match="lacks prefills of M on other"):
        modelled.read_prefills(path, "M", "other")


def test_the_h100_of_the_file_and_of_the_formula_agree() -> None:
    path = Path(bubble.__file__).resolve().parents[3] / bubble.DATA
    if not path.is_file():
        pytest.skip(f"{bubble.DATA} is missing")
    rows = modelled.read_prefills(path, bubble.MODEL, bubble.SYSTEM)
    of_file, figures = modelled.fitted("H100", rows)
    of_formula, _ = modelled.fitted("H100", modelled.prefills_by_formula(bubble.FORMULA))
    assert figures["worst_error"] < 0.04
    for tokens in modelled.LENGTHS:
        one, two = of_file.request_s(0, tokens), of_formula.request_s(0, tokens)
        assert one == pytest.approx(two, rel=0.04)


# The pipeline.

# (start, seconds of layers, arrivals, end, fill bubble, steady bubble), worked out by hand.
STEPS_BY_HAND = [
    (0.0, [1, 1, 1], [0, 0, 0], 3, 0, 0),
    (5.0, [1, 1, 1], [0, 0, 0], 8, 0, 0),
    (0.0, [1, 1, 1], [2, 2, 2], 5, 2, 0),
    # The source is slower: two seconds for each layer, and the last one is computed after that.
    (0.0, [1, 1, 1], [2, 4, 6], 7, 2, 2),
    # The GPU is slower: the first layer arrives, and then all are computed.
    (0.0, [3, 3, 3], [1, 2, 3], 10, 1, 0),
    (1.0, [1, 2, 1], [2, 2, 7], 8, 1, 2),
]


@pytest.mark.parametrize(("begin", "layers", "arrivals_s", "end", "fill", "steady"), STEPS_BY_HAND)
def test_a_step_waits_for_its_layers(
    begin: float,
    layers: list[float],
    arrivals_s: list[float],
    end: float,
    fill: float,
    steady: float,
) -> None:
    done = step(begin, layers, arrivals_s)
    assert (done.end_s, done.fill_s, done.steady_s) == (end, fill, steady)


def test_compute_and_bubbles_are_all_of_a_step() -> None:
    noise = random.Random(4)
    for _ in range(200):
        layers = [noise.random() for _ in range(8)]
        times = sorted(8 * noise.random() for _ in range(8))
        begin = noise.random()
        done = step(begin, layers, times)
        assert done.compute_s + done.fill_s + done.steady_s == pytest.approx(done.end_s - begin)
        assert min(done.fill_s, done.steady_s) >= 0


def test_uniform_layers_end_as_the_closed_formula_says() -> None:
    for load_s, compute_s in ((1.0, 8.0), (8.0, 1.0), (4.0, 4.0)):
        arrivals_s = [(at + 1) * load_s / 4 for at in range(4)]
        done = step(0.0, [compute_s / 4] * 4, arrivals_s)
        assert done.end_s == pytest.approx(max(load_s / 4 + compute_s, load_s + compute_s / 4))


def test_a_source_brings_layers_one_after_another() -> None:
    source = Source("", 100.0, 0.5)
    assert source.arrivals(400, 4, 10.0) == [11.5, 12.5, 13.5, 14.5]
    assert source.load_s(400) == 4.5
    assert source.load_s(0) == 0
    assert source.arrivals(0, 2, 3.0) == [3.0, 3.0]


def test_later_chunks_of_the_rest_follow_without_loads() -> None:
    source = Source("", 10.0, 1.0)
    # 10 bytes for a token: 1 + 80 s, 20 s for each of four layers. Two steps follow the first one.
    by_layer = first_token(SECONDS, source, 17_464, Plan(80, by_layer=True), bytes_per_token=10)
    assert by_layer.first_token_s == pytest.approx(1 + 80 + 1 + 8)
    assert (by_layer.fill_s, by_layer.steady_s) == pytest.approx((21, 3 * 19))
    assert by_layer.stall_s == by_layer.bubble_s
    ahead = first_token(SECONDS, source, 17_464, Plan(80), bytes_per_token=10)
    assert ahead.first_token_s == pytest.approx(81 + 12)
    assert (ahead.fill_s, ahead.steady_s, ahead.stall_s) == (81, 0, 0)
    assert ahead.disk_s == by_layer.disk_s == 81
    assert first_token(SECONDS, source, 17_464, NOTHING).first_token_s == 12


def test_the_last_token_of_a_prompt_is_computed_in_any_case() -> None:
    source = Source("", 1e12, 0.0)
    whole_prompt = first_token(H200, source, 4096, Plan(4096))
    assert whole_prompt.compute_s == pytest.approx(LAYERS * H200.layer_s(1, 4095))


@pytest.mark.parametrize("by_layer", [False, True])
def test_compute_and_bubbles_are_all_of_a_first_token(*, by_layer: bool) -> None:
    for source in SOURCES:
        for tokens in (0, 1600, 8192, 65_520):
            done = first_token(H200, source, 65_536, Plan(tokens, by_layer=by_layer))
            assert done.compute_s + done.bubble_s == pytest.approx(done.first_token_s)


def test_what_was_measured_on_the_h200_is_reproduced() -> None:
    found = reproduced()
    assert found["holds"], found
    assert len(found["rows"]) == len(MEASURED) == 9
    for row in found["rows"]:
        assert row["bubble_ms"] == pytest.approx(row["measured_bubble_ms"], abs=3)


# Policies.


def test_a_faster_source_never_makes_a_first_token_later() -> None:
    speeds = sorted(SOURCES, key=lambda one: one.bytes_per_s)
    for rate in HIT_RATES:
        hits = [Hit(TOKENS, whole(rate * TOKENS), source) for source in speeds]
        for policy in FIXED.values():
            _assert_falls([first_token(H200, one.source, TOKENS, policy(one)) for one in hits])
        tables = [OfflineTable(H200, one.source) for one in hits]
        _assert_falls(
            [
                first_token(H200, one.source, TOKENS, table(one))
                for one, table in zip(hits, tables, strict=True)
            ]
        )
    oracle = Oracle(H200, TOKENS)
    for served in zip(*(oracle.best(source) for source in speeds), strict=True):
        _assert_falls([outcome for _, outcome in served])


def _assert_falls(outcomes: list[Any]) -> None:
    times = [one.first_token_s for one in outcomes]
    assert times == sorted(times, reverse=True)


def test_the_oracle_is_never_later_than_any_policy() -> None:
    for table in made_tables():
        for cell in table.cells:
            best_s, both_s = cell.first_token_s("oracle"), cell.first_token_s("two_sided")
            for name, served in cell.served.items():
                least_s = both_s if name in {"both_ends", "two_sided"} else best_s
                assert least_s <= served.outcome.first_token_s + 1e-12
            for served in cell.ours:
                assert best_s <= served.outcome.first_token_s + 1e-12


def test_no_policy_loads_more_than_the_store_has() -> None:
    for table in made_tables():
        for cell in table.cells:
            for served in [*cell.served.values(), *cell.ours]:
                assert served.plan.tokens <= cell.hit_rate * TOKENS
                assert served.plan.tokens % BLOCK_TOKENS == 0


def test_the_oracle_is_the_best_of_all_plans_that_are_tried_one_by_one() -> None:
    source, tokens = SOURCES[2], 2048
    oracle = Oracle(H200, tokens).best(source)
    plans = [Plan(at, by_layer=way) for at in range(0, tokens, 16) for way in (False, True)]
    tried = [(plan, first_token(H200, source, tokens, plan).first_token_s) for plan in plans]
    for blocks, (_, outcome) in enumerate(oracle):
        least = min(seconds for plan, seconds in tried if plan.tokens <= blocks * BLOCK_TOKENS)
        assert outcome.first_token_s == pytest.approx(least)


def test_the_offline_table_takes_what_is_faster_at_its_nearest_point() -> None:
    fast, slow = Source("", 1e12, 0.0), Source("", 1e6, 0.0)
    hit = Hit(40_000, 20_000, fast)
    assert OfflineTable(H200, fast)(hit) == Plan(20_000, by_layer=True)
    assert OfflineTable(H200, slow)(hit) == NOTHING


def test_our_model_learns_from_measurements_alone() -> None:
    model = learned(H200, SOURCES[0], 1)
    seen = model.explain()
    assert seen["compute"]["measured"] == STEPS
    assert seen["dram"]["measured"] == 10
    assert seen["log"]["measured"] == seen["far"]["measured"] == 0
    assert model.request_s(0, 65_536, 8192) == pytest.approx(H200.request_s(0, 65_536), rel=0.1)


# The checks.


def test_the_crossover_is_where_loading_takes_as_long_as_the_rest() -> None:
    # 1,000 tokens: a second for each to compute, three to load.
    assert crossover(1000, lambda at: 1000.0 - at, lambda at: 3.0 * at) == pytest.approx(
        0.25, abs=2e-3
    )


def test_the_checks_hold_for_short_prompts() -> None:
    found = checked(made_tables())
    both = {"both_ends_vs_two_sided", "both_ends_vs_best"}
    assert found.keys() == {"ours_vs_oracle", "ours_vs_best", "crossover", *both}
    for name, check in found.items():
        assert check["holds"], (name, check)


def test_a_check_fails_beyond_its_limit() -> None:
    table = made_tables()[0]
    late = cells.Served(Plan(0), first_token(H200, SOURCES[0], TOKENS, NOTHING))
    cell = table.cells[-1]
    bad = cells.Cell(cell.hit_rate, cell.served, [late], [late])
    other = cells.Table("H200", "x", TOKENS, [bad], crossover=0.5, predicted=[0.6])
    found = checked([other])
    assert not any(check["holds"] for check in found.values())
    assert found["ours_vs_best"]["worst"] > 5
    assert found["ours_vs_best"]["cell"] == f"H200, x, {TOKENS} tokens, hit rate 0.999"
    assert found["crossover"]["beyond_limit"] == "1 of 1"


# Real loads.


def test_pairs_are_ranked_where_the_simulator_sees_a_difference() -> None:
    def figures(*pairs: tuple[float, float]) -> list[dict[str, float]]:
        return [{"ms": ms, "simulated_ms": simulated} for ms, simulated in pairs]

    right, wrong = figures((1, 1), (2, 2)), figures((2, 1), (1, 2))
    close = figures((1, 100), (2, 99))
    assert real.ranked([right, wrong, close]) == {"same_order": 0.5, "ranked_pairs": 2}
    assert real.ranked([close]) == {"same_order": None, "ranked_pairs": 0}


def test_a_store_serves_plans_by_layer_and_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real, "PROMPT", 1024)
    monkeypatch.setattr(real, "HIT_RATES", (0.75,))
    found = real.run(tmp_path, 1, 1)
    served = found["hit_rates"]["0.75"]
    assert served.keys() == {"recompute", "load_ahead", "load_by_layer", "ours"}
    assert served["load_by_layer"]["loaded_tokens"] == 768
    # Eight layers of 2 ms at least.
    assert all(one["ms"] >= 16 for one in served.values())
    assert list(tmp_path.iterdir()) == []


# The bench.


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubble, "LENGTHS", (TOKENS,))
    monkeypatch.setattr(bubble, "SOURCES", SOURCES[2:3])
    monkeypatch.setattr(arrivals, "poisson", partial(arrivals.poisson, count=6))


@pytest.mark.usefixtures("small")
def test_a_run_prints_every_figure_on_its_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bubble.main(["--histories", "1", "--no-saves"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["holds"]
    assert result["layer_times"] == {"H200": "measured", "H100": "modelled"}
    served = result["cells"]["H200"]["7 GB/s"][str(TOKENS)]
    assert {len(one["first_token_ms"]) for one in served.values()} == {len(HIT_RATES)}
    both = {"both_ends", "two_sided"}
    assert served.keys() == {*FIXED, "offline_table", "ours", "oracle", *both}
    assert result["arrivals"]["7 GB/s"].keys() == {
        *FIXED,
        "offline_table",
        "ours",
        "ours_frozen",
    }


@pytest.mark.usefixtures("small")
def test_a_failed_check_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dalsegno_bench.first_token.checks.ORACLE_LIMIT", 0.5)
    assert bubble.main(["--histories", "1", "--no-saves"]) == 1
    out = capsys.readouterr().out
    assert "ours_vs_oracle: FAILS" in out
    assert not json.loads(out.splitlines()[-1])["holds"]


def test_a_picture_says_where_its_layer_times_are_from(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "bubble.svg"
    plot.draw(made_tables()[:1], (H200,), TOKENS, picture)
    assert "H200 (measured), 55 GB/s, 16384 tokens" in picture.read_text()


def test_a_file_without_prefills_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "empty.csv"
    path.write_text("model,system,L,prefix,ttft_ms\n")
    assert bubble.main(["--prefills", str(path)]) == 2
    assert "lacks prefills" in capsys.readouterr().err
