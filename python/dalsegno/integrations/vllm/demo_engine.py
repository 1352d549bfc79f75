"""Runs one real vLLM engine for the demonstration, in a process of its own.

`python -m dalsegno.integrations.vllm.demo_engine --spec JSON` starts vLLM on the CPU, asks a short
unrelated question to load code and memory, then asks the questions of the spec, each about the same
document. It prints one line of JSON per question on standard output, before that lines with the
single key `stage` that say what it does; everything vLLM says goes to the log file.

1. float32 and greedy: in bfloat16 even vLLM's own prefix cache changes the tokens.
2. One process is one engine (no forked engine core), so killing the process kills everything.
3. vLLM reads its environment when it is imported: the variables are set before that.
4. A failure is one line of JSON with the key `error`, and the exit status 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from dalsegno.demo import primer

# Read by vLLM and its libraries at import. The hub is never asked: the model is a local folder.
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

# Left for the question and the chat template when a long document is cut.
QUESTION_TOKENS = 128

STORE_METRICS = "vllm:kv_offload_dalsegno_"

# Counted per source at admission; "external" means any tier behind the engine's own prefix cache.
LOCAL_HITS = "vllm:prefix_cache_hits"
EXTERNAL_HITS = "vllm:external_prefix_cache_hits"


@dataclass(frozen=True)
class EngineSpec:
    """What one engine process shall do.

    Attributes:
        model: Folder of the model.
        questions: Asked about the document, in this order.
        kv_transfer_config: vLLM's connector configuration; None runs without a connector.
        log_file: Where vLLM's output goes.
        document: File whose text the questions are about; the built-in primer if empty.
        max_tokens: Tokens of an answer, generated whether or not the model would stop earlier.
        context_tokens: Prompt and answer together at most.
        settle_s: How long the engine goes on stepping after the last answer, so that what it stores
            in the background is finished; it stops earlier when nothing is pending.
        hold: Whether to wait after the last answer until standard input ends, to be killed.
        options: Further arguments of vLLM's `LLM`, for tests.
    """

    model: str
    questions: tuple[str, ...]
    kv_transfer_config: dict[str, Any] | None = None
    log_file: str = os.devnull
    document: str = ""
    max_tokens: int = 32
    context_tokens: int = 7680
    settle_s: float = 10.0
    hold: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> EngineSpec:
        """Reads a spec from JSON.

        Raises:
            ValueError: A key is unknown or missing, or there is no question.
        """
        values = json.loads(text)
        known = {item.name for item in dataclasses.fields(cls)}
        if unknown := sorted(values.keys() - known):
            raise ValueError(f"unknown keys in the engine's spec: {', '.join(unknown)}")
        if missing := sorted({"model", "questions"} - values.keys()):
            raise ValueError(f"missing keys in the engine's spec: {', '.join(missing)}")
        if not values["questions"]:
            raise ValueError("the engine's spec holds no question")
        return cls(**{**values, "questions": tuple(values["questions"])})


@dataclass(frozen=True)
class Answer:
    """What the engine said and what it cost.

    Attributes:
        question: The question.
        text: The answer, up to where the model would have stopped.
        token_ids: All tokens generated; equal prompts give equal tokens.
        prompt_tokens: Length of the prompt.
        cached_tokens: Prompt tokens that were not computed.
        local_tokens: Of these, found in the engine's own memory.
        external_tokens: Of these, brought in by a connector.
        ttft_s: Seconds from the call to the first token, waiting and loading included.
        total_s: Seconds from the call to the last token.
        start_s: Seconds that the engine took to start, before any question.
        peak_rss_bytes: Largest resident size of the process so far.
        document_tokens: Length of the document as it was given to the model.
        document_cut: Whether the document was longer than the context allows.
        counters: vLLM's counters of the store by name without prefix, summed over their labels,
            after what was stored in the background.
    """

    question: str
    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    local_tokens: int
    external_tokens: int
    ttft_s: float
    total_s: float
    start_s: float
    peak_rss_bytes: int
    document_tokens: int = 0
    document_cut: bool = False
    counters: dict[str, float] = field(default_factory=dict)


def take_stdout(log_file: str) -> TextIO:
    """Sends both output descriptors to the log file and returns the original standard output.

    vLLM and the libraries below it write to the descriptors themselves, so replacing `sys.stdout`
    would not do.
    """
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    return results


class Engine:
    """A vLLM engine on the CPU that answers questions about one document."""

    def __init__(self, spec: EngineSpec) -> None:
        """Starts vLLM and warms it up.

        Args:
            spec: What the engine shall do; its questions are not asked yet.
        """
        started = time.perf_counter()
        os.environ.update(ENVIRONMENT)
        from vllm import LLM, SamplingParams

        self._spec = spec
        self._sampling = SamplingParams(
            temperature=0.0, max_tokens=spec.max_tokens, ignore_eos=True
        )
        arguments: dict[str, Any] = {
            "model": spec.model,
            "dtype": "float32",
            "seed": 0,
            "enforce_eager": True,
            "enable_prefix_caching": True,
            "max_model_len": spec.context_tokens,
            "max_num_seqs": 4,
            "disable_log_stats": False,
            "kv_transfer_config": spec.kv_transfer_config,
            **spec.options,
        }
        self._llm = LLM(**arguments)
        self._tokenizer = self._llm.get_tokenizer()
        self._text, self._text_tokens, self._text_cut = self._document()
        self._chat([{"role": "user", "content": primer.WARM_UP}])
        self._start_s = time.perf_counter() - started

    def _chat(self, messages: list[dict[str, str]]) -> Any:
        """Returns vLLM's output for one conversation."""
        return self._llm.chat([messages], self._sampling, use_tqdm=False)[0]

    def _document(self) -> tuple[str, int, bool]:
        """Returns the document, its tokens, and whether it had to be cut to fit the context."""
        path = self._spec.document
        text = Path(path).read_text(encoding="utf-8", errors="replace") if path else ""
        tokens = self._tokenizer.encode(text or primer.document())
        room = self._spec.context_tokens - self._spec.max_tokens - QUESTION_TOKENS
        if not path or len(tokens) <= room:
            return text, len(tokens), False
        return self._tokenizer.decode(tokens[:room]), room, True

    def _said(self, token_ids: Sequence[int]) -> str:
        """Returns the text of an answer, up to where the model would have stopped."""
        ids = list(token_ids)
        end = ids.index(stop) if (stop := self._tokenizer.eos_token_id) in ids else len(ids)
        return str(self._tokenizer.decode(ids[:end], skip_special_tokens=True)).strip()

    def _counter(self, name: str) -> int:
        """Returns the value of one of vLLM's counters; 0 for one that it does not have."""
        return sum(int(metric.value) for metric in self._llm.get_metrics() if metric.name == name)

    def _counters(self) -> dict[str, float]:
        """Returns the counters of the store, each summed over its labels."""
        totals: dict[str, float] = {}
        for metric in self._llm.get_metrics():
            if metric.name.startswith(STORE_METRICS) and hasattr(metric, "value"):
                name = metric.name.removeprefix(STORE_METRICS)
                totals[name] = totals.get(name, 0) + metric.value
        return totals

    def ask(self, question: str) -> Answer:
        """Asks one question about the document."""
        before = {name: self._counter(name) for name in (LOCAL_HITS, EXTERNAL_HITS)}
        started = time.perf_counter()
        output = self._chat(primer.messages(question, self._text))
        total_s = time.perf_counter() - started
        completion = output.outputs[0]
        self._settle()
        return Answer(
            question=question,
            text=self._said(completion.token_ids),
            token_ids=tuple(completion.token_ids),
            prompt_tokens=len(output.prompt_token_ids),
            cached_tokens=output.num_cached_tokens or 0,
            local_tokens=self._counter(LOCAL_HITS) - before[LOCAL_HITS],
            external_tokens=self._counter(EXTERNAL_HITS) - before[EXTERNAL_HITS],
            ttft_s=output.metrics.first_token_latency,
            total_s=total_s,
            start_s=self._start_s,
            peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            document_tokens=self._text_tokens,
            document_cut=self._text_cut,
            counters=self._counters(),
        )

    def _settle(self) -> None:
        """Steps the engine until its connector has nothing pending, at most `settle_s` seconds."""
        core = self._llm.llm_engine.engine_core.engine_core
        deadline = time.perf_counter() + self._spec.settle_s
        while core.scheduler.has_requests() and time.perf_counter() < deadline:
            self._llm.llm_engine.step()
            time.sleep(0.002)

    def close(self) -> None:
        """Shuts the engine down in good order."""
        self._llm.llm_engine.engine_core.shutdown()


def serve(spec: EngineSpec, results: TextIO) -> None:
    """Answers the questions of a spec, one line of JSON each."""
    Path(spec.log_file).parent.mkdir(parents=True, exist_ok=True)

    def stage(name: str) -> None:
        print(json.dumps({"stage": name}), file=results, flush=True)

    stage("starting vLLM")
    engine = Engine(spec)
    for question in spec.questions:
        stage("reading and answering")
        answer = engine.ask(question)
        print(json.dumps(dataclasses.asdict(answer)), file=results, flush=True)
    if spec.hold:
        sys.stdin.read()
    engine.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="dalsegno.integrations.vllm.demo_engine", description="Runs one vLLM engine."
    )
    parser.add_argument("--spec", required=True, help="an EngineSpec as JSON")
    options = parser.parse_args(arguments)
    try:
        spec = EngineSpec.parse(options.spec)
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    results = take_stdout(spec.log_file)
    try:
        serve(spec, results)
    except Exception as error:  # noqa: BLE001 - reported on the result line
        traceback.print_exc()
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=results, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
