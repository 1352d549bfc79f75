"""Runs one vLLM engine for the demo, in a process of its own.

``python -m dalsegno.integrations.vllm.demo_engine SPEC`` answers the question of the JSON in SPEC
(see :class:`Engine` and :func:`main`) with one line of JSON on standard output. Then it waits for
the end of its standard input. All other output goes to standard error.

1. float32 and greedy: in bfloat16 even vLLM's own prefix cache changes the tokens.
2. One process is one engine (no forked engine core), so killing the process kills everything.
3. vLLM reads its environment when it is imported: the variables are set before that.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from dalsegno.demo import primer

# Read by vLLM and its libraries at import. The model is a local folder, so the hub is never used.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "TOKENIZERS_PARALLELISM": "false",
}
CONTEXT_TOKENS = 7680
ANSWER_TOKENS = 32
# Left for the question and the chat template when a long text is cut.
QUESTION_TOKENS = 128
# Loads code and memory; shares no block with the text.
WARM_UP = "Name three colours."
# How long blocks may take that are stored in the background after an answer.
SETTLE_S = 10.0
# vLLM's counter of tokens that were loaded from any tier behind its own prefix cache.
EXTERNAL_HITS = "vllm:external_prefix_cache_hits"
STORE_METRICS = "vllm:kv_offload_dalsegno_"


class Engine:
    """A vLLM engine on the CPU that answers questions about one text.

    Args:
        model: The model's folder.
        text: What the questions are about; the primer if empty. It is cut to fit the context.
        kv_transfer_config: vLLM's connector configuration; ``None`` runs without a connector.
        options: More arguments of vLLM's ``LLM``.
    """

    def __init__(
        self, model: str, text: str, kv_transfer_config: dict[str, Any] | None, **options: Any
    ) -> None:
        """Starts vLLM and warms it up."""
        os.environ.update(ENVIRONMENT)
        from vllm import LLM

        arguments: dict[str, Any] = {
            "model": model,
            "dtype": "float32",
            "seed": 0,
            "enforce_eager": True,
            "enable_prefix_caching": True,
            "max_model_len": CONTEXT_TOKENS,
            "max_num_seqs": 4,
            "disable_log_stats": False,
            "kv_transfer_config": kv_transfer_config,
            **options,
        }
        self.llm = LLM(**arguments)
        self._tokenizer = self.llm.get_tokenizer()
        tokens = self._tokenizer.encode(text or primer.document())
        most = arguments["max_model_len"] - ANSWER_TOKENS - QUESTION_TOKENS
        self._is_cut = bool(text) and len(tokens) > most
        self._text = self._tokenizer.decode(tokens[:most]) if self._is_cut else text
        self._text_tokens = most if self._is_cut else len(tokens)
        self._chat(WARM_UP, ANSWER_TOKENS)

    def ask(self, question: str, answer_tokens: int = ANSWER_TOKENS) -> dict[str, Any]:
        """Answers a question with so many tokens; returns the answer and what it cost."""
        before = counters_of(self.llm).get(EXTERNAL_HITS, 0)
        output = self._chat(primer.prompt(question, self._text), answer_tokens)
        settle(self.llm)
        counters = counters_of(self.llm)
        token_ids = list(output.outputs[0].token_ids)
        # Where the model would have stopped.
        stop = self._tokenizer.eos_token_id
        said = token_ids[: token_ids.index(stop)] if stop in token_ids else token_ids
        return {
            "text": self._tokenizer.decode(said, skip_special_tokens=True).strip(),
            "token_ids": token_ids,
            "prompt_tokens": len(output.prompt_token_ids),
            "external_tokens": int(counters.get(EXTERNAL_HITS, 0) - before),
            "cached_tokens": output.num_cached_tokens or 0,
            "ttft_s": output.metrics.first_token_latency,
            "document_tokens": self._text_tokens,
            "document_cut": self._is_cut,
            "counters": {
                name.removeprefix(STORE_METRICS): value
                for name, value in counters.items()
                if name.startswith(STORE_METRICS)
            },
        }

    def close(self) -> None:
        """Shuts the engine down."""
        self.llm.llm_engine.engine_core.shutdown()

    def _chat(self, content: str, answer_tokens: int) -> Any:
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0.0, max_tokens=answer_tokens, ignore_eos=True)
        message = {"role": "user", "content": content}
        return self.llm.chat([[message]], sampling, use_tqdm=False)[0]


def counters_of(llm: Any) -> dict[str, float]:
    """Returns the counters of a vLLM `LLM` by name, each summed over its labels."""
    totals: dict[str, float] = {}
    for metric in llm.get_metrics():
        if hasattr(metric, "value"):
            totals[metric.name] = totals.get(metric.name, 0) + metric.value
    return totals


def settle(llm: Any, within_s: float = SETTLE_S) -> None:
    """Steps a vLLM `LLM` until its connector has nothing in flight, if it runs in this process."""
    core = getattr(llm.llm_engine.engine_core, "engine_core", None)
    deadline = time.monotonic() + within_s
    while core is not None and core.scheduler.has_requests() and time.monotonic() < deadline:
        llm.llm_engine.step()
        time.sleep(0.002)


def main() -> None:
    """Runs the engine of a spec: the arguments of :class:`Engine`, and ``question``."""
    spec = json.loads(sys.argv[1])
    question = spec.pop("question")
    # vLLM and the libraries below it write to the descriptor itself.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        engine = Engine(**spec)
        print(json.dumps(engine.ask(question)), file=answers, flush=True)
        sys.stdin.read()
        engine.close()


if __name__ == "__main__":
    main()
