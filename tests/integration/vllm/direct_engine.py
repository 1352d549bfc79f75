"""An engine that follows a list of steps (`processes.Program`)."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dalsegno.integrations.common.phases import Phases
from dalsegno.integrations.vllm import demo_engine

ANSWER_TOKENS = 6
SETTLE_S = 20.0


def run(spec: dict[str, Any], orders: Connection, answers: Connection) -> None:
    """Runs the engine.

    Args:
        spec: `model`; `kv_transfer_config` and `options` of the engine if given; and `steps`. A
            step is one of: `{"ask": prompts}`, all at the same time; `{"forget": true}`: vLLM
            forgets what it has in its own cache; `{"abort": prompts, "after": steps}`: the requests
            end before their answers; `{"fail": rank}`: the next load of a rank fails;
            `{"evict": rank}`: the store loses the blocks of a rank; `{"pause": true}`: waits for an
            order.
        orders: Ends pauses.
        answers: Takes one record for each `ask` and each `pause`.
    """
    from vllm import LLM

    hooks = count_hooks()
    llm = LLM(
        model=spec["model"],
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        worker_extension_cls=f"{__name__}.{FailingWorker.__name__}",
        disable_log_stats=False,
        kv_transfer_config=spec.get("kv_transfer_config"),
        **{"max_model_len": 2048, **spec.get("options", {})},
    )
    engine = Engine(llm, hooks)
    for step in spec["steps"]:
        if "ask" in step:
            answers.send_bytes(json.dumps(engine.ask(step["ask"])).encode())
        elif "abort" in step:
            engine.abort(step["abort"], step["after"])
        elif "forget" in step:
            assert llm.reset_prefix_cache()
        elif "fail" in step:
            Path(os.environ["FAIL_LOAD_OF"]).write_text(str(step["fail"]))
        elif "evict" in step:
            engine.evict(step["evict"])
        else:
            answers.send_bytes(b"{}")
            orders.recv_bytes()
    llm.llm_engine.engine_core.shutdown()


def count_hooks() -> Counter[str]:
    """Counts what vLLM calls in this process: steps that compute something, and their hooks."""
    from dalsegno.integrations.vllm.direct.worker import DirectWorker

    counts = Counter[str]()

    def counted(name: str, weight: Callable[..., int]) -> None:
        usual = getattr(DirectWorker, name)

        def call(self: Any, *arguments: Any) -> Any:
            counts[f"hooks:{name}"] += weight(*arguments)
            return usual(self, *arguments)

        setattr(DirectWorker, name, call)

    usual = Phases.begin_step

    def begin_step(phases: Phases, store: Any, work: Any, **options: bool) -> None:
        usual(phases, store, work, **options)
        counts[f"hooks:{phases._said}"] += store is not None

    Phases.begin_step = begin_step  # type: ignore[method-assign, assignment]
    counted("begin_step", lambda plan: int(plan.work is not None))
    counted("wait_for_layer", lambda _: 1)
    counted("save_layer", lambda _: 1)
    return counts


def fail_loads(file: Path) -> None:
    """Lets a load of this process fail if its rank is in the file, which is removed."""
    from dalsegno.integrations.vllm.direct.worker import DirectWorker

    usual = DirectWorker._begin_load

    def begin(self: DirectWorker, job: Any) -> Any:
        if file.is_file() and file.read_text() == str(self._space._rank):
            file.unlink()
            raise RuntimeError(f"a planted failure of load {job.number}")
        return usual(self, job)

    DirectWorker._begin_load = begin  # type: ignore[method-assign]


class FailingWorker:
    """What vLLM adds to each of its workers: a file that names a rank lets its next load fail.

    No call of vLLM could say so: Dalsegno would believe that it changes the weights.
    """


if "FAIL_LOAD_OF" in os.environ:
    # A worker imports this module for the class above.
    fail_loads(Path(os.environ["FAIL_LOAD_OF"]))


class Engine:
    """An engine, and what it counts."""

    def __init__(self, llm: Any, hooks: Counter[str]) -> None:
        self._llm, self._engine, self._hooks = llm, llm.llm_engine, hooks
        self._aborted = 0

    def ask(self, prompts: list[list[int]], answer_tokens: int = ANSWER_TOKENS) -> dict[str, Any]:
        """Asks at the same time; returns tokens, their log probabilities, and counters."""
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._llm.generate(asked, self._sampling(answer_tokens), use_tqdm=False)
        return self._record(outputs)

    def ask_apart(
        self, prompts: list[list[int]], steps: int, answer_tokens: int = ANSWER_TOKENS
    ) -> dict[str, Any]:
        """As `ask`, each so many steps after the one before it, and with a higher priority."""
        sampling, ended = self._sampling(answer_tokens), dict[str, Any]()

        def step() -> None:
            ended.update({one.request_id: one for one in self._engine.step() if one.finished})

        for number, prompt in enumerate(prompts):
            asked = {"prompt_token_ids": prompt}
            self._engine.add_request(f"apart-{number}", asked, sampling, priority=-number)
            for _ in range(steps):
                step()
        while self._engine.has_unfinished_requests():
            step()
        return self._record([ended[name] for name in sorted(ended)])

    @staticmethod
    def _sampling(answer_tokens: int) -> Any:
        from vllm import SamplingParams

        return SamplingParams(
            temperature=0.0, max_tokens=answer_tokens, ignore_eos=True, logprobs=0, detokenize=False
        )

    def _record(self, outputs: list[Any]) -> dict[str, Any]:
        demo_engine.settle(self._llm, SETTLE_S)
        return {
            "tokens": [list(one.outputs[0].token_ids) for one in outputs],
            "logprobs": [
                [
                    step[token].logprob
                    for token, step in zip(got.token_ids, got.logprobs, strict=True)
                ]
                for got in (one.outputs[0] for one in outputs)
            ],
            "counters": self._counters(),
        }

    def abort(self, prompts: list[list[int]], after: int) -> None:
        """Begins requests, and ends them after so many steps."""
        from vllm import SamplingParams

        sampling = SamplingParams(max_tokens=50, ignore_eos=True, detokenize=False)
        names = []
        for prompt in prompts:
            self._aborted += 1
            names.append(f"aborted-{self._aborted}")
            self._engine.add_request(names[-1], {"prompt_token_ids": prompt}, sampling)
        for _ in range(after):
            self._engine.step()
        self._engine.abort_request(names)
        demo_engine.settle(self._llm, SETTLE_S)

    def evict(self, rank: int) -> None:
        """Removes the blocks of a rank from the store."""
        connector = self._engine.engine_core.engine_core.scheduler.connector
        connector._schedules._store.ranks[rank].remove()

    def _counters(self) -> dict[str, float]:
        """vLLM's counters of external hits and preemptions, and ours, summed over labels."""
        known = (demo_engine.STORE_METRICS, demo_engine.EXTERNAL_HITS, "vllm:num_preemptions")
        counters = {
            name.removeprefix(demo_engine.STORE_METRICS): value
            for name, value in demo_engine.counters_of(self._llm).items()
            if name.startswith(known)
        }
        return counters | self._hooks
