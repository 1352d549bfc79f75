"""The prefill model: published sizes, points it was fitted to, what any such model must obey."""

from __future__ import annotations

import pytest

from dalsegno_bench.workload.prefill import KV_BYTES_PER_TOKEN, PREFILLS, Prefill

# From the models' documentation, not from the formula.
PUBLISHED_KV_BYTES = {
    "llama-3.1-8b": 131_072,
    "llama-3.1-70b": 327_680,
    "qwen3-8b": 147_456,
    "qwen3-32b": 262_144,
    "qwen3-30b-a3b": 98_304,
    "qwen3-235b": 192_512,
    "glm-4-9b": 40_960,
    "deepseek-v3": 70_272,
    "smollm2-135m": 23_040,
}

# (prefill, tokens, cached tokens, milliseconds of the source, tolerance)
POINTS = [
    ("llama-3.1-8b/a100", 1024, 0, 64.73, 0.06),
    ("llama-3.1-8b/a100", 16384, 0, 1314.83, 0.03),
    ("llama-3.1-8b/a100", 131072, 0, 32945.77, 0.02),
    ("llama-3.1-8b/h100", 4096, 0, 90.07, 0.02),
    ("llama-3.1-8b/h100", 32768, 16384, 657.48, 0.01),
    ("llama-3.1-8b/h100", 32768, 32256, 24.68, 0.04),
    ("llama-3.1-8b/h100", 131072, 98304, 3672.17, 0.01),
    ("llama-3.1-8b/h200", 8192, 0, 198.87, 0.02),
    ("llama-3.1-8b/h200", 131072, 0, 9695.46, 0.01),
    ("qwen3-32b/h200", 16384, 0, 1852.37, 0.04),
    ("qwen3-32b/h200", 65536, 0, 12876.02, 0.01),
]

# (prefill, tokens, cached tokens, milliseconds of the formula worked out by hand)
GOLDEN = [
    ("qwen3-30b-a3b/h20", 8192, 0, 587.6744192),
    ("qwen3-30b-a3b/h20", 16384, 8192, 963.4840576),
    ("llama-3.1-8b/a100", 4096, 2048, 137.4388224),
]


@pytest.mark.parametrize(("model", "count"), PUBLISHED_KV_BYTES.items())
def test_kv_bytes_per_token_are_the_published_ones(model: str, count: int) -> None:
    assert KV_BYTES_PER_TOKEN[model] == count


def test_every_model_with_a_size_is_checked() -> None:
    assert PUBLISHED_KV_BYTES.keys() == KV_BYTES_PER_TOKEN.keys()
    assert {one.kv_bytes_per_token for one in PREFILLS.values()} <= set(PUBLISHED_KV_BYTES.values())


@pytest.mark.parametrize(("name", "tokens", "cached", "milliseconds", "tolerance"), POINTS)
def test_the_model_matches_the_points_it_was_fitted_to(
    name: str, tokens: int, cached: int, milliseconds: float, tolerance: float
) -> None:
    assert PREFILLS[name].seconds(tokens, cached) * 1e3 == pytest.approx(
        milliseconds, rel=tolerance
    )


@pytest.mark.parametrize(("name", "tokens", "cached", "milliseconds"), GOLDEN)
def test_golden_seconds(name: str, tokens: int, cached: int, milliseconds: float) -> None:
    assert PREFILLS[name].seconds(tokens, cached) * 1e3 == pytest.approx(milliseconds, rel=1e-9)


@pytest.mark.parametrize("prefill", PREFILLS.values(), ids=list(PREFILLS))
def test_a_prefill_in_two_parts_takes_as_long_as_in_one(prefill: Prefill) -> None:
    whole = prefill.seconds(16384)
    for cut in (0, 1, 5000, 16383, 16384):
        assert prefill.seconds(cut) + prefill.seconds(16384, cut) == pytest.approx(whole)
    assert prefill.seconds(16384, 16384) == 0


@pytest.mark.parametrize(("tokens", "cached"), [(10, 11), (10, -1)])
def test_more_cached_tokens_than_the_prompt_has_are_refused(tokens: int, cached: int) -> None:
    with pytest.raises(ValueError, match="cannot be cached"):
        PREFILLS["qwen3-32b/h200"].seconds(tokens, cached)
