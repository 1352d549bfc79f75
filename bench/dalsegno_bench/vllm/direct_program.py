"""One vLLM engine for `dalsegno bench direct`, in a process of its own.

``python -m dalsegno_bench.vllm.direct_program SPEC`` answers each line of JSON on standard input
with a line on standard output. All other output goes to standard error.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

from dalsegno.integrations.vllm import demo_engine

SETTLE_S = 20.0


def main() -> None:
    """Runs the engine of a spec.

    The spec has `model`, `kv_transfer_config`, and `reads`: whether steps may read blocks. An order
    has the token ids of a `prompt`, and `forget`: whether vLLM forgets what it has before that.
    """
    spec = json.loads(sys.argv[1])
    # vLLM and the libraries below it write to the descriptor itself.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        os.environ.update(demo_engine.ENVIRONMENT)
        engine = _Engine(spec)
        print("{}", file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(engine.ask(**json.loads(line))), file=answers, flush=True)
        engine.close()


class _Engine:
    """An engine with a model of random weights."""

    def __init__(self, spec: dict[str, Any]) -> None:
        from vllm import LLM

        if not spec["reads"]:
            _forbid_reads()
        self._step_loads = _time_step_loads()
        self._llm = LLM(
            model=spec["model"],
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            disable_log_stats=False,
            max_num_seqs=2,
            block_size=32,
            kv_transfer_config=spec["kv_transfer_config"],
        )

    def ask(self, prompt: list[int], *, forget: bool) -> dict[str, float]:
        """Computes one token after a prompt; returns what that cost."""
        from vllm import SamplingParams

        if forget:
            assert self._llm.reset_prefix_cache()
        sampling = SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False, temperature=0)
        before, cpu_s = demo_engine.counters_of(self._llm), _cpu_s()
        self._step_loads.update(load_s=0.0, waited_s=0.0)
        asked = {"prompt_token_ids": prompt}
        output = self._llm.generate([asked], sampling, use_tqdm=False)[0]
        spent_s = _cpu_s() - cpu_s
        demo_engine.settle(self._llm, SETTLE_S)
        after = demo_engine.counters_of(self._llm)
        counted = {}
        for name in ("loaded_bytes", "step_loads"):
            key = demo_engine.STORE_METRICS + name
            counted[name] = after.get(key, 0) - before.get(key, 0)
        spent = {"ttft_s": output.metrics.first_token_latency, "cpu_s": spent_s}
        return {**spent, **counted, **self._step_loads}

    def close(self) -> None:
        """Ends it."""
        self._llm.llm_engine.engine_core.shutdown()


def _forbid_reads() -> None:
    """Lets requests wait for blocks that are not in the pool."""
    from dalsegno.integrations.vllm.direct.space import RankNamespaces

    # What the constructor sets is not kept.
    RankNamespaces.most_by_layer = property(  # type: ignore[assignment]
        lambda _: 0, lambda *_: None
    )


def _time_step_loads() -> dict[str, float]:
    """Returns how long loads inside steps take, and how long steps wait for them; it grows."""
    from dalsegno.integrations.vllm.direct.worker import DirectWorker

    spent = {"load_s": 0.0, "waited_s": 0.0}
    usual = DirectWorker.end_step

    def end_step(self: DirectWorker, *, is_aborted: bool) -> None:
        loads = list(self._step_loads)
        usual(self, is_aborted=is_aborted)
        if loads:
            spent["load_s"] += sum((one.ended or one.started) - one.started for one in loads)
            spent["waited_s"] += self._waited_s

    DirectWorker.end_step = end_step  # type: ignore[method-assign]
    return spent


def _cpu_s() -> float:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


if __name__ == "__main__":
    main()
