"""The direct path with real vLLM on the CPU: what it answers, and what it loads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.dose import dose
from tests.integration.vllm import direct_engine
from tests.integration.vllm.processes import Program
from tests.integration.vllm.test_engine import QUESTIONS, Stage, connector

from dalsegno.demo import primer

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]
DOCUMENT_CHARS = 6740


def direct(path: Path, **changes: Any) -> dict[str, Any]:
    """The flat configuration of the direct path."""
    return connector(path, path_to_engine="direct", **changes)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, small: Path) -> Stage:
    folder = tmp_path_factory.mktemp("direct")
    ours = Path(shutil.copytree(small, folder / "model"))
    (folder / "document.txt").write_text(primer.document()[:DOCUMENT_CHARS], encoding="utf-8")
    return Stage(folder, ours)


def test_a_second_process_loads_the_prompt_and_answers_the_same(stage: Stage) -> None:
    first = stage.ask("cold", *QUESTIONS, kv_transfer_config=direct(stage.store))
    assert first[0]["external_tokens"] == 0
    right = [answer["token_ids"] for answer in first]
    if dose(0, 1):
        oracle = stage.ask("oracle", *QUESTIONS, options={"enable_prefix_caching": False})
        assert right == [answer["token_ids"] for answer in oracle]
    warm = stage.ask("warm", *QUESTIONS, kv_transfer_config=direct(stage.store))
    assert [answer["token_ids"] for answer in warm] == right
    assert warm[0]["external_tokens"] >= 0.9 * warm[0]["prompt_tokens"]
    assert warm[-1]["counters"]["loaded_blocks"] * 128 == warm[0]["external_tokens"]
    assert warm[-1]["counters"].get("load_failed_blocks", 0) == 0


def test_blocks_in_the_pool_are_loaded_inside_the_step(stage: Stage) -> None:
    """Real places, and a step that computes the first layers while the last ones are copied."""
    spec = {
        "model": str(stage.model),
        "steps": [[QUESTIONS[0]], [], [QUESTIONS[0]], [], [QUESTIONS[0]]],
        "document": str(stage.folder / "document.txt"),
        "context_tokens": 2048,
        "log_file": str(stage.folder / "pool.log"),
        # Long enough for a slow machine.
        "kv_transfer_config": direct(stage.folder / "pool", max_step_load_s=60),
    }
    engine = Program(direct_engine.run, spec, XDG_CACHE_HOME=str(stage.folder / "cache"))
    first, *others = list(engine.records())
    assert engine.wait() == 0, engine.said()
    assert first["external_tokens"] == 0
    for answer in others:
        assert answer["token_ids"] == first["token_ids"]
        assert answer["external_tokens"] >= 0.9 * answer["prompt_tokens"]
    counters = others[-1]["counters"]
    assert counters["step_loads"] == 2
    assert counters.get("load_failed_blocks", 0) == 0
