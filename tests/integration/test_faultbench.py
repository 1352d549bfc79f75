"""The adapters of `dalsegno faultbench` for the stores of this environment's engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.dose import long_dose

from dalsegno_bench.faultbench import cell, remote, stores, suite

pytestmark = pytest.mark.engine

# None has a checksum, so a bit that flips on the disk is handed out by each of them.
STORES = ("vllm-fs", "sglang-file", "lmcache-fs-native", "lmcache-raw-block")


# Each imports an engine once more, and none is ours.
@long_dose
@pytest.mark.parametrize("store", STORES)
def test_a_peers_store_runs_and_gets_a_verdict(
    store: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The engine is imported when the store is opened: half a minute where other tests run.
    monkeypatch.setattr(cell, "CALL_S", 240.0)
    known = stores.STORES[store]
    if known.package != request.config.getoption("--engine"):
        pytest.skip(f"needs {known.package}")
    origin = remote.Origin(sys.executable, known.adapter, tmp_path / "messages")
    directory = tmp_path / "cell"
    directory.mkdir()
    try:
        outcome = cell.run(suite.probe_named("bit-flip"), origin, directory, seed=1)
    finally:
        origin.close()
    assert (outcome.wrong, outcome.lost, outcome.hung) == (6, 0, 0), outcome
