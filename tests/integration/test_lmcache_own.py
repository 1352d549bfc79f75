"""LMCache's own tests of L2 adapters and of the controllers above them, on our adapter.

`tools/env.py` fetches them from LMCache's source distribution; `lmcache_own.py` puts our adapter in
the place of the one that they were written with. What is left out asks for that adapter's
simulated slowness.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lmcache")

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent
TESTS = Path(sys.prefix) / "share" / "lmcache-tests"
# File -> how many of its tests run here, and those that need the simulated slowness.
FILES: dict[str, tuple[int, tuple[str, ...]]] = {
    "test_mock_l2_adapter.py": (
        43,
        ("TestBandwidthSimulation::test_store_completion_is_delayed_by_bandwidth",),
    ),
    "test_fault_inject_l2_adapter.py": (6, ()),
    "test_cache_salt_l2_eviction.py": (6, ()),
    "serde/test_serde_e2e.py": (13, ()),
    "test_store_controller.py": (23, ()),
    "test_prefetch_controller.py": (
        50,
        (
            "TestRuntimeAdapters::test_remove_waits_for_in_flight_load",
            "TestRuntimeAdapters::test_requests_during_drain_release_their_admission_slot",
            "TestShutdown::test_stop_releases_in_flight_locks",
        ),
    ),
    "test_l1_l2_state_metrics.py": (
        7,
        ("TestNumInflightL2Loads::test_no_leak_after_shutdown_with_inflight_loads",),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_lmcaches_own_tests_pass_on_our_adapter(name: str, tmp_path: Path) -> None:
    (source,) = TESTS.glob("lmcache-*/tests")
    shutil.copytree(source, tmp_path / "tests")
    passing, slow = FILES[name]
    file = f"tests/v1/distributed/{name}"
    command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "lmcache_own"]
    command += ["--timeout", "60", "-p", "no:cacheprovider", file]
    command += [f"--deselect={file}::{one}" for one in slow]
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE),
        "LMCACHE_TRACK_USAGE": "false",
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    said = done.stdout[-4000:] + done.stderr[-1000:]
    assert done.returncode == 0, said
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, said
    assert int(passed[1]) == passing, said
    assert "skipped" not in done.stdout
