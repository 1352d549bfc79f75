"""The direct path with real vLLM on the CPU: every answer is the one that vLLM computes.

Tokens of a small model hide wrong bytes, so log probabilities are compared too.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.dose import long_dose
from tests.integration.vllm import direct_engine, tiny_model
from tests.integration.vllm.processes import Program
from tests.integration.vllm.test_engine import connector
from tests.served import serving

from dalsegno import profiles

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]
# Tokens of a block.
BLOCK = 32
EXTERNAL = "vllm:external_prefix_cache_hits"
NOISE = random.Random(1)
LONG, OTHER = ([NOISE.randrange(2, tiny_model.VOCABULARY) for _ in range(600)] for _ in range(2))
# A part of a block, at a block's end, and one token around it; a prompt that shares half of it.
PROMPTS = {
    "long": LONG,
    "at an end": LONG[: 8 * BLOCK],
    "one more": LONG[: 8 * BLOCK + 1],
    "one less": LONG[: 8 * BLOCK - 1],
    "half": [*LONG[:300], *OTHER[:200]],
    "other": OTHER,
}
ALL = list(PROMPTS.values())
SERVED = {"dram": "256MiB", "capacity": "1GiB"}
OPTIONS = {
    "block_size": BLOCK,
    "max_num_batched_tokens": 256,
    "max_num_seqs": 8,
    "num_gpu_blocks_override": 120,
    "enable_prefix_caching": True,
}


def environment(folder: Path) -> dict[str, str]:
    """Returns the variables of engines that run next to each other."""
    return {
        "XDG_CACHE_HOME": str(folder / "cache"),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }


class Stage:
    """A model, and engines that run one after the other, or next to each other.

    Attributes:
        right: For each prompt the tokens of its answer and their log probabilities.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = tiny_model.prepare(folder / "model")
        self.right = {
            tuple(prompt): tiny_model.answer(prompt, direct_engine.ANSWER_TOKENS) for prompt in ALL
        }

    def start(
        self, name: str, steps: list[dict[str, Any]], config: dict[str, Any] | None, **options: Any
    ) -> Program:
        """Starts an engine."""
        spec = {
            "model": str(self.model),
            "steps": steps,
            "kv_transfer_config": config,
            "options": {**OPTIONS, **options},
            "log_file": str(self.folder / f"{name}.log"),
        }
        failing = str(self.folder / "failing rank")
        return Program(direct_engine.run, spec, **environment(self.folder), FAIL_LOAD_OF=failing)

    def run(
        self, name: str, steps: list[dict[str, Any]], config: dict[str, Any] | None, **options: Any
    ) -> list[dict[str, Any]]:
        """Runs an engine to its end; returns its answers."""
        engine = self.start(name, steps, config, **options)
        records = list(engine.records())
        assert engine.wait() == 0, engine.said()
        return records

    def check(self, record: dict[str, Any], *prompts: list[int]) -> dict[str, float]:
        """Compares answers to those that were computed; returns the counters."""
        for number, prompt in enumerate(prompts):
            tokens, logprobs = self.right[tuple(prompt)]
            assert record["tokens"][number] == tokens, number
            assert record["logprobs"][number] == pytest.approx(logprobs, abs=1e-3)
        counters: dict[str, float] = record["counters"]
        return counters


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("direct"))


def direct(path: Path | str, **changes: Any) -> dict[str, Any]:
    """The flat configuration of the direct path."""
    policy = {"load_policy": "always", "keep_profile": False}
    given = {"cpu_bytes_to_use": "64MiB", "path_to_engine": "direct", **policy, **changes}
    return connector(Path(path), **given)


def one_by_one(prompts: list[list[int]]) -> list[dict[str, Any]]:
    """Asks prompts one after the other."""
    return [{"ask": [prompt]} for prompt in prompts]


def test_answers_are_right_from_the_pool_inside_steps(stage: Stage) -> None:
    """Cold, warm, partial hits, chunks, several at once, aborted after each step."""
    aborted = [{"abort": [LONG, OTHER], "after": steps} for steps in range(1, 6)]
    steps: list[dict[str, Any]] = [
        *one_by_one(ALL),
        {"forget": True},
        *one_by_one(ALL),
        {"forget": True},
        {"ask": ALL},
        *(step for one in aborted for step in ({"forget": True}, one)),
        {"forget": True},
        {"ask": [LONG, OTHER]},
    ]
    config = direct(stage.folder / "pool", max_step_load_s=60)
    records = stage.run("pool", steps, config)
    cold, warm, together, last = records[:6], records[6:12], records[12], records[13]
    for record, prompt in zip([*cold, *warm], [*ALL, *ALL], strict=True):
        stage.check(record, prompt)
    counters = stage.check(together, *ALL)
    assert counters["step_loads"] > 0
    assert counters.get("load_failed_blocks", 0) == 0
    # Each step that computes something calls both hooks of each layer.
    hooks = {"begin_step": 1, "wait_for_layer": tiny_model.LAYERS, "save_layer": tiny_model.LAYERS}
    assert len({counters[f"hooks:{name}"] / each for name, each in hooks.items()}) == 1
    # The store heard what each of them does.
    assert min(counters[f"hooks:{phase}"] for phase in ("prefill", "decode", "idle")) > 0
    # Every full block but that of the last token, and those that vLLM still had.
    before = cold[-1]["counters"][EXTERNAL]
    assert warm[0]["counters"][EXTERNAL] - before == len(LONG) // BLOCK * BLOCK
    stage.check(last, LONG, OTHER)


def test_a_new_engine_loads_from_disk_and_eight_users_load_a_document_once(stage: Stage) -> None:
    """The store is that of the test before."""
    config = direct(stage.folder / "pool", max_step_load_s=1e-6)
    steps: list[dict[str, Any]] = [{"ask": [LONG] * 8}, {"forget": True}, {"ask": [OTHER, LONG]}]
    eight, both = stage.run("disk", steps, config)
    counters = stage.check(eight, *[LONG] * 8)
    assert counters["loaded_blocks"] == len(LONG) // BLOCK
    # Those that came before the load had ended.
    assert counters["deferred_lookups"] > 0
    assert counters.get("step_loads", 0) == 0
    stage.check(both, OTHER, LONG)


@long_dose
def test_what_is_worth_it_is_loaded_and_costs_are_kept(stage: Stage, monkeypatch: Any) -> None:
    """By the default policy: answers are right, and the next engine knows the costs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(stage.folder / "cache"))
    own = {"load_policy": "auto", "keep_profile": True}
    config = direct(stage.folder / "auto", max_step_load_s=60, **own)
    steps: list[dict[str, Any]] = [*one_by_one(ALL), {"forget": True}, *one_by_one(ALL)]
    for name in ("auto", "again"):
        records = stage.run(name, steps, config)
        for record, prompt in zip([*records[:6], *records[6:]], [*ALL, *ALL], strict=True):
            stage.check(record, prompt)
        counters = records[-1]["counters"]
        assert counters["lookup_blocks"] > 0
        # Each block that was found is loaded or computed.
        assert counters.get("load_failed_blocks", 0) == 0
    (profile,) = (stage.folder / "cache" / "dalsegno" / "profiles").glob("*.json")
    known = profiles.read(profile)
    assert known["learned"]["compute"]["measured"] > len(ALL)


@long_dose
def test_two_ranks_share_a_server_with_one(stage: Stage) -> None:
    """Ranks of two processes; an engine of one rank next to it has blocks of its own."""
    place = stage.folder / "ranks"
    config = direct(f"unix:{place / 'serve' / 'socket'}", max_step_load_s=60)
    forget: dict[str, Any] = {"forget": True}
    with serving(place, SERVED) as server:
        steps: list[dict[str, Any]] = [*one_by_one(ALL), forget, {"ask": ALL}]
        # A load inside a step fails on one rank; then one rank has lost its blocks.
        steps += [forget, {"fail": 1}, {"ask": ALL}, forget, {"evict": 1}, {"ask": ALL}]
        records = stage.run("ranks", steps, config, tensor_parallel_size=2)
        *cold, warm, failed, evicted = records
        for record, prompt in zip(cold, ALL, strict=True):
            stage.check(record, prompt)
        of_warm, of_failed, of_evicted = (
            stage.check(record, *ALL) for record in (warm, failed, evicted)
        )
        assert of_warm["step_loads"] > 0
        assert of_warm.get("load_failed_blocks", 0) == 0
        assert of_failed["load_failed_blocks"] > 0
        assert of_evicted[EXTERNAL] == of_failed[EXTERNAL]
        alone = stage.run("one rank", [{"ask": [LONG]}], config)
        assert stage.check(alone[0], LONG).get(EXTERNAL, 0) == 0
        server.close()
    for segment in place.rglob("segment-*.log"):
        damage(segment)
    with serving(place, SERVED):
        (damaged,) = stage.run("damaged ranks", [{"ask": [LONG]}], config, tensor_parallel_size=2)
        assert stage.check(damaged, LONG)["load_failed_blocks"] > 0


@long_dose
def test_engines_share_a_server_that_is_killed(stage: Stage) -> None:
    with serving(stage.folder / "shared", SERVED) as server:
        config = direct(server.socket, max_step_load_s=60)
        # At the same time. Each one stores what the other one lacks, and loads what it has stored.
        both = [
            stage.start(name, [*one_by_one(prompts), {"forget": True}, {"ask": ALL}], config)
            for name, prompts in (("one", ALL), ("two", ALL[::-1]))
        ]
        for engine, prompts in zip(both, (ALL, ALL[::-1]), strict=True):
            *cold, warm = engine.records()
            for record, prompt in zip(cold, prompts, strict=True):
                stage.check(record, prompt)
            assert stage.check(warm, *ALL)["step_loads"] > 0
            assert engine.wait() == 0, engine.said()
        steps: list[dict[str, Any]] = [
            {"ask": [LONG]},
            {"pause": True},
            {"forget": True},
            {"ask": [LONG, OTHER]},
        ]
        engine = stage.start("three", steps, config)
        records = engine.records()
        warm = next(records)
        assert stage.check(warm, LONG)[EXTERNAL] == len(LONG) // BLOCK * BLOCK
        next(records)
        server.kill()
        engine.order()
        stage.check(next(records), LONG, OTHER)
        assert engine.wait() == 0, engine.said()


@long_dose
def test_preempted_requests_get_right_answers(stage: Stage) -> None:
    """More requests than vLLM has blocks for."""
    config = direct(stage.folder / "preempted", max_step_load_s=60)
    steps: list[dict[str, Any]] = [
        {"ask": ALL},
        {"forget": True},
        {"ask": ALL},
        {"forget": True},
        {"ask": ALL[::-1]},
    ]
    cold, warm, again = stage.run(
        "preempted", steps, config, num_gpu_blocks_override=30, max_model_len=768
    )
    stage.check(cold, *ALL)
    stage.check(warm, *ALL)
    counters = stage.check(again, *ALL[::-1])
    assert counters["vllm:num_preemptions"] > 0
    assert counters["step_loads"] > 0


@long_dose
def test_damaged_blocks_are_computed(stage: Stage) -> None:
    config = direct(stage.folder / "damaged", max_step_load_s=60)
    stage.run("whole", [{"ask": [LONG]}], config)
    for segment in (stage.folder / "damaged").rglob("segment-*.log"):
        damage(segment)
    (record,) = stage.run("damaged", [{"ask": [LONG]}], config)
    counters = stage.check(record, LONG)
    # They were read inside the step, and layers before the damage were computed from them.
    assert counters["step_loads"] == 1
    assert counters["load_failed_blocks"] > 0


def damage(segment: Path) -> None:
    """Changes bytes all over a file."""
    with segment.open("r+b") as file:
        for at in range(100_000, segment.stat().st_size, 100_000):
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 0xFF]))
