"""LMCache's own tests of L2 adapters and of the controllers above them, on our adapter.

`tools/env.py` fetches them from LMCache's source distribution; `our_adapter.py` puts our adapter in
the place of the one that they were written with. What is left out asks for that adapter's
simulated slowness.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("lmcache")

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent
TESTS = Path(sys.prefix) / "share" / "lmcache-tests"
WHERE = "tests/v1/distributed/"
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


class Ran(NamedTuple):
    """How many of a file's tests passed, failed or were skipped, and what was printed."""

    counts: Counter[str]
    said: str


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Runs all of them in one process; returns what came of each file."""
    (source,) = TESTS.glob("lmcache-*/tests")
    folder = tmp_path_factory.mktemp("own")
    shutil.copytree(source, folder / "tests")
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "our_adapter"]
    command += ["--timeout", "60", "-p", "no:cacheprovider", f"--junitxml={report}"]
    for name, (_, slow) in FILES.items():
        command += [WHERE + name, *(f"--deselect={WHERE}{name}::{one}" for one in slow)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE),
        "LMCACHE_TRACK_USAGE": "false",
        "TMPDIR": str(folder),
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    said = done.stdout[-6000:] + done.stderr[-1000:]
    assert report.exists(), said
    found = {name: Ran(Counter(), said) for name in FILES}
    for case in ET.parse(report).iter("testcase"):
        # As in `tests.v1.distributed.test_store_controller.TestStore`.
        where = f"{case.attrib['classname']}."
        (name,) = [one for one in FILES if where.startswith(f"{module_of(one)}.")]
        ended = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found[name].counts.update(ended or ["passed"])
    return found


def module_of(name: str) -> str:
    """Returns a file's name as pytest's reports have it."""
    return (WHERE + name).removesuffix(".py").replace("/", ".")


@pytest.mark.parametrize("name", FILES)
def test_lmcaches_own_tests_pass_on_our_adapter(name: str, ran: dict[str, Ran]) -> None:
    assert ran[name].counts == {"passed": FILES[name][0]}, ran[name].said
