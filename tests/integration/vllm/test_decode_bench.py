"""`dalsegno bench decode` with a real engine: a tiny run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from tests.dose import long_dose

from dalsegno_bench.vllm import decode

pytestmark = pytest.mark.engine


@long_dose
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_last_line_has_every_contender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decode, "QUIET_S", 2.0)
    # Next to the cache that every test of an engine has.
    (folder := tmp_path / "bench").mkdir()
    assert decode.main(["--rounds", "1", "--gib", "0.0625", "--dir", str(folder)]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    for name in ("ours", "untold", "files"):
        assert line[name]["lost"] == 0
        assert line[name]["p50_ms"] > 0
    assert not list(folder.iterdir())
