"""`dalsegno bench slo`: the search for the highest rate, prompts of a trace, a small run."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from pathlib import Path

import pytest

from dalsegno_bench.first_token import slo
from dalsegno_bench.first_token.layers import BYTES_PER_TOKEN
from dalsegno_bench.first_token.slo import Prompt, held

PROMPTS = [Prompt(1000, 900, 0)]


def waits_from(limit: float) -> slo.Serve:
    """Returns a server whose first tokens are in time up to a rate."""

    def serve(prompts: Sequence[Prompt], rate: float) -> list[float]:
        assert prompts == PROMPTS
        return [0.5 if rate <= limit else 1.5] * 10

    return serve


@pytest.mark.parametrize("share", [None, 0.9])
def test_the_highest_rate_is_found(share: float | None) -> None:
    assert held(waits_from(3.0), PROMPTS, share) == pytest.approx(3.0, rel=0.02)
    assert held(waits_from(0.0), PROMPTS, share) == 0
    assert held(waits_from(1e9), PROMPTS, share) == slo.RATES[1]


def test_a_share_is_about_requests_and_the_mean_about_all() -> None:
    waits = [0.1] * 9 + [20.0]
    assert slo.figure(waits, 0.5) == 0.1
    assert slo.figure(waits, 0.95) == 20.0
    assert slo.figure(waits, None) == pytest.approx(2.09)


def test_prompts_hit_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.xz"
    rows = [
        {"input_length": 256, "hash_ids": [1, 2, 3, 4]},
        {"input_length": 256, "hash_ids": [5, 6, 7, 8]},
        {"input_length": 320, "hash_ids": [1, 2, 3, 4, 9]},
    ]
    with lzma.open(path, "wt") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    block_bytes = 64 * BYTES_PER_TOKEN
    assert slo.prompts_of(path, 100 * block_bytes, 10)[-1] == Prompt(320, 256, 256)
    # Memory for one prompt only.
    assert slo.prompts_of(path, 4 * block_bytes, 10)[-1] == Prompt(320, 256, 0)


def test_a_small_run_prints_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.jsonl.xz"
    rows = [{"input_length": 4096, "hash_ids": list(range(number % 3, 64))} for number in range(8)]
    with lzma.open(path, "wt") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    monkeypatch.setattr(slo, "HALVINGS", 3)
    monkeypatch.setattr(slo, "SOURCES", slo.SOURCES[1:2])
    assert slo.main([str(path), "--requests", "8"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    rates = result["traces"]["trace"]["7 GB/s"]["per_s"]
    assert set(rates) == set(slo.POLICIES)
    assert rates["ours"] >= rates["recompute"] > 0


def test_a_file_that_is_no_trace_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.jsonl.xz"
    path.write_bytes(b"no trace")
    assert slo.main([str(path)]) == 2
    assert str(path) in capsys.readouterr().err
