"""Every mutation still applies to the code."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.checkout import ROOT

PATCHES = sorted((ROOT / "crates" / "sim" / "mutations").glob("*.patch"))


def test_there_are_at_least_ten_mutations_numbered_in_order() -> None:
    assert len(PATCHES) >= 10
    numbers = sorted(int(patch.name.partition("-")[0]) for patch in PATCHES)
    assert numbers == list(range(1, len(PATCHES) + 1))


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_mutation_applies_and_says_why(patch: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("there is no git here to check patches with")
    reason = patch.read_text(encoding="utf-8").splitlines()[0]
    assert reason.endswith("."), "the first line is a sentence that says what is wrong"
    # git checks patches in a source archive too, which is not a repository.
    command = ["git", "apply", "--check", str(patch)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, (
        f"{done.stderr}\nrewrite the patch: plant the same bug, and use the output of `git diff`"
    )
