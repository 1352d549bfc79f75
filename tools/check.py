#!/usr/bin/env python3
"""Checks what differs from `main`: format, lints, types and quick tests, in less than a minute.

1. What is changed decides what runs; :func:`plan` is that table and nothing else.
2. The first failure ends the run with exit code 1.
3. Nothing is installed and no release is built. Python tests use the extension of the last
   `make dev`, so after a change in Rust only the Rust tests see it.

Usage:
    python3 tools/check.py                checks what differs from main
    python3 tools/check.py --base HEAD~3  checks what differs from another commit
    python3 tools/check.py --list         shows what would run
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Its tests would have to link libpython; Python tests cover it.
WITHOUT_TESTS = {"py"}
# The folder in `tests/` of a crate whose files are the modules of one program.
TEST_PROGRAM = "all"
# A folder of Python, and the tests of what is in it.
TESTS = (
    ("python/dalsegno/cli/", "tests/unit/cli"),
    ("python/dalsegno/demo/", "tests/integration/test_demo.py"),
    ("python/dalsegno/integrations/", "tests/unit/integrations"),
    ("python/dalsegno/_", "tests/unit/api"),
    ("python/dalsegno/paths.py", "tests/unit/cli"),
    ("python/dalsegno/stats.py", "tests/unit/api"),
    ("bench/dalsegno_bench/faultbench/", "tests/unit/faultbench"),
    ("bench/dalsegno_bench/shared_fs/", "tests/far"),
    ("bench/", "tests/unit/bench"),
    ("tools/", "tests/unit/project"),
    ("docs/", "tests/unit/project"),
    ("examples/", "tests/unit/project"),
    ("Makefile", "tests/unit/project"),
    ("tests/far/", "tests/far"),
)
# Rules about the whole repository.
HOUSE = (
    "tests/unit/test_house.py",
    "tests/unit/test_mutations.py",
    "tests/unit/project/test_language.py",
    "tests/unit/project/test_structure.py",
)


@dataclass(frozen=True)
class Job:
    """One command.

    Attributes:
        name: What it checks, in a few words.
        command: The command, run in the root of the checkout.
    """

    name: str
    command: tuple[str, ...]


def changed_files(base: str) -> list[str]:
    """Returns the files that differ from where this branch left `base`, untracked ones included.

    Raises:
        SystemExit: There is no such commit.
    """

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"check: git {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout.splitlines()

    (start,) = git("merge-base", base, "HEAD")
    untracked = git("ls-files", "--others", "--exclude-standard")
    return sorted({*git("diff", "--name-only", start), *untracked})


def plan(changed: Iterable[str], exists: Sequence[str] = ()) -> list[Job]:
    """Returns what to run for changed files.

    Args:
        changed: Their paths, also of files that were removed.
        exists: Those of them that are still there.
    """
    changed = list(changed)
    python = Path(sys.executable).parent
    jobs = _rust_jobs(changed, exists)
    if any(path.endswith((".py", ".pyi", "pyproject.toml")) for path in changed):
        jobs += [
            Job("lints of Python", (f"{python}/ruff", "check", "--quiet", ".")),
            Job("format of Python", (f"{python}/ruff", "format", "--quiet", "--check", ".")),
            Job("types of Python", (f"{python}/mypy", "--strict", "--no-error-summary")),
        ]
    if changed:
        tests = (*HOUSE, *_python_tests(changed, exists))
        quick = ("-m", "pytest", "-q", "-m", "not slow", "--no-header")
        jobs.append(Job("tests of Python", (sys.executable, *quick, *tests)))
    return jobs


def _rust_jobs(changed: Sequence[str], exists: Sequence[str]) -> list[Job]:
    """Format of all, lints of what changed and of all that uses it, unit tests of what changed."""
    rust = [path for path in changed if path.endswith(".rs") or "Cargo" in path]
    if not rust:
        return []
    jobs = [Job("format of Rust", ("cargo", "fmt", "--all", "--check"))]
    everything = any(not path.startswith(("crates/", "fuzz/", "bench/")) for path in rust)
    crates = sorted({path.split("/")[1] for path in rust if path.startswith("crates/")})
    if crates or everything:
        # Cargo checks again only what a change reaches.
        lints = ("cargo", "clippy", "--quiet", "--workspace", "--all-targets", "--locked")
        jobs.append(Job("lints of Rust", (*lints, "--", "-D", "warnings")))
    for crate in crates:
        if crate in WITHOUT_TESTS:
            continue
        test = ("cargo", "test", "--quiet", "--locked", "-p", f"dalsegno-{crate}")
        files = [path for path in exists if path.startswith(f"crates/{crate}/tests/")]
        programs = [Path(path).stem for path in files if path.count("/") == 3]
        # Most tests are modules of one program.
        modules = [Path(path).stem for path in files if Path(path).parent.name == TEST_PROGRAM]
        jobs.append(Job(f"unit tests of {crate}", (*test, "--lib")))
        jobs += [Job(f"test {one} of {crate}", (*test, "--test", one)) for one in programs]
        jobs += [
            Job(f"test {one} of {crate}", (*test, "--test", TEST_PROGRAM, f"{one}::"))
            for one in modules
            if one != "main"
        ]
    return jobs


def _python_tests(changed: Sequence[str], exists: Sequence[str]) -> list[str]:
    """A changed test itself; for a helper the tests of its folder; for code the tests of it."""
    found = set()
    for path in changed:
        parts = path.split("/")
        if path.startswith("tests/unit/") and len(parts) > 3:
            if not parts[-1].startswith("test_"):
                found.add("/".join(parts[:3]))
            elif path in exists:
                found.add(path)
        else:
            found |= {tests for folder, tests in TESTS if path.startswith(folder)}
    # A folder stands for its files.
    return sorted(one for one in found if not any(one.startswith(f"{other}/") for other in found))


def run(jobs: Sequence[Job]) -> int:
    """Runs jobs until one fails, and prints what each took; returns the exit code."""
    path = os.pathsep.join([str(ROOT / "python"), str(ROOT / "bench")])
    environment = {**os.environ, "PYTHONPATH": path}
    started = time.monotonic()
    for job in jobs:
        before = time.monotonic()
        done = subprocess.run(
            job.command,
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        took_s = time.monotonic() - before
        outcome = "passed" if done.returncode == 0 else "FAILED"
        print(f"check: {job.name}: {outcome} after {took_s:.1f} s", flush=True)
        if done.returncode != 0:
            print(f"$ {shlex.join(job.command)}\n{done.stdout.rstrip()}")
            return 1
    print(f"check: passed after {time.monotonic() - started:.1f} s")
    return 0


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Check what differs from main.")
    parser.add_argument("--base", default="main", help="compare with this commit (%(default)s)")
    parser.add_argument("--list", action="store_true", help="show what would run, and stop")
    options = parser.parse_args()
    changed = changed_files(options.base)
    jobs = plan(changed, [path for path in changed if (ROOT / path).is_file()])
    print(f"check: {len(changed)} files differ from {options.base}")
    if options.list:
        for job in jobs:
            print(f"{job.name}: {shlex.join(job.command)}")
        return 0
    return run(jobs)


if __name__ == "__main__":
    sys.exit(main())
