"""One vLLM engine for `dalsegno bench decode`, in a process of its own.

``python -m dalsegno_bench.vllm.decode_program SPEC`` starts to decode with each line on standard
input and stops with the next one; then it answers with a line of JSON on standard output: the
seconds of the steps. All other output goes to standard error.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from io import RawIOBase
from typing import Any

from dalsegno.integrations.vllm import demo_engine

__all__ = ["MOST_TOKENS"]

# Of a prompt and its answer. Then the next request begins.
MOST_TOKENS = 2048
PROMPT_TOKENS = 64
SETTLE_S = 20.0


def main() -> None:
    """Runs the engine of a spec: `model` and `kv_transfer_config`."""
    spec = json.loads(sys.argv[1])
    # vLLM and the libraries below it write to the descriptor itself.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        os.environ.update(demo_engine.ENVIRONMENT)
        from vllm import LLM

        llm = LLM(
            model=spec["model"],
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            disable_log_stats=False,
            max_model_len=MOST_TOKENS,
            max_num_seqs=2,
            block_size=32,
            kv_transfer_config=spec["kv_transfer_config"],
        )
        # Without a buffer, so that `select` sees every line.
        with os.fdopen(os.dup(0), "rb", buffering=0) as orders:
            print("{}", file=answers, flush=True)
            while orders.readline():
                print(json.dumps(decode(llm, orders)), file=answers, flush=True)
        llm.llm_engine.engine_core.shutdown()


def decode(llm: Any, orders: RawIOBase) -> list[float]:
    """Decodes until there is an order; returns the seconds of the steps that decode only."""
    from vllm import SamplingParams

    tokens = MOST_TOKENS - PROMPT_TOKENS - 1
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, temperature=0)
    engine, steps = llm.llm_engine, []
    while True:
        number = str(time.monotonic_ns())
        engine.add_request(number, {"prompt_token_ids": list(range(PROMPT_TOKENS))}, sampling)
        # Its prompt.
        engine.step()
        while engine.has_unfinished_requests():
            began = time.perf_counter()
            engine.step()
            steps.append(time.perf_counter() - began)
            if select.select([orders], [], [], 0)[0]:
                orders.readline()
                engine.abort_request([number])
                demo_engine.settle(llm, SETTLE_S)
                return steps


if __name__ == "__main__":
    main()
