"""A standard output that cannot be written, and `~` in paths."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.outside import flip, segment_of
from tests.unit.stores import Run, extents

import dalsegno
from dalsegno.integrations.common.settings import StoreSettings
from dalsegno_bench.faultbench import suite
from dalsegno_bench.sglang import sglang

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


def test_regression_findings_that_cannot_be_printed_are_exit_code_2(path: Path) -> None:
    extent = extents(path)[0]
    flip(segment_of(path, extent), extent["offset"] + extent["bytes"] - 1)
    assert shell("verify STORE > /dev/null", path).returncode == 1
    assert shell("verify STORE > /dev/full", path).returncode == COULD_NOT


def test_an_error_that_cannot_be_printed_is_exit_code_2(tmp_path: Path) -> None:
    assert shell("ls STORE 2> /dev/full", tmp_path / "missing").returncode == COULD_NOT
    closed = shell("ls STORE 2>&-", tmp_path / "missing")
    assert (closed.returncode, closed.stdout) == (COULD_NOT, "")


# A leading `~`, which a shell leaves in `--dir=~/x` and in quotes.


@pytest.fixture
def home(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home directory; a store is in its folder `store`."""
    monkeypatch.setenv("HOME", str(path.parent))
    monkeypatch.chdir("/")
    return path.parent


def test_regression_a_tilde_is_the_home_directory_in_python(home: Path) -> None:
    for call in (dalsegno.info, dalsegno.list_extents, dalsegno.verify, dalsegno.repair):
        assert call("~/store") is not None
        assert call(home / "store") is not None
    assert dalsegno.inspect(Path("~/store"), "store.meta")["problem"] == ""
    with dalsegno.open("~/new", capacity="16MiB") as store:
        assert store.path == str(home / "new")
    with dalsegno.open(Path("~") / "new", capacity="16MiB"):
        pass
    assert StoreSettings.read({"path": "~/x"}, "here", "it").path == home / "x"
    assert not Path("~").exists()


def test_regression_a_tilde_is_the_home_directory_for_the_file_of_settings(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "settings.toml").write_text('capacity = "16Mi"\n')
    monkeypatch.setenv("DALSEGNO_CONFIG", "~/settings.toml")
    with dalsegno.open("~/new") as store:
        assert store.limits()["capacity_bytes"] == 16 << 20


@pytest.mark.parametrize("command", ["info", "ls", "verify", "inspect"])
def test_regression_a_tilde_is_the_home_directory_on_the_command_line(
    command: str, home: Path, run: Run
) -> None:
    file = ["store.meta"] if command == "inspect" else []
    answer = run(command, "~/store", *file, "--json")
    assert (answer.code, answer.err) == (0, "")
    assert answer.json()["path"] == str(home / "store")


def test_regression_a_tilde_is_the_home_directory_in_options(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sglang.parse(["--dir=~/bench"]).dir == home / "bench"
    missing = run("demo", "vllm", "--doc=~/missing.txt")
    assert missing.code == COULD_NOT
    assert f"{home}/missing.txt cannot be read" in missing.err
    seen: list[str] = []

    def plan(_: object, pythons: list[str], *, shared: object) -> list[object]:
        assert shared is None
        seen.extend(pythons)
        return []

    monkeypatch.setattr(suite, "plan", plan)
    assert run("faultbench", "--list", "--python=~/bin/python").code == 0
    assert seen == [str(home / "bin/python")]
