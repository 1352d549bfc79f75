#!/usr/bin/env python3
"""Runs everything that CI runs: targets of the Makefile, a few at a time, and prints their costs.

1. A step starts when the steps it needs have passed, in the order of the table, while it and the
   running ones keep at most `--jobs` cores busy. Tests that wait for disks and engines leave a
   part of a core to others. With one job, one step runs at a time.
2. What is shared is built once, by a step of its own: the wheel for every environment, the Rust
   tests for the lints' and the Python tests' programs.
3. The output of a step is printed as a whole when the step ends, so that no two mix.
4. After the first failure nothing is started any more, and the exit code is 1.
5. Tests that failed once and passed in a second run (tools/pytest_twice.py) are listed at the end.

CPU seconds are those of a step and of all processes that it waited for.

Usage:
    python3 tools/suite.py                    runs all steps
    python3 tools/suite.py --jobs 1           one step at a time
    python3 tools/suite.py run-rust run-vllm  these steps, and what they need
    python3 tools/suite.py --list             shows the steps
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
# How tools/pytest_twice.py begins the line of a test that passed in the second run only.
UNSTABLE = "unstable: "
# The cores of a small machine.
JOBS = 2
# The sums of what steps keep busy are exact to this.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Step:
    """One target of the Makefile.

    Attributes:
        target: Its name.
        purpose: What it does, in a few words.
        needs: Targets that must have passed before.
        cores: How many cores it keeps busy, on average over its time.
    """

    target: str
    purpose: str
    needs: tuple[str, ...] = ()
    cores: float = 1.0


# Of those that may start, the longest come first, so that none of them is left for the end.
STEPS = (
    Step("env-dev", "fetch what building, linting and testing need"),
    Step("far-packages", "install the file systems that tests mount", ("env-dev",), 0.1),
    Step("dev", "compile the extension", ("env-dev",), 1.4),
    Step("wheel", "pack the wheels", ("dev",), 0.5),
    Step("env-engines", "fetch vLLM, SGLang and LMCache", ("env-dev",), 0.5),
    # After the wheel: cargo runs one build of a folder at a time.
    Step("build-rust-tests", "compile the Rust tests", ("wheel",), 1.3),
    Step("run-vllm", "test against real vLLM", ("wheel", "env-engines"), 0.6),
    Step(
        "run-python",
        "run the Python tests that need no engine",
        ("build-rust-tests", "wheel"),
        0.4,
    ),
    Step(
        "run-far",
        "test the far tier on shared file systems",
        ("build-rust-tests", "far-packages"),
        0.25,
    ),
    Step("run-rust", "run the Rust tests", ("build-rust-tests",), 0.45),
    Step("run-sglang", "test against real SGLang", ("wheel", "env-engines"), 0.45),
    Step("lint-rust", "check format and lints of Rust", ("build-rust-tests",), 1.0),
    Step("run-lmcache", "test against real LMCache", ("wheel", "env-engines"), 0.35),
    # After the wheel, so that the Rust tests are compiled first.
    Step("lint-python", "check format, lints and types of Python", ("wheel",)),
)


@dataclass(frozen=True)
class Cost:
    """What a step took.

    Attributes:
        target: The step.
        passed: Whether it exited with 0.
        wall_s: Seconds from its start to its end.
        cpu_s: Seconds that it and its descendants computed.
        unstable: Its tests that failed once and passed in the second run.
    """

    target: str
    passed: bool
    wall_s: float
    cpu_s: float
    unstable: tuple[str, ...] = ()


class Running:
    """A step under way."""

    def __init__(self, step: Step) -> None:
        """Starts it."""
        self.step = step
        self._started = time.monotonic()
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._process = subprocess.Popen(
            ["make", step.target],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        self.pid = self._process.pid

    def end(self, status: int, cpu_s: float) -> Cost:
        """Prints what it printed, and returns its cost; its process has been waited for."""
        code = self._process.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.monotonic() - self._started
        self._output.seek(0)
        said = self._output.read().decode(errors="replace").rstrip()
        self._output.close()
        outcome = "passed" if code == 0 else f"FAILED with {code}"
        print(f"suite: {self.step.target} {outcome} after {wall_s:.0f} s, {cpu_s:.0f} s of CPU")
        if said:
            print(said)
        sys.stdout.flush()
        lines = (line for line in said.splitlines() if line.startswith(UNSTABLE))
        unstable = tuple(line.removeprefix(UNSTABLE) for line in lines)
        return Cost(self.step.target, code == 0, wall_s, cpu_s, unstable)

    def stop(self) -> None:
        """Asks it and its descendants to end."""
        os.killpg(self.pid, signal.SIGTERM)


def chosen(names: Sequence[str]) -> list[Step]:
    """Returns the named steps and what they need, in the order of the table.

    Raises:
        SystemExit: A name is unknown.
    """
    known = {step.target: step for step in STEPS}
    wanted: set[str] = set()
    left = list(names) or list(known)
    while left:
        name = left.pop()
        if name not in known:
            raise SystemExit(f"suite: there is no step {name}; the steps are {', '.join(known)}")
        if name not in wanted:
            wanted.add(name)
            left += known[name].needs
    return [step for step in STEPS if step.target in wanted]


def startable(
    waiting: Iterable[Step], passed: set[str], running: Sequence[Step], jobs: int
) -> Step | None:
    """Returns the first step whose needs have passed and for which there is a place."""
    busy = sum(step.cores for step in running)
    for step in waiting:
        fits = jobs > 1 and busy + step.cores <= jobs + _ROUNDING
        if passed.issuperset(step.needs) and (fits or not running):
            return step
    return None


def run(steps: Sequence[Step], jobs: int) -> list[Cost]:
    """Runs steps, and returns what each cost, in the order of their ends."""
    waiting, running, costs = list(steps), dict[int, Running](), list[Cost]()
    try:
        while True:
            passed = {cost.target for cost in costs if cost.passed}
            while len(passed) == len(costs):
                now = [one.step for one in running.values()]
                step = startable(waiting, passed, now, jobs)
                if step is None:
                    break
                waiting.remove(step)
                started = Running(step)
                running[started.pid] = started
            if not running:
                return costs
            pid, status, usage = os.wait4(-1, 0)
            if pid in running:
                cpu_s = usage.ru_utime + usage.ru_stime
                costs.append(running.pop(pid).end(status, cpu_s))
    finally:
        for left in running.values():
            left.stop()


def table(costs: Sequence[Cost], wall_s: float) -> str:
    """Returns the costs as a table for people."""
    rows = [("target", "wall s", "CPU s", "")]
    purposes = {step.target: step.purpose for step in STEPS}
    rows += [
        (cost.target, f"{cost.wall_s:.0f}", f"{cost.cpu_s:.0f}", purposes[cost.target])
        for cost in costs
    ]
    rows.append(("all", f"{wall_s:.0f}", f"{sum(cost.cpu_s for cost in costs):.0f}", ""))
    return "\n".join(f"{a:18}{b:>7}{c:>7}  {d}".rstrip() for a, b, c, d in rows)


def main() -> int:
    """Runs the steps that the command line names."""
    parser = argparse.ArgumentParser(
        description="Run everything that CI runs, and print what each step cost."
    )
    parser.add_argument("steps", nargs="*", help="run these and what they need; all if none")
    parser.add_argument("--jobs", type=int, default=JOBS, help="cores to keep busy (%(default)s)")
    parser.add_argument("--list", action="store_true", help="show the steps and end")
    parser.add_argument("--json", type=Path, help="also write the costs to this file")
    options = parser.parse_args()
    steps = chosen(options.steps)
    if options.list:
        for step in steps:
            print(f"{step.target:18}{step.purpose}")
        return 0
    started = time.monotonic()
    costs = run(steps, max(1, options.jobs))
    wall_s = time.monotonic() - started
    print(table(costs, wall_s))
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"suite: load of the machine {load}, {os.cpu_count()} cores")
    for cost in costs:
        for test in cost.unstable:
            print(f"suite: {cost.target}: {UNSTABLE}{test}")
    if options.json:
        options.json.write_text(json.dumps([vars(cost) for cost in costs]))
    if len(costs) == len(steps) and all(cost.passed for cost in costs):
        return 0
    left = [step.target for step in steps if step.target not in {cost.target for cost in costs}]
    failed = [cost.target for cost in costs if not cost.passed]
    print(f"suite: FAILED {', '.join(failed)}" + (f"; not run: {', '.join(left)}" if left else ""))
    return 1


if __name__ == "__main__":
    sys.exit(main())
