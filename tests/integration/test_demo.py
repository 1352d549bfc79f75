"""`dalsegno demo vllm` with engines that only pretend; needs no vLLM."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dalsegno.demo import model, vllm

ENGINE = """
import json, os, sys
spec = json.loads(sys.argv[1])
store = spec["kv_transfer_config"]
print("noise", flush=True)
BEHAVIOUR
answer = {
    "text": spec["question"], "token_ids": [1, 2], "prompt_tokens": 100, "ttft_s": 1.0,
    "external_tokens": 0, "document_tokens": 90, "document_cut": False, "counters": {},
}
if store:
    mark = store["kv_connector_extra_config"]["path"] + ".mark"
    if os.path.exists(mark):
        answer |= {"external_tokens": 99, "ttft_s": 0.1}
    open(mark, "w").close()
    answer["counters"] = {"stored_bytes": 7, "stored_blocks": 1}
print(json.dumps(answer), flush=True)
sys.stdin.read()
print("bye", flush=True)
if store and not answer["external_tokens"]:
    open(mark + "-survived", "w").close()
"""


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replaces the engine by one with a given behaviour, and the model by a folder."""

    def use(behaviour: str) -> None:
        (tmp_path / "pretended_engine.py").write_text(ENGINE.replace("BEHAVIOUR", behaviour))

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setattr(vllm, "ENGINE_MODULE", "pretended_engine")
    monkeypatch.setattr(vllm, "check", lambda doc: None)
    monkeypatch.setattr(model, "prepare", lambda folder, console: tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return use


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return summary


def test_the_last_line_has_the_whole_result_and_no_file_is_left(
    pretend: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend("")
    assert vllm.run() == 0
    summary = last_line(capsys)
    assert summary["loaded_tokens"] == 99
    assert summary["identical"] is True
    assert summary["stored_bytes"] == 7
    assert summary["oracle_loaded_tokens"] == 0
    assert (summary["cold_ttft_s"], summary["warm_ttft_s"]) == (1.0, 0.1)
    assert not list(tmp_path.glob("dalsegno-demo-*"))


def test_the_first_engine_is_killed_and_does_not_end_by_itself(
    pretend: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend("")
    assert vllm.run(keep=True, json_only=True) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    (kept,) = tmp_path.glob("dalsegno-demo-*")
    time.sleep(0.2)
    assert not (kept / "store.mark-survived").exists()
    shutil.rmtree(kept)


def test_tokens_other_than_the_oracles_are_a_failure(
    pretend: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend("")
    carry_out = vllm.carry_out

    def lie(run: vllm.Run, *arguments: Any) -> dict[str, Any]:
        answer = carry_out(run, *arguments)
        return {**answer, "token_ids": [1, 3]} if run.name == "warm" else answer

    monkeypatch.setattr(vllm, "carry_out", lie)
    assert vllm.run(json_only=True) == 1
    result = capsys.readouterr()
    assert json.loads(result.out)["identical"] is False
    assert "other tokens than an engine without Dalsegno" in " ".join(result.err.split())


@pytest.mark.parametrize(
    ("loaded", "code"), [(0, 1), (94, 1), (95, 0)], ids=["nothing", "too little", "enough"]
)
def test_loading_less_than_95_percent_of_the_prompt_is_a_failure(
    pretend: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    loaded: int,
    code: int,
) -> None:
    pretend("")
    carry_out = vllm.carry_out

    def load(run: vllm.Run, *arguments: Any) -> dict[str, Any]:
        answer = carry_out(run, *arguments)
        return {**answer, "external_tokens": loaded} if run.name == "warm" else answer

    monkeypatch.setattr(vllm, "carry_out", load)
    assert vllm.run() == code
    result = capsys.readouterr()
    assert json.loads(result.out.splitlines()[-1])["loaded_tokens"] == loaded
    said = f"the warm engine loaded {loaded} of 100 tokens of its prompt, less than 95%"
    assert (said in " ".join(result.err.split())) == bool(code)


def test_a_text_that_is_too_short_is_distinguished_from_a_failure() -> None:
    summary = {"loaded_tokens": 256, "prompt_tokens": 346, "identical": True}
    (short,) = vllm.complaints({**summary, "document_tokens": 300})
    assert "take a text of at least 3,400 tokens, not 300" in short
    (long,) = vllm.complaints({**summary, "document_tokens": 6000})
    assert "take a text" not in long


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [
        ("raise MemoryError('no memory')", "no memory"),
        ("print('it said why', file=sys.stderr)\nsys.exit(3)", "it said why"),
    ],
)
def test_an_engine_that_fails_is_reported_with_its_log(
    pretend: Callable[[str], None], capsys: pytest.CaptureFixture[str], behaviour: str, says: str
) -> None:
    pretend(behaviour)
    assert vllm.run(json_only=True) == 2
    result = capsys.readouterr()
    assert says in result.err
    assert not result.out


def test_a_missing_document_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert vllm.run(doc=tmp_path / "nothing.txt") == 2
    assert "is no file" in " ".join(capsys.readouterr().err.split())
