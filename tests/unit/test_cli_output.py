"""A standard output that cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.outside import flip, segment_of
from tests.unit.stores import extents

COULD_NOT = 2
COMMANDS = [
    "info STORE",
    "info STORE --json",
    "ls STORE",
    "verify STORE",
    "inspect STORE store.meta",
    "bench",
    "faultbench --list --store dalsegno",
    "--help",
    "--version",
]


def shell(command: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Runs the command in a shell and returns its own exit code, also from within a pipe."""
    words = command.replace("STORE", str(path))
    line = f"set -o pipefail; {sys.executable} -m dalsegno.cli {words}"
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_regression_a_full_output_is_exit_code_2(command: str, path: Path) -> None:
    done = shell(f"{command} > /dev/full", path)
    assert done.returncode == COULD_NOT
    assert done.stderr == "dalsegno: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("command", ["ls STORE", "--help"])
def test_regression_a_closed_output_is_exit_code_2(command: str, path: Path) -> None:
    done = shell(f"{command} >&-", path)
    assert done.returncode == COULD_NOT
    assert done.stderr == "dalsegno: standard output cannot be written: Bad file descriptor\n"


@pytest.mark.parametrize("command", ["ls STORE", "verify STORE", "bench", "--help"])
def test_regression_a_pipe_without_a_reader_is_exit_code_2(command: str, path: Path) -> None:
    words = [str(path) if one == "STORE" else one for one in command.split()]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "dalsegno.cli", *words],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=120,
        )
    assert (done.returncode, done.stderr) == (COULD_NOT, "")


def test_regression_findings_that_nobody_can_read_are_exit_code_2(path: Path) -> None:
    extent = extents(path)[0]
    flip(segment_of(path, extent), extent["offset"] + extent["bytes"] - 1)
    assert shell("verify STORE > /dev/null", path).returncode == 1
    assert shell("verify STORE > /dev/full", path).returncode == COULD_NOT


def test_an_error_is_exit_code_2_also_when_nobody_can_read_it(tmp_path: Path) -> None:
    assert shell("ls STORE 2> /dev/full", tmp_path / "missing").returncode == COULD_NOT
    closed = shell("ls STORE 2>&-", tmp_path / "missing")
    assert (closed.returncode, closed.stdout) == (COULD_NOT, "")
