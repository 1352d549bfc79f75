"""The bench of SGLang's storage backends, with a small model."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("sglang")

from dalsegno_bench.sglang import sglang as bench

pytestmark = pytest.mark.engine

BACKENDS = ("dalsegno", "file", "v1file", "sim")
SMALL = [
    "--rounds",
    "1",
    "--pages",
    "16",
    "--layers",
    "2",
    "--heads",
    "2",
    "--head-dim",
    "32",
    "--sequences",
    "1",
    "--tokens",
    "64",
]


def test_every_backend_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(SMALL) == 0
    measured = json.loads(capsys.readouterr().out.splitlines()[-1])["page16"]
    assert all(measured[backend]["backup"] > 0 for backend in BACKENDS)
