"""`dalsegno bench far`: a tiny run on GlusterFS."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dalsegno_bench.far import far as bench
from dalsegno_bench.shared_fs.kinds import missing

pytestmark = pytest.mark.slow
PARTS = ("metadata", "stopped")
# The figures that acceptance reads.
KEYS = {
    "metadata",
    "metadata_absent",
    "log_p99_stopped_vs_working",
    "put_max_ms_stopped",
    "put_max_ms_working",
}


@pytest.mark.skipif(missing("gluster_default") is not None, reason="GlusterFS cannot be started")
def test_a_tiny_run_on_glusterfs_counts_operations_and_stops_servers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for part in PARTS for word in ("--only", part)]
    assert bench.main(["--quick", *words, "--local", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result.keys() >= KEYS
    assert result["metadata"][0]["store"] == "dalsegno"
    assert result["stopped_misses"] == 0
