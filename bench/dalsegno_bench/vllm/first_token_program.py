"""One vLLM engine for `dalsegno bench first-token`, in a process of its own.

``python -m dalsegno_bench.vllm.first_token_program SPEC`` answers each line of JSON on standard
input with a line on standard output. All other output goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from dalsegno.integrations.vllm import demo_engine

SETTLE_S = 60.0
# Tokens that a step computes at most.
CHUNK = 2048
COUNTED = (
    "loaded_bytes",
    "load_failed_blocks",
    "load_declined_blocks",
    "step_loads",
    "stored_blocks",
    "store_failed_blocks",
)


def main() -> None:
    """Runs the engine of a spec: `model`, `block_tokens` and `kv_transfer_config`.

    An order has a list of `prompts`, each a list of token ids, and `answer_tokens`. An order
    without prompts asks for the cost model.
    """
    spec = json.loads(sys.argv[1])
    # vLLM and the libraries below it write to the descriptor itself.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        os.environ.update(demo_engine.ENVIRONMENT)
        engine = _Engine(spec)
        print("{}", file=answers, flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            answer = engine.ask(**order) if order["prompts"] else engine.explain()
            print(json.dumps(answer), file=answers, flush=True)
        engine.close()


class _Recorded:
    """What a `LoadDecider` decides and learns.

    Attributes:
        decider: The decider; None until it has decided.
        choices: The predictions of each choice since the last order.
        loads: Tier, bytes, predicted seconds and measured seconds of each load.
        reads: The same of each read for which nobody waited.
        steps: Predicted and measured seconds of each step.
        meetings: Of each request whose both ends have met, the blocks that it computed until then,
            as predicted and really, and those that it loaded.
    """

    def __init__(self) -> None:
        self.decider: Any = None
        self.choices: list[dict[str, Any]] = []
        self.loads: list[list[Any]] = []
        self.reads: list[list[Any]] = []
        self.steps: list[list[float]] = []
        self.meetings: list[list[float]] = []

    def begin(self) -> None:
        """Forgets what belongs to earlier orders."""
        self.choices, self.loads, self.reads, self.steps, self.meetings = [], [], [], [], []

    def follow(self) -> None:
        """Records what deciders do that are made from now on."""
        from dalsegno.integrations.common.deciding import LoadDecider
        from dalsegno.integrations.vllm import costs
        from dalsegno.integrations.vllm.direct.both_ends import BothEnds, Jump

        recorded = self

        class Recording(LoadDecider):
            def _choose(self, wish: Any, *, load_all: bool) -> Any:
                recorded.decider = self
                choice = super()._choose(wish, load_all=load_all)
                recorded.choices.append(_described(choice, wish))
                return choice

            def end_load(self, number: int, seconds: float, **how: bool) -> None:
                running = self._running.loads.get(number)
                for tier, size in running.sizes.items() if running else ():
                    recorded.loads.append(self._measured(tier, size, seconds))
                super().end_load(number, seconds, **how)

            def note_read(self, tier: str, size: int, seconds: float, **how: bool) -> Any:
                recorded.reads.append(self._measured(tier, size, seconds))
                return super().note_read(tier, size, seconds, **how)

            def _measured(self, tier: str, size: int, seconds: float) -> list[Any]:
                return [tier, size, self.model.load_s(tier, size), seconds]

            def note_step(self, step: Any) -> None:
                work = step.work
                expected_s = self.model.request_s(work.read - work.tokens, work.read, CHUNK)
                recorded.steps.append([expected_s, step.seconds])
                super().note_step(step)

        jumps = BothEnds.jumps

        def noted(self: BothEnds) -> list[Jump]:
            found = jumps(self)
            for one in found:
                recorded.meetings.append([one.predicted, one.front, one.end - one.first])
            return found

        costs.LoadDecider = Recording  # type: ignore[attr-defined]
        BothEnds.jumps = noted  # type: ignore[method-assign]


def _described(choice: Any, wish: Any) -> dict[str, Any]:
    """Returns a choice with its predictions, in seconds."""
    return {
        "blocks": choice.blocks,
        "of": wish.blocks,
        "tiers": sorted({tier for tier, _ in wish.runs}),
        "in_step": choice.overlapped,
        "front": choice.front,
        "predicted_s": choice.first_token_s,
        "computed_s": choice.computed_s,
        "loaded_s": choice.loaded_s,
    }


class _Engine:
    """An engine."""

    def __init__(self, spec: dict[str, Any]) -> None:
        from vllm import LLM

        self._recorded = _Recorded()
        self._recorded.follow()
        self._llm = LLM(
            model=spec["model"],
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            disable_log_stats=False,
            max_num_seqs=4,
            max_num_batched_tokens=CHUNK,
            block_size=spec["block_tokens"],
            kv_transfer_config=spec["kv_transfer_config"],
        )

    def ask(self, prompts: list[list[int]], answer_tokens: int) -> dict[str, Any]:
        """Answers prompts that arrive together; vLLM has forgotten its own blocks.

        Args:
            prompts: Token ids of each.
            answer_tokens: Tokens to compute for each.

        Returns:
            Seconds to the first tokens, the answers, counters, and what was decided.
        """
        from vllm import SamplingParams

        assert self._llm.reset_prefix_cache()
        sampling = SamplingParams(
            max_tokens=answer_tokens, ignore_eos=True, detokenize=False, temperature=0
        )
        self._recorded.begin()
        before = demo_engine.counters_of(self._llm)
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._llm.generate(asked, sampling, use_tqdm=False)
        demo_engine.settle(self._llm, SETTLE_S)
        after = demo_engine.counters_of(self._llm)
        keys = {name: demo_engine.STORE_METRICS + name for name in COUNTED}
        return {
            "first_token_s": [one.metrics.first_token_latency for one in outputs],
            "answers": [list(one.outputs[0].token_ids) for one in outputs],
            **{name: after.get(key, 0) - before.get(key, 0) for name, key in keys.items()},
            "choices": self._recorded.choices,
            "loads": self._recorded.loads,
            "reads": self._recorded.reads,
            "steps": self._recorded.steps,
            "meetings": self._recorded.meetings,
        }

    def explain(self) -> dict[str, Any]:
        """Returns what the cost model has learned; nothing before a decision."""
        decider = self._recorded.decider
        return {} if decider is None else dict(decider.model.explain())

    def close(self) -> None:
        """Ends it."""
        self._llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
