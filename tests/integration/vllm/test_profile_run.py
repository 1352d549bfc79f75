"""The command `dalsegno profile run` with real vLLM on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.dose import long_dose
from tests.integration.vllm import direct_engine, tiny_model
from tests.integration.vllm.processes import Program
from tests.integration.vllm.test_engine import connector

from dalsegno import profiles
from dalsegno.measuring import grid

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]
LENGTHS, TIMES = [64, 128], 2
OPTIONS = {"block_size": 32, "dtype": "float32", "enforce_eager": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.prepare(tmp_path_factory.mktemp("model") / "model")


def environment(folder: Path) -> dict[str, str]:
    """Variables under which nothing is written elsewhere."""
    return {
        "XDG_CACHE_HOME": str(folder / "cache"),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
    }


def run(folder: Path, model: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Runs the command for a store in a folder."""
    command = [sys.executable, "-m", "dalsegno.cli", "profile", "run", str(model)]
    command += ["--path", str(folder / "place" / "kv"), "--lengths", ",".join(map(str, LENGTHS))]
    return subprocess.run(
        [*command, "--times", str(TIMES), "--json", *more],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment(folder)},
    )


def start_engine(folder: Path, model: Path) -> None:
    """Runs an engine of the measured kind to its end."""
    settings = {"path_to_engine": "direct", "load_policy": "auto", "keep_profile": True}
    config = connector(folder / "place" / "kv", cpu_bytes_to_use="64MiB", **settings)
    spec = {
        "model": str(model),
        "steps": [{"ask": [list(range(2, 200))]}],
        "kv_transfer_config": config,
        "options": {"block_size": OPTIONS["block_size"]},
        "log_file": str(folder / "engine.log"),
    }
    engine = Program(direct_engine.run, spec, **environment(folder))
    assert list(engine.records())
    assert engine.wait() == 0, engine.said()


@long_dose
def test_a_machine_is_measured_and_the_next_engine_starts_with_that(
    tmp_path: Path, model: Path
) -> None:
    (tmp_path / "place").mkdir()
    log = str(tmp_path / "log")
    done = run(tmp_path, model, "--log", log, "--", json.dumps(OPTIONS))
    assert done.returncode == 0, done.stderr + Path(log).read_text(errors="replace")[-3000:]
    known: dict[str, Any] = json.loads(done.stdout)
    path, table, learned = Path(known.pop("path")), known["table"], known["learned"]
    assert profiles.read(path) == known
    assert not list((tmp_path / "place").iterdir()), "something was left behind"
    cells = {(one["prefix"], one["new_tokens"]): one for one in table["cells"]}
    assert list(cells) == grid.cells(LENGTHS)
    assert all(one["measured"] == TIMES and one["seconds"] > 0 for one in cells.values())
    assert (table["skipped"], table["missed"], table["lengths"]) == (0, 0, LENGTHS)
    token_bytes = int(known["engine"]["block_bytes"]) // 32
    loads = {(one["tier"], one["bytes"] // token_bytes): one["measured"] for one in table["loads"]}
    assert loads == {("dram", 64): 4, ("dram", 128): 2, ("log", 64): 2, ("log", 128): 2}
    assert (learned["dram"]["measured"], learned["log"]["measured"]) == (6, 4)
    # Two engines, each with two prompts to warm up, and those that loaded from the disk.
    assert learned["compute"]["measured"] >= len(cells) * TIMES + len(LENGTHS) * TIMES

    start_engine(tmp_path, model)
    assert list(path.parent.iterdir()) == [path], "the engine has another kind"
    later = profiles.read(path)
    assert later["saved_at"] > known["saved_at"]
    assert later["table"] == table
    assert later["engine"] == known["engine"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blocksize": 32}, "blocksize"),
        pytest.param({"max_model_len": 128}, "shorter --lengths", marks=long_dose),
        pytest.param({"tensor_parallel_size": 2}, "cannot take: ", marks=long_dose),
    ],
)
def test_what_an_engine_cannot_do_is_one_line_and_leaves_nothing(
    tmp_path: Path, model: Path, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "place").mkdir()
    done = run(tmp_path, model, "--", json.dumps({**OPTIONS, **options}))
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list((tmp_path / "place").iterdir())
    assert not (tmp_path / "cache" / "dalsegno" / "profiles").exists()
