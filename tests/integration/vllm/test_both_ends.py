"""Both ends with real vLLM on the CPU: every answer is the one that vLLM computes.

Jumps are asserted, not where they are: that depends on how fast the machine computes.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.dose import long_dose
from tests.integration.vllm import both_ends_engine, direct_engine, tiny_model
from tests.integration.vllm.processes import Program
from tests.integration.vllm.test_direct import direct, environment

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]
BLOCK = 32
NOISE = random.Random(2)
A, B = ([NOISE.randrange(2, tiny_model.VOCABULARY) for _ in range(count)] for count in (1500, 1300))
OPTIONS = {
    "block_size": BLOCK,
    # Not a multiple of a block: chunks end inside of blocks.
    "max_num_batched_tokens": 80,
    "max_num_seqs": 8,
    "num_gpu_blocks_override": 200,
    "enable_prefix_caching": True,
}
FORGET = {"forget": True}
# Parts that come about as fast as their blocks are computed.
LIKE_COMPUTING = 0.05


class Stage:
    """A model, and the right answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = tiny_model.prepare(folder / "model")
        tokens = direct_engine.ANSWER_TOKENS
        self.right = {tuple(prompt): tiny_model.answer(prompt, tokens) for prompt in (A, B)}

    def run(
        self, name: str, steps: list[dict[str, Any]], *ways: str, **options: Any
    ) -> list[dict[str, Any]]:
        """Runs an engine that has stored the prompts; returns its other answers."""
        settings = {key: options.pop(key) for key in ("both_ends",) if key in options}
        spec = {
            "model": str(self.model),
            "as": ways,
            "steps": [{"ask": [A]}, {"ask": [B]}, FORGET, *steps],
            "kv_transfer_config": direct(self.folder / name, load_policy="auto", **settings),
            "options": {**OPTIONS, **options},
            "log_file": str(self.folder / f"{name}.log"),
        }
        engine = Program(both_ends_engine.run, spec, **environment(self.folder))
        cold_a, cold_b, *records = engine.records()
        assert engine.wait() == 0, engine.said()
        self.check(cold_a, A)
        self.check(cold_b, B)
        assert not [*cold_a["jumps"], *cold_b["jumps"]]
        return records

    def check(self, record: dict[str, Any], *prompts: list[int]) -> dict[str, Any]:
        """Compares answers to those that were computed; returns the record."""
        for number, prompt in enumerate(prompts):
            tokens, logprobs = self.right[tuple(prompt)]
            assert record["tokens"][number][: len(tokens)] == tokens, number
            got = record["logprobs"][number][: len(logprobs)]
            assert got == pytest.approx(logprobs, abs=1e-3)
        assert not record["wrong"]
        return record


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("both-ends"))


def pace(**changes: Any) -> dict[str, Any]:
    return {"pace": changes}


# Meet in the middle, load first, compute first, loads that fail, two at once, aborts.
MEETINGS: list[dict[str, Any]] = [
    pace(part_s=LIKE_COMPUTING),
    {"ask": [A]},
    {"ask": [A]},
    FORGET,
    pace(part_s=0.0),
    {"ask": [A]},
    FORGET,
    pace(part_s=60.0),
    {"ask": [A]},
    FORGET,
    pace(part_s=LIKE_COMPUTING / 2, good=4),
    {"ask": [A]},
    FORGET,
    pace(good=0),
    {"ask": [A]},
    FORGET,
    pace(part_s=LIKE_COMPUTING / 2),
    {"ask": [A, B]},
    FORGET,
    pace(part_s=LIKE_COMPUTING),
    {"abort": [A], "after": 4},
    # Takes the blocks of the one that was aborted.
    {"ask": [B]},
    {"ask": [A]},
    FORGET,
    pace(is_swapped=True),
    {"ask": [A]},
]


@pytest.mark.parametrize(
    "ways",
    [
        (),
        pytest.param(("second_runner",), marks=long_dose),
        pytest.param(("asynchronous", "second_runner"), marks=long_dose),
    ],
)
def test_answers_are_right_wherever_both_ends_meet(stage: Stage, ways: tuple[str, ...]) -> None:
    middle, repeated, first, last, half_way, none, both, after, again, swapped = stage.run(
        "-".join(["meet", *ways]),
        MEETINGS,
        *ways,
    )
    assert ("Async" in middle["scheduler"]) is ("asynchronous" in ways)
    whole = (len(A) - 1) // BLOCK * BLOCK
    ((computed, tokens),) = stage.check(middle, A)["jumps"]
    assert 2 * BLOCK < computed < tokens == whole
    assert not stage.check(repeated, A)["jumps"]
    ((computed, tokens),) = stage.check(first, A)["jumps"]
    assert computed < whole / 2
    assert not stage.check(last, A)["jumps"]
    ((computed, tokens),) = stage.check(half_way, A)["jumps"]
    assert tokens == whole
    assert computed > whole / 2
    assert not stage.check(none, A)["jumps"]
    assert none["begun"] > 0
    # Each one would compute with what the other one leaves of a step.
    assert not stage.check(both, A, B)["jumps"]
    stage.check(after, B)
    stage.check(again, A)
    # A control: the loaded blocks are really read.
    assert swapped["jumps"]
    assert swapped["logprobs"][0] != pytest.approx(stage.right[tuple(A)][1], abs=1e-3)


@long_dose
def test_what_a_step_has_not_loaded_is_computed_by_the_second_runner_too(stage: Stage) -> None:
    failed, loaded = stage.run(
        "in-step",
        [pace(in_step=True, good=0), {"ask": [A]}, FORGET, pace(in_step=True), {"ask": [A]}],
        "second_runner",
    )
    stage.check(failed, A)
    assert failed["counters"]["load_failed_blocks"] == len(A) // BLOCK
    stage.check(loaded, A)
    assert loaded["counters"]["step_loads"] == 2


@long_dose
def test_a_request_may_be_preempted_before_and_after_its_ends_meet(stage: Stage) -> None:
    """A second request with a higher priority takes its blocks."""
    loading, jumped = stage.run(
        "preempted",
        [
            pace(part_s=60.0),
            {"ask": [A, B], "apart": 3},
            FORGET,
            pace(part_s=LIKE_COMPUTING / 10),
            {"ask": [A, B], "apart": 3, "tokens": 100},
        ],
        scheduling_policy="priority",
        # Else the second one would wait until all of its blocks are free.
        scheduler_reserve_full_isl=False,
        long_prefill_token_threshold=OPTIONS["max_num_batched_tokens"] // 2,
        num_gpu_blocks_override=len(A) // BLOCK + len(B) // BLOCK // 2 + 5,
    )
    stage.check(loading, A, B)
    assert loading["begun"] > 0, "its back was under way"
    assert not loading["jumps"]
    once = loading["counters"]["vllm:num_preemptions"]
    assert once > 0
    stage.check(jumped, A, B)
    assert jumped["jumps"]
    assert jumped["counters"]["vllm:num_preemptions"] > once
