"""The ten stages: an unbounded cache hits what each stage promises, and nothing depends on luck."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from dalsegno_bench.workload import EXPECTED, REUSES, Dynamic, Oracle, Prompt, Reuse


def plan(reuse: Reuse = "recent", **changed: int) -> Dynamic:
    """A workload of 64 blocks a prompt."""
    usual = Dynamic(4096, 64, requests=30, warmup_prompts=50, reuse=reuse)
    return replace(usual, **changed)  # type: ignore[arg-type]


def lru_hit_rate(work: Dynamic, capacity_blocks: int) -> float:
    """What an LRU of bounded size hits of the tokens of all stages."""
    cache: dict[bytes, None] = {}
    hits = asked = 0
    for number, phase in enumerate(work.phases()):
        for prompt in phase:
            leading = next((i for i, n in enumerate(prompt.chain) if n not in cache), work.blocks)
            if number:
                hits, asked = hits + leading, asked + work.blocks
            # Suffix first out: the prefix is touched last.
            for name in reversed(prompt.chain):
                cache.pop(name, None)
                cache[name] = None
            while len(cache) > capacity_blocks:
                del cache[next(iter(cache))]
    return hits / asked


@pytest.mark.parametrize("reuse", REUSES)
@pytest.mark.parametrize(
    ("prompt_tokens", "block_tokens"), [(4096, 64), (8192, 16), (16384, 512), (4096, 1000 // 8 + 3)]
)
def test_an_unbounded_cache_hits_what_each_stage_expects(
    reuse: Reuse, prompt_tokens: int, block_tokens: int
) -> None:
    work = plan(reuse, prompt_tokens=prompt_tokens, block_tokens=block_tokens)
    oracle = Oracle()
    phases = list(work.phases())
    assert [len(phase) for phase in phases] == [50] + [30] * len(EXPECTED)
    assert sum(oracle.serve(prompt.chain) for prompt in phases[0]) == 0
    for expected, phase in zip(EXPECTED, phases[1:], strict=True):
        hits = [oracle.serve(prompt.chain) for prompt in phase]
        assert hits == [prompt.shared_blocks for prompt in phase]
        # Half a block in the whole stage.
        assert abs(sum(hits) - expected * work.blocks * work.requests) <= 0.5 + 1e-9


def test_every_prompt_has_its_full_length_and_a_name_for_each_block() -> None:
    for prompt in (prompt for phase in plan().phases() for prompt in phase):
        assert len(prompt.chain) == len(set(prompt.chain)) == 64
        assert {len(name) for name in prompt.chain} == {32}


def test_a_name_commits_to_all_blocks_before_it() -> None:
    before: dict[bytes, bytes] = {}
    for prompt in (prompt for phase in plan().phases() for prompt in phase):
        for parent, name in pairwise([b"", *prompt.chain]):
            assert before.setdefault(name, parent) == parent


def test_the_same_arguments_make_the_same_prompts_and_another_seed_shares_none() -> None:
    def names(work: Dynamic) -> set[bytes]:
        return {name for phase in work.phases() for prompt in phase for name in prompt.chain}

    assert list(plan().phases()) == list(plan().phases())
    assert not names(plan()) & names(plan(seed=2))
    golden = "d6ad759d48648f53a1361739af788e7e034ee6d8a1fe59baf2960c4a2f11a868"
    assert list(plan().phases())[10][29].chain[63].hex() == golden


def test_a_bounded_cache_gains_with_each_doubling_if_reuse_is_recent() -> None:
    rates = [lru_hit_rate(plan(requests=60), 64 << power) for power in range(8)]
    gains = [after - before for before, after in pairwise(rates)]
    assert all(0.02 < gain < 0.1 for gain in gains), rates


def test_uniform_reuse_is_served_by_capacity_alone() -> None:
    small, large = (
        lru_hit_rate(plan(reuse, requests=60), 64 * 16) for reuse in ("uniform", "recent")
    )
    assert small < large / 2, (small, large)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: plan(prompt_tokens=100), "whole blocks"),
        (lambda: plan(prompt_tokens=0), "whole blocks"),
        (lambda: plan(requests=0), "one prompt"),
        (lambda: plan(warmup_prompts=0), "one prompt"),
        (lambda: Dynamic(64, 64, 1, 1, expected=(1.0,)), "below 1"),
        (lambda: Dynamic(64, 64, 1, 1, reuse="often"), "recent, uniform"),  # type: ignore[arg-type]
    ],
)
def test_a_workload_with_bad_arguments_is_refused(make: Callable[[], Dynamic], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_the_oracle_stops_at_the_first_block_that_it_lacks() -> None:
    oracle = Oracle()
    assert oracle.serve([b"a", b"b", b"c"]) == 0
    assert oracle.serve([b"a", b"x", b"c"]) == 1
    assert oracle.serve([b"a", b"x", b"c"]) == 3
    assert Prompt(b"1" * 32 + b"2" * 32, 1).chain == [b"1" * 32, b"2" * 32]
