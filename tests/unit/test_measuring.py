"""The prompts of a measurement before traffic, and what is made of their times."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.contract.reference_store import wait_until

from dalsegno import InvalidError, UnavailableError, profiles
from dalsegno.cli.profile_run import engine_options
from dalsegno.measuring import grid, running

LENGTHS = [256, 512, 1024]
CELLS = [
    *[(0, 256), (0, 512), (0, 1024), (256, 256), (256, 512), (256, 1024)],
    *[(512, 256), (512, 512), (1024, 256)],
]


def test_the_grid_has_all_pairs_of_lengths_that_fit() -> None:
    assert grid.cells(LENGTHS) == CELLS
    for asks, cells in (
        (grid.from_memory(LENGTHS, 3), CELLS),
        (grid.from_disk(LENGTHS, 3), [(256, 256), (512, 256), (1024, 256)]),
    ):
        assert {(ask.prefix, ask.new) for ask in asks} == set(cells)
        assert len(set(asks)) == len(asks) == 3 * len(cells)


def test_a_document_is_computed_before_it_is_a_prefix() -> None:
    asks = grid.from_memory(LENGTHS, 2)
    stored: list[tuple[int, ...]] = []
    for ask in asks:
        prompt = tuple(ask.prompt(1000, "memory"))
        assert len(prompt) == ask.tokens
        if ask.prefix:
            assert prompt[: ask.prefix] in stored
        stored.append(prompt)
    loaded = set()
    for ask in grid.from_disk(LENGTHS, 2):
        prompt = tuple(ask.prompt(1000, "disk"))
        assert prompt[: ask.prefix] in stored
        # What was loaded once is in memory.
        assert prompt[: ask.prefix] not in loaded
        loaded.add(prompt[: ask.prefix])
        # What follows is computed.
        assert all(one[: len(prompt)] != prompt for one in stored)


def test_lengths_are_whole_blocks_that_fit_the_engine() -> None:
    assert grid.whole_blocks([100, 250, 260, 1000], 128) == [128, 256, 1024]
    assert grid.fitting(LENGTHS, 1281, is_default=False) == LENGTHS
    assert grid.fitting(LENGTHS, 1280, is_default=True) == LENGTHS[:2]
    with pytest.raises(InvalidError, match="1,280 tokens"):
        grid.fitting(LENGTHS, 1280, is_default=False)
    with pytest.raises(InvalidError, match="512 tokens"):
        grid.fitting(LENGTHS, 512, is_default=True)


def test_prompts_that_would_end_too_late_are_not_asked() -> None:
    budget, asked = grid.Budget(10.0), list[grid.Ask]()
    for ask in grid.from_memory(LENGTHS, 50):
        if budget.allows(ask):
            asked.append(ask)
            budget.note(ask, ask.new / 1000)
    assert 9.0 < budget.spent_s <= 10.0
    assert {(ask.prefix, ask.new) for ask in asked} == set(CELLS)


def test_steps_are_added_up_for_their_prompts() -> None:
    times = grid.CellTimes()
    times.add(0, 64, 9.0)
    for number in range(2):
        times.ask(grid.Ask(0, 1024, number))
    times.ask(grid.Ask(512, 256, 0))
    times.ask(grid.Ask(512, 256, 1))
    times.ask(grid.Ask(256, 256, 0))
    # In two steps; then the last step of the second prompt is missing.
    for before, tokens, seconds in ((0, 512, 1.0), (512, 512, 2.0), (0, 512, 1.0)):
        times.add(before, tokens, seconds)
    # A prefix that was not loaded, and one that was.
    times.add(0, 768, 5.0)
    times.add(512, 256, 0.5)
    times.add(256, 256, 0.25)
    assert times.missed == 1
    assert [(one["prefix"], one["seconds"], one["measured"]) for one in times.table()] == [
        (0, 3.0, 1),
        (256, 0.25, 1),
        (512, 0.5, 1),
    ]
    assert times.table()[0]["steps"] == 2


def test_options_of_the_engine_are_read() -> None:
    words = ["block_size=32", "--enforce-eager=true", "dtype=float32", '{"seed": 1, "x": {"y": 2}}']
    given = {"block_size": 32, "enforce_eager": True, "dtype": "float32", "seed": 1, "x": {"y": 2}}
    assert engine_options(words) == given
    for word in ("block_size", "{", "model=x", "kv_transfer_config={}"):
        with pytest.raises(InvalidError):
            engine_options([word])


def learned(**measured: int) -> dict[str, Any]:
    """Returns a profile that was measured so often."""
    tiers = {tier: {"measured": measured.get(tier, 0)} for tier in profiles.TIERS}
    compute = {"measured": measured["compute"]}
    return {"learned": {"compute": compute, **tiers}, "tiers": dict.fromkeys(tiers, measured)}


def test_two_engines_make_one_profile() -> None:
    first, second = learned(compute=20, dram=9), learned(compute=5, log=4)
    both = running._together(first, second)
    counts = {name: one["measured"] for name, one in both["learned"].items()}
    assert counts == {"compute": 25, "dram": 9, "log": 4, "far": 0}
    assert both["tiers"]["dram"] == first["tiers"]["dram"]
    assert both["tiers"]["log"] == second["tiers"]["log"]


def test_a_profile_keeps_its_table_when_an_engine_saves_it(tmp_path: Path) -> None:
    engine, prior = {"model": "m"}, profiles.ComputePrior(1e-3, 1e-6, 1e-12, 1e-9)
    profile = profiles.Profile(engine, prior, tmp_path)
    profile.save(profile.model())
    assert profile.path is not None
    known = profiles.read(profile.path)
    place = profiles.write({**known, "table": {"cells": []}}, tmp_path)
    assert place == profile.path
    profile.save(profile.model())
    assert profiles.read(place)["table"] == {"cells": []}


def order(store: Path, **changes: Any) -> running.Order:
    """Returns an order for a model that does not exist."""
    given = {"model": "/nowhere", "options": {}, "lengths": LENGTHS, "times": 1, "seconds": 1.0}
    return running.Order(store=store, is_default=True, **{**given, **changes})


def test_what_cannot_be_measured_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "has_vllm", lambda: False)
    with pytest.raises(UnavailableError, match="has no vLLM"):
        running.measure(order(tmp_path / "kv"), lambda done, total: None)
    monkeypatch.setattr(running, "has_vllm", lambda: True)
    with pytest.raises(InvalidError, match="/nowhere does not exist"):
        running.measure(order(tmp_path / "kv"), lambda done, total: None)
    with pytest.raises(InvalidError, match="/proc cannot be written"):
        running.measure(order(Path("/proc/kv"), model="org/model"), lambda done, total: None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ('print(\'{"error": "it is broken"}\')', "it is broken"),
        ("raise SystemExit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9"),
    ],
)
def test_an_engine_that_fails_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, message: str
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "failing_engine.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "code"))
    monkeypatch.setattr(running, "ENGINE_MODULE", "failing_engine")
    monkeypatch.setattr(running, "has_vllm", lambda: True)
    with pytest.raises(UnavailableError, match=message) as caught:
        running.measure(order(tmp_path / "kv", model="org/model"), lambda done, total: None)
    assert "\n" not in str(caught.value)
    assert [one.name for one in tmp_path.iterdir()] == ["code"]


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_measurement_and_leaves_nothing(tmp_path: Path, sign: int) -> None:
    (tmp_path / "place").mkdir()
    (tmp_path / "slow_engine.py").write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()) + chr(10))\n"
        "time.sleep(600)\n"
    )
    code = (
        "from dalsegno.measuring import running\n"
        "running.ENGINE_MODULE = 'slow_engine'\n"
        "running.has_vllm = lambda: True\n"
        "from dalsegno.cli.app import main\n"
        f"main(['profile', 'run', 'org/model', '--path', {str(tmp_path / 'place' / 'kv')!r}])\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    command = subprocess.Popen([sys.executable, "-c", code], env=environment)
    pid = tmp_path / "pid"
    assert wait_until(lambda: pid.exists() and pid.read_text().endswith("\n"), 60)
    command.send_signal(sign)
    assert command.wait(60) == 130
    assert not list((tmp_path / "place").iterdir())
    assert not Path("/proc", pid.read_text().strip()).exists()


def test_the_command_says_why_it_cannot_measure(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dalsegno.cli", "profile", "run", "/nowhere", "--path", "kv"]
    for more, words in (
        (["--lengths", "256,x"], "whole numbers of tokens"),
        (["--", "block"], "is no option of an engine"),
        ([], "does not exist" if running.has_vllm() else "vLLM"),
    ):
        done = subprocess.run(
            [*command, *more], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert words in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_table_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dalsegno.cli import profile_run

    engine = {"model": "m", "device": "cpu", "engine": "vllm 1", "store": "/kv", "layers": "4"}
    engine |= {"block_bytes": "1048576", "block_tokens": "16"}
    profile = profiles.Profile(engine, profiles.ComputePrior(1e-3, 1e-4, 1e-12, 1e-9), tmp_path)
    profile.save(profile.model())
    assert profile.path is not None
    cells = [
        {"prefix": 0, "new_tokens": 256, "seconds": 0.08, "steps": 2, "measured": 3},
    ]
    table = {"lengths": LENGTHS, "cells": cells, "skipped": 2, "missed": 0}
    profile_run._show({**profiles.read(profile.path), "table": table})
    shown = capsys.readouterr().out
    for text in ("80 ms", "10 ms", "2 prompts were not asked", "dram: loading is faster", "1,024"):
        assert text in shown
    assert json.loads(profile.path.read_text())["engine"] == engine
