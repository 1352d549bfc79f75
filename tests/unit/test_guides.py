"""What the guides and examples say is so: they are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dalsegno.cli import app as application

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ROOT / "docs" / "guides"
QUICKSTART = ROOT / "examples" / "quickstart.py"


def blocks(page: str, language: str) -> list[str]:
    text = (GUIDES / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def shell(command: str, folder: Path) -> str:
    """What a command prints in a shell that finds `dalsegno`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {**os.environ, "PATH": path}
    told = subprocess.run(
        command, shell=True, cwd=folder, env=settings, capture_output=True, text=True, check=False
    )
    assert told.stderr == ""
    return told.stdout


def test_the_quickstart_finds_again_what_it_stored(tmp_path: Path) -> None:
    command = f"{sys.executable} {QUICKSTART} kv"
    first = "0 blocks loaded, 75 computed\n62 blocks loaded, 6 computed\n"
    assert shell(command, tmp_path) == first
    again = "75 blocks loaded, 0 computed\n68 blocks loaded, 0 computed\n"
    assert shell(command, tmp_path) == again


def test_the_program_of_the_python_guide_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for number, block in enumerate(blocks("python.md", "python")):
        exec(compile(block, f"python.md, block {number}", "exec"), names)
    told = capsys.readouterr().out
    assert re.fullmatch(r"8 blocks, \d+ read from disk\nlost on the way: \{\}\n", told)


def test_the_commands_of_the_guide_print_what_it_says(tmp_path: Path) -> None:
    shell(f"{sys.executable} {QUICKSTART} kv", tmp_path)
    said, told = "", ""
    for block in blocks("command-line.md", "console"):
        said += block
        for line in block.splitlines():
            if line.startswith("$ "):
                told += f"{line}\n{shell(line[2:], tmp_path)}"
    # The store's id is random.
    mask = re.compile(r"^store       [0-9a-f]{32}$", re.MULTILINE)
    assert mask.sub("store", told) == mask.sub("store", said)


def test_the_guide_names_every_command_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    guide = (GUIDES / "command-line.md").read_text(encoding="utf-8")
    for command in ("info", "ls", "verify", "demo vllm", "bench"):
        assert f"## `dalsegno {command}" in guide
        with pytest.raises(SystemExit):
            application.main([*command.split(), "--help"])
        options = re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
        assert [option for option in options if option not in guide] == []
