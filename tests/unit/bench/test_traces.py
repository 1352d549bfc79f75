"""Traces in Mooncake's format, and the LRU that they are replayed through."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence

import pytest
from tests.checkout import ROOT

from dalsegno_bench.workload import Lru, parse

DATA = ROOT / "../shared/data"


def lines(*requests: tuple[int, Sequence[int]]) -> list[str]:
    """Requests as (tokens, block numbers)."""
    return [json.dumps({"input_length": tokens, "hash_ids": ids}) for tokens, ids in requests]


def test_a_block_is_its_path_and_parents_come_first() -> None:
    trace = parse(lines((30, [7, 8]), (40, [7, 9, 8]), (30, [7, 8])), block_tokens=16)
    assert [list(chain) for chain in trace.requests] == [[0, 1], [0, 2, 3], [0, 1]]
    assert list(trace.parents) == [-1, 0, 0, 2]
    assert trace.blocks == 4
    assert all(parent < block for block, parent in enumerate(trace.parents))


def test_the_last_block_of_a_prompt_counts_the_tokens_that_it_has() -> None:
    trace = parse(lines((40, [1, 2, 3])), block_tokens=16)
    assert [trace.hit_tokens(0, blocks) for blocks in range(4)] == [0, 16, 32, 40]


@pytest.mark.parametrize(
    ("requests", "block_tokens"),
    [
        # Blocks rounded up, and down.
        ([(3, [1]), (512 * 9 + 17, range(10))], 512),
        ([(127, [1]), (64 * 40 + 63, range(40))], 64),
        ([(16, [1])], 16),
    ],
)
def test_the_longest_prompt_shows_the_tokens_of_a_block(
    requests: list[tuple[int, Sequence[int]]], block_tokens: int
) -> None:
    assert parse(lines(*((t, list(ids)) for t, ids in requests))).block_tokens == block_tokens


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (["{"], "line 1"),
        ([*lines((1, [1])), '{"input_length": 1}'], "line 2.*hash_ids"),
        (["[1]"], "line 1"),
        ([], "no request"),
        (lines((5, [])), "no request"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(text: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(text)


def test_a_suffix_is_evicted_before_its_prefix() -> None:
    lru: Lru[str] = Lru(4)
    assert lru.use("abc") == 0
    assert lru.use("xy") == 0
    assert lru.holds("ab")
    assert not lru.holds("abc")
    assert lru.use("abc") == 2
    assert lru.holds("xabc")
    assert not lru.holds("xy")
    assert len(lru) == 4


def test_a_lookup_in_the_lru_is_not_a_use() -> None:
    lru: Lru[str] = Lru(2)
    lru.use("a")
    lru.use("b")
    assert lru.holds("a")
    lru.use("c")
    assert not lru.holds("a")


def test_the_lru_hits_the_tokens_of_an_independent_simulator() -> None:
    path = DATA / "mooncake_synthetic_trace.jsonl.xz"
    if not path.is_file():
        pytest.skip(f"{path.name} is not here")
    with lzma.open(path, "rt") as text:
        trace = parse(text)
    # 1,024 GiB of blocks of 512 tokens, 128 KiB a token.
    lru: Lru[int] = Lru(16_384)
    hits = [lru.use(blocks) for blocks in trace.requests]
    half = range(len(hits) // 2, len(hits))
    assert trace.block_tokens == 512
    assert sum(trace.input_tokens[at] for at in half) == 36_552_394
    assert sum(trace.hit_tokens(at, hits[at]) for at in half) == 26_518_144
