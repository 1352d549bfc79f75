"""``dalsegno far doctor`` across two mounts of real shared file systems."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dalsegno_bench.shared_fs.kinds import KINDS
from dalsegno_bench.shared_fs.mounts import SharedFs
from dalsegno_bench.shared_fs.processes import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SECONDS, WAIT_S = 10, 200


def examined(near: Path, other: Path) -> tuple[int, dict[str, Any]]:
    """The exit code, and what was found."""
    options = ["--other", str(other), "--seconds", str(SECONDS), "--json"]
    command = [sys.executable, "-m", "dalsegno.cli", "far", "doctor", str(near), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_file_system_of_the_guide_is_safe_across_two_mounts(
    kind: str, request: pytest.FixtureRequest
) -> None:
    fs: SharedFs = request.getfixturevalue(kind)
    near, other = fs.a / "doctor", fs.b / "doctor"
    near.mkdir()
    until("B sees the folder", other.is_dir)
    code, found = examined(near, other)
    assert (code, found["is_safe"]) == (0, True), found
    assert found["two_mounts"]
    assert {row["verdict"] for row in found["promises"]} <= {"holds", "slow"}
    assert all(row["read_bytes_per_s"] > 0 for row in found["bandwidth"])
    assert list(near.iterdir()) == []
