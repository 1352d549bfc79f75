#!/usr/bin/env python3
"""Runs pytest, and the tests that failed once more: a test that then passes is unstable.

1. A second failure fails the run. So do collection errors, which are no failures of tests.
2. Each run has a cache of its own in `target/pytest`, because steps of tools/suite.py run next to
   each other. It is emptied first, so that only failures of this run are repeated.
3. There is no second run with the full dose, `DALSEGNO_DOSE=long`, nor with `PYTEST_ONCE=1`: those
   runs look for unstable tests.

An unstable test is a fault to fix. Its line begins with `unstable: `, which tools/suite.py repeats
at the end.

Usage:
    python3 tools/pytest_twice.py NAME PYTHON [ARGUMENT ...]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNSTABLE = "unstable: "
# pytest's exit code when tests ran and some of them failed.
TESTS_FAILED = 1


def failures(cache: Path) -> list[str]:
    """Returns the tests that failed in the last run, sorted by name."""
    file = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(file.read_text())) if file.is_file() else []


def may_run_again(environment: Mapping[str, str]) -> bool:
    """Returns whether a test may fail once."""
    return environment.get("DALSEGNO_DOSE") != "long" and not environment.get("PYTEST_ONCE")


def run(name: str, python: str, arguments: Sequence[str]) -> int:
    """Runs pytest at most twice; returns the exit code of the last run."""
    cache = ROOT / "target" / "pytest" / name
    command = [python, "-m", "pytest", "-q", "-o", f"cache_dir={cache}", *arguments]
    code = subprocess.run([*command, "--cache-clear"], check=False).returncode
    failed = failures(cache)
    if code != TESTS_FAILED or not failed or not may_run_again(os.environ):
        return code
    print(f"pytest_twice: {len(failed)} failed; running again what failed", flush=True)
    only_failed = ("--last-failed", "--last-failed-no-failures", "none")
    code = subprocess.run([*command, *only_failed], check=False).returncode
    for test in sorted({*failed} - {*failures(cache)}):
        print(f"{UNSTABLE}{test}")
    return code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2], sys.argv[3:]))
