"""The adapters of `dalsegno faultbench` for the stores of this environment's engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dalsegno.faultbench import cell, remote, stores, suite

pytestmark = pytest.mark.engine

# A bit that flips on the disk is handed out by each of them: none has a checksum.
SEEN = {
    "vllm-fs": {"bit-flip": "wrong", "staging": ""},
    "sglang-file": {"bit-flip": "wrong", "staging": ""},
    "sglang-file-lru": {"bit-flip": "wrong"},
    "lmcache-fs-native": {"bit-flip": "wrong", "staging": ""},
    "lmcache-raw-block": {"bit-flip": "wrong"},
}


@pytest.mark.parametrize("store", SEEN)
def test_a_peers_store_runs_and_is_judged(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    known = stores.STORES[store]
    if known.package != request.config.getoption("--engine"):
        pytest.skip(f"needs {known.package}")
    origin = remote.Origin(sys.executable, known.adapter, tmp_path / "messages")
    try:
        for probe, count in SEEN[store].items():
            directory = tmp_path / probe
            directory.mkdir()
            outcome = cell.run(suite.probe_named(probe), origin, directory, seed=1)
            assert outcome.hung == 0, outcome
            assert outcome.correct if not count else getattr(outcome, count) == 6, outcome
    finally:
        origin.close()
