"""`dalsegno bench vllm-tier` with a real tier: a tiny run."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("vllm")

from tests.integration.vllm.tiers import needs_positions

from dalsegno_bench.vllm import vllm_tier

pytestmark = [pytest.mark.engine, needs_positions]


def test_the_last_line_has_every_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert vllm_tier.main(["--rounds", "1", "--requests", "24", "--capacity-mib", "32"]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    calls = {"lookup", "submit_load", "submit_store", "get_finished_jobs", "take_events", "step"}
    assert calls <= {name.rsplit("_", 1)[0] for name in line["ratio"]}
    assert all(value > 0 for values in line["us"].values() for value in values.values())
