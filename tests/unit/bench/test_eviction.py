"""`dalsegno bench eviction`: sizes of stores, figures of made-up replays, a small run."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any, cast

import pytest

import dalsegno
from dalsegno_bench.eviction import eviction as bench
from dalsegno_bench.workload import parse

MIB = 1 << 20


def write_trace(path: Path, prompts: int, blocks: int) -> None:
    """Prompts that share nothing, each asked for twice in a row."""
    rows = (
        {"input_length": 64 * blocks, "hash_ids": [number * blocks + at for at in range(blocks)]}
        for number in range(prompts)
        for _ in range(2)
    )
    with lzma.open(path, "wt") as text:
        text.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("blocks", [2196, 2843, 4640, 5685, 18_279, 46_401, 1_000_000])
def test_a_store_has_enough_segments_of_enough_blocks(blocks: int, tmp_path: Path) -> None:
    sizes = bench.geometry_of(blocks, 4)
    assert 4 << 10 <= sizes.block <= 32 << 10
    assert sizes.extent == 4 * sizes.block
    assert sizes.capacity >= blocks * sizes.block
    assert sizes.capacity // sizes.segment > bench.SEGMENTS
    assert (sizes.segment - 8192) // (sizes.extent + 4096) * 4 >= bench.SEGMENT_BLOCKS
    settings = {"capacity": sizes.capacity, "segment": sizes.segment, "extent": sizes.extent}
    with dalsegno.open(tmp_path / "store", **settings) as store:
        assert store.limits()["segment_count"] >= bench.SEGMENTS
        assert store.limits()["extent_bytes"] == sizes.extent


def test_too_few_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="a longer trace, or a larger --share"):
        bench.geometry_of(1000, 4)


def test_the_hit_rate_is_that_of_the_last_half_in_tokens() -> None:
    rows = [(32, [1, 2]), (32, [3, 4]), (20, [1, 2]), (32, [5, 6])]
    text = [json.dumps({"input_length": tokens, "hash_ids": ids}) for tokens, ids in rows]
    trace = parse(text, block_tokens=16)
    assert bench.hit_rate(trace, [2, 2, 2, 1]) == (20 + 16) / 52


def test_a_block_without_its_prefix_is_live_but_not_reachable() -> None:
    class Present:
        """Blocks 0 and 2 are present."""

        def peek(self, names: list[bytes]) -> list[bool]:
            return [name in {b"0", b"2"} for name in names]

    text = [json.dumps({"input_length": 3, "hash_ids": [1, 2, 3]})]
    names = [b"0", b"1", b"2"]
    present = cast("dalsegno.Namespace", Present())
    assert bench.reachable_share(parse(text), names, present) == 0.5


def cell(**changed: Any) -> dict[str, Any]:
    usual = {"hit_vs_lru": 0.9, "relocated_per_put": 0.1, "reachable_of_live": 1.0}
    return usual | changed


def test_the_result_has_extremes_and_every_figure_by_trace_and_share() -> None:
    cells = {
        "one": {"5%": cell(), "10%": cell(hit_vs_lru=1.0, relocated_per_put=0.4)},
        # Nothing could hit.
        "two": {"5%": cell(hit_vs_lru=None, reachable_of_live=0.5)},
    }
    result = json.loads(json.dumps(bench.report(cells, [1.0, 2.0])))
    assert result == {
        "bench": "eviction",
        "min_hit_vs_lru": 0.9,
        "mean_hit_vs_lru": 0.95,
        "max_relocated_per_put": 0.4,
        "min_reachable_of_live": 0.5,
        "hit_vs_lru": {"one": {"5%": 0.9, "10%": 1.0}, "two": {"5%": None}},
        "relocated_per_put": {"one": {"5%": 0.1, "10%": 0.4}, "two": {"5%": 0.1}},
        "reachable_of_live": {"one": {"5%": 1.0, "10%": 1.0}, "two": {"5%": 0.5}},
        "load": [1.0, 2.0],
    }


def test_prompts_requested_twice_in_a_row_hit_half_under_any_eviction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "twice.jsonl.xz"
    write_trace(path, prompts=110, blocks=40)
    where = tmp_path / "stores"
    where.mkdir()
    arguments = ["--trace", str(path), "--share", "0.5", "--dir", str(where)]
    assert bench.main(arguments) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["hit_rate"] == result["lru_hit_rate"] == {"twice": {"50%": 0.5}}
    assert result["min_hit_vs_lru"] == result["mean_hit_vs_lru"] == 1.0
    assert 1000 < result["held_blocks"]["twice"]["50%"] < 2200
    assert result["failed_blocks"] == {"twice": {"50%": 0}}
    assert list(where.iterdir()) == []


def test_without_traces_the_bench_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "DATA", tmp_path)
    assert bench.main([]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("SKIPPED")
    assert json.loads(last) == {"bench": "eviction", "skipped": True}


@pytest.mark.parametrize("name", ["bad.jsonl", "bad.jsonl.xz", "none.jsonl"])
def test_a_bad_trace_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    if name != "none.jsonl":
        path.write_text("{}\n")
    assert bench.main(["--trace", str(path)]) == 2
    assert name in capsys.readouterr().err
