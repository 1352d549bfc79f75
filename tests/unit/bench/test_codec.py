"""The result of `dalsegno bench codec`: what acceptance reads, of a tiny run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dalsegno_bench.disk import codec as bench


def test_a_tiny_run_compresses_synthetic_blocks_and_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--rounds", "1", "--mib", "48", "--dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    result = json.loads(lines[-1])
    assert result["ratio"] > 1.25, result
    assert result["not_shrunk_bytes"] == 0, result
    assert min(result["encode_gb_per_s"], result["decode_gb_per_s"]) > 0, result
    assert {"put_gb_per_s", "get_gb_per_s"} < result["zstd"].keys() == result["none"].keys()
    assert list(tmp_path.iterdir()) == []


def test_a_captured_cache_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    facts = {"layers": 2, "slice_bytes": 3, "origin": "a test"}
    path.write_bytes(json.dumps(facts).encode() + b"\nabcdefghijkl")
    cache = bench.captured(path)
    assert (cache.block_bytes, bytes(cache.data), cache.origin) == (6, b"abcdefghijkl", "a test")
