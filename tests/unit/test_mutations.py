"""The planted bugs are still about the code as it is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.checkout import ROOT

PATCHES = sorted((ROOT / "crates" / "sim" / "mutations").glob("*.patch"))


def test_there_are_at_least_ten_mutations_numbered_in_order() -> None:
    assert len(PATCHES) >= 10
    numbers = [patch.name[:2] for patch in PATCHES]
    assert numbers == [f"{number:02}" for number in range(1, len(PATCHES) + 1)]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_mutation_applies_and_says_why(patch: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("there is no git here to check patches with")
    reason = patch.read_text(encoding="utf-8").splitlines()[0]
    assert reason.endswith("."), "the first line is a sentence that says what is wrong"
    # A source archive is no repository, and git finds that no reason not to check.
    command = ["git", "apply", "--check", str(patch)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, (
        f"{done.stderr}\nmake the patch anew: plant the same bug, and take what `git diff` says"
    )
