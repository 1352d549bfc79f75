"""Real vLLM on the CPU, one process per engine: what it answers with Dalsegno and without.

Thirteen engine processes, two of them in the small dose. What the others show, tests of the tier
and of the store show without an engine. Tokens are compared in float32 and greedily.

Each engine but the first answers a question whose right answer is known. The full dose has an
engine without Dalsegno for it. In the small dose it is the question of the first engine, which
found an empty store and computed every token.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")

from tests.dose import dose, long_dose
from tests.integration.vllm import engine as engine_program
from tests.integration.vllm.processes import Program
from tests.outside import flip, segment_of

import dalsegno
from dalsegno.demo import primer
from dalsegno_bench.machine.faulty import Faulty

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]
QUESTIONS = ("What does the player do at the sign?", "What does the model keep?")
ASKED = QUESTIONS[dose(0, 1)]
# 1,535 tokens: with the chat template in front, both prompts share twelve blocks of 128 tokens.
DOCUMENT_CHARS = 6740
SHARED_MEMORY = Path("/dev/shm")
EQUAL_TIME_NS = 1_600_000_000_000_000_000

HANG_S = 60.0


@dataclass
class Stage:
    """A model of our own, a document, and engines that read it.

    Attributes:
        folder: Where everything lies.
        model: The model's folder; its weights may be replaced.
    """

    folder: Path
    model: Path

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def weights(self) -> Path:
        return self.model / "model.safetensors"

    def ask(self, name: str, *questions: str, **changes: Any) -> list[dict[str, Any]]:
        """Runs an engine of its own and returns its answers."""
        spec = {
            "model": str(self.model),
            "questions": questions,
            "document": str(self.folder / "document.txt"),
            "context_tokens": 2048,
            "log_file": str(self.folder / f"{name}.log"),
            **changes,
        }
        engine = Program(engine_program.run, spec, XDG_CACHE_HOME=str(self.folder / "cache"))
        records = list(engine.records())
        assert engine.wait() == 0, [records[-1:], engine.said()]
        return [record for record in records if "token_ids" in record]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")


def connector(path: Path, **changes: Any) -> dict[str, Any]:
    """The flat configuration."""
    extra: dict[str, Any] = {"path": str(path), "capacity": "2GiB", "cpu_bytes_to_use": "256MiB"}
    extra |= {"load_policy": "always", "keep_profile": False, **changes}
    return {
        "kv_connector": "DalsegnoConnector",
        "kv_connector_module_path": "dalsegno.integrations.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
    }


def plain(path: Path, **changes: Any) -> dict[str, Any]:
    """vLLM's own connector with our tier."""
    place = "dalsegno.integrations.vllm"
    tier = {"type": "DalsegnoTier", "module_path": place, "path": str(path), "capacity": "2GiB"}
    tier |= {"options_fingerprint": "all defaults", **changes}
    extra = {
        "spec_name": "DalsegnoCpuSpec",
        "spec_module_path": place,
        "cpu_bytes_to_use": 256 << 20,
        "secondary_tiers": [tier],
    }
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
    }


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, small: Path) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("vllm")
    ours = Path(shutil.copytree(small, folder / "model"))
    os.utime(ours / "model.safetensors", ns=(EQUAL_TIME_NS, EQUAL_TIME_NS))
    (folder / "document.txt").write_text(primer.document()[:DOCUMENT_CHARS], encoding="utf-8")
    # Other engines run next to these.
    before = set(SHARED_MEMORY.glob("vllm_offload_*"))
    yield Stage(folder, ours)
    left = set(SHARED_MEMORY.glob("vllm_offload_*")) - before
    assert not left, "an engine left its primary tier behind"


@pytest.fixture(scope="module")
def cold(stage: Stage) -> dict[str, Any]:
    """The first question, by an engine that fills the store."""
    answer = stage.ask("cold", QUESTIONS[0], kv_transfer_config=connector(stage.store))[0]
    assert answer["external_tokens"] == 0
    assert answer["counters"]["stored_blocks"] >= 12
    return answer


@pytest.fixture(scope="module")
def stored(stage: Stage, cold: dict[str, Any]) -> Path:
    """A store that an engine filled with the first question."""
    assert cold["counters"]["stored_blocks"]
    return stage.store


@pytest.fixture(scope="module")
def right(stage: Stage, cold: dict[str, Any]) -> list[int]:
    """The tokens of `ASKED`, each of them computed."""
    if not dose(0, 1):
        return list(cold["token_ids"])
    answers = stage.ask("oracle", *QUESTIONS, options={"enable_prefix_caching": False})
    assert cold["token_ids"] == answers[0]["token_ids"]
    return list(answers[1]["token_ids"])


def test_a_second_process_loads_the_prompt_and_answers_the_same(
    stage: Stage, stored: Path, right: list[int]
) -> None:
    warm = stage.ask("warm", ASKED, kv_transfer_config=connector(stored))[0]
    assert warm["external_tokens"] >= 0.95 * warm["prompt_tokens"]
    assert len(warm["token_ids"]) == 32
    assert warm["token_ids"] == right
    assert warm["counters"]["loaded_blocks"] * 128 == warm["external_tokens"]
    assert warm["counters"].get("load_failed_blocks", 0) == 0


@long_dose
def test_a_locked_store_costs_time_and_nothing_else(
    stage: Stage, stored: Path, right: list[int]
) -> None:
    with dalsegno.open(stored, capacity="2GiB"):
        answer = stage.ask("locked", ASKED, kv_transfer_config=connector(stored))[0]
    assert answer["external_tokens"] == 0
    assert answer["token_ids"] == right
    assert answer["counters"]["available"] == 0
    assert "vLLM runs on without it" in stage.log("locked")


@long_dose
def test_answers_stay_equal_and_arrive_while_the_disk_hangs(
    disk: Faulty, stage: Stage, stored: Path, right: list[int]
) -> None:
    shutil.copytree(stored, disk.below / "store")
    spec = {
        "model": str(stage.model),
        "questions": [ASKED],
        "document": str(stage.folder / "document.txt"),
        "context_tokens": 2048,
        "log_file": str(stage.folder / "hang.log"),
        "kv_transfer_config": connector(disk.path / "store", load_timeout_s=2),
    }
    answers: list[dict[str, Any]] = []
    # Only if the engine waits for the disk, which is what must not be.
    clear = threading.Timer(HANG_S, disk.send, ["clear"])
    engine = Program(engine_program.run, spec, XDG_CACHE_HOME=str(stage.folder / "cache"))
    for record in engine.records():
        if record.get("stage") == "reading and answering":
            disk.send("add read hang file=segment-")
            clear.start()
        elif "token_ids" in record:
            assert clear.is_alive(), "the answer waited for the disk"
            answers.append(record)
            clear.cancel()
            disk.send("clear")
    assert engine.wait() == 0, engine.said()
    assert [answer["token_ids"] for answer in answers] == [right]
    counters = answers[0]["counters"]
    assert counters["load_failed_blocks"] > 0, "nothing was read while the disk hung"
    assert counters["poisoned"] == 0


def replace_weights(path: Path) -> None:
    """Writes other weights of the same size under the same name and time."""
    content = np.fromfile(path, np.uint8)
    # The low mantissa bits of the bfloat16 values in the second half.
    content[content.size // 4 * 2 :: 2] ^= 0x38
    content.tofile(path)
    os.utime(path, ns=(EQUAL_TIME_NS, EQUAL_TIME_NS))


# Without an engine: test_identity.py.
@long_dose
def test_replaced_weights_share_nothing_and_the_old_ones_still_load(
    stage: Stage, stored: Path, right: list[int]
) -> None:
    config = connector(stored)
    original = stage.weights.read_bytes()
    replace_weights(stage.weights)
    try:
        other = stage.ask("other-weights", ASKED, kv_transfer_config=config)[0]
        # Every token computed, with the same weights.
        own = stage.ask("own-oracle", ASKED)[0] if dose(0, 1) else None
    finally:
        stage.weights.write_bytes(original)
        os.utime(stage.weights, ns=(EQUAL_TIME_NS, EQUAL_TIME_NS))
    assert other["external_tokens"] == 0
    assert other["token_ids"] != right, "the replaced weights change nothing"
    if own is None:
        return
    assert other["token_ids"] == own["token_ids"]
    again = stage.ask("weights-again", ASKED, kv_transfer_config=config)[0]
    assert again["external_tokens"] >= 0.95 * again["prompt_tokens"]
    assert again["token_ids"] == right


@long_dose
def test_flipped_bytes_are_misses_and_the_answer_is_the_same(
    stage: Stage, stored: Path, right: list[int]
) -> None:
    extents = [
        extent
        for space in dalsegno._native.list_extents(str(stored))
        for extent in space["extent_rows"]
    ]
    assert extents
    for extent in extents:
        flip(segment_of(stored, extent), extent["offset"] + extent["bytes"] // 2)
    answer = stage.ask("flipped", ASKED, kv_transfer_config=connector(stored))[0]
    assert answer["token_ids"] == right
    assert answer["counters"]["missed_blocks"] > 0
    assert answer["counters"]["load_failed_blocks"] > 0
    assert answer["external_tokens"] < 0.95 * answer["prompt_tokens"]


@long_dose
def test_prompts_behind_a_system_prompt_that_vllm_serves_itself_hit_after_a_restart(
    stage: Stage,
) -> None:
    """vLLM stores the system prompt once, and never asks the store for it again.

    A block has 384 KiB, so five fit into a segment and 40 into the store.
    """
    text = primer.document()
    system = stage.folder / "system.txt"
    system.write_text(text[:2400], encoding="utf-8")
    # Two blocks each. The first one is asked again and again, and vLLM serves all of it itself.
    favourite, *prompts = [f"{at}: {text[4000 + 400 * at :][:1300]}" for at in range(41)]
    asked = [
        one for at, prompt in enumerate(prompts) for one in ([favourite] * (at % 8 == 0) + [prompt])
    ]
    small = connector(stage.folder / "small", capacity="16MiB", store={"segment": "2MiB"})
    given = {
        "document": str(system),
        "max_tokens": 1,
        "kv_transfer_config": small,
    }
    first = stage.ask("system", *asked, **given)
    assert first[-1]["cached_tokens"] - first[-1]["external_tokens"] >= 512
    assert max(answer["external_tokens"] for answer in first) == 0
    assert first[-1]["counters"]["stored_bytes"] > 2 * (16 << 20)

    again = stage.ask("system-again", favourite, *prompts[:-7:-1], **given)
    assert [answer["cached_tokens"] for answer in again] == [
        answer["prompt_tokens"] // 128 * 128 for answer in again
    ]
    assert again[0]["external_tokens"] == again[0]["cached_tokens"]
    assert min(answer["external_tokens"] for answer in again) >= 256


@long_dose
def test_vllms_own_connector_takes_the_tier_also_with_a_codec(
    stage: Stage, cold: dict[str, Any], right: list[int]
) -> None:
    path = stage.folder / "plain"
    coded = plain(path, codec="zstd")
    first = stage.ask("plain", QUESTIONS[0], kv_transfer_config=coded)[0]
    assert first["counters"]["stored_blocks"] >= 12
    assert first["token_ids"] == cold["token_ids"]
    spaces = dalsegno.info(str(path))["namespaces"]
    assert {(space["codec"], space["element_bytes"]) for space in spaces} == {("zstd", 4)}
    assert sum(space["stored_bytes"] for space in spaces) < sum(space["bytes"] for space in spaces)
    # An engine that wants no codec loads what was stored with one.
    warm = stage.ask("plain-warm", ASKED, kv_transfer_config=plain(path))[0]
    assert warm["external_tokens"] >= 0.95 * warm["prompt_tokens"]
    assert warm["token_ids"] == right
