"""The bench of LMCache's adapters, with small objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lmcache")

from dalsegno_bench.lmcache import lmcache as bench
from dalsegno_bench.lmcache import measured

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less of everything."""
    monkeypatch.setattr(bench, "SHAPES", {"512k": (16 << 10, 4, 2), "32m": (64 << 10, 2, 2)})
    monkeypatch.setattr(bench, "LOOKUP_KEYS", 2000)
    # The bench sets these where nobody has; they must not stay for the servers of other tests.
    monkeypatch.setenv("LMCACHE_TRACK_USAGE", "false")
    monkeypatch.setenv("LMCACHE_LOG_LEVEL", "ERROR")


def test_the_last_line_has_every_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--rounds", "1", "--directory", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    wanted = ("lookup512_ms", "put512k_vs_fs_native", "coldget512k_vs_best", "coldget32m_vs_best")
    assert all(found[name] > 0 for name in (*wanted, "cpu_s_per_gb"))
    assert set(found["lookup_ms"]) == {"dalsegno", "fs_native", "raw_block"}
    assert [path for path in tmp_path.iterdir() if path.name != "cache"] == []


def test_a_contender_that_loads_other_bytes_ends_the_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = measured.Measured.get

    def get(self: Any, batches: Any) -> int:
        count = right(self, batches)
        batches[0][1][0].raw_data[3] ^= 1
        return count

    monkeypatch.setattr(measured.Measured, "get", get)
    with pytest.raises(RuntimeError, match="loaded other bytes"):
        bench.main(["--rounds", "1", "--directory", str(tmp_path)])
    assert [path for path in tmp_path.iterdir() if path.name != "cache"] == []
