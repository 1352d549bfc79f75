"""One real vLLM engine in a process of its own, which follows orders.

    python engine_process.py SPEC

It reads one order a line from standard input, JSON with `do` and arguments, and writes one line of
JSON for each to standard output. The first line, without an order, says that the engine has
started. All other output goes to standard error.

1. The engine runs in this process (`VLLM_ENABLE_V1_MULTIPROCESSING=0`), so killing the process ends
   everything, and the order of its steps is that of this program.
2. The weights are random, and the same in each process (`engine_hooks.register_weights`).
3. Times are seconds, from before the request is added to the step that returns the first token.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu import engine_hooks
from gpu.prompts import prompt

ANSWER_TOKENS = 8
# How many candidates of each token of an answer are recorded.
CANDIDATES = 5
SETTLE_S = 60.0
STORE_METRICS = "vllm:kv_offload_dalsegno_"
EXTERNAL_HITS, GPU_HITS = "vllm:external_prefix_cache_hits", "vllm:prefix_cache_hits"


class Engine:
    """An engine, and the orders that it can follow: its methods whose names begin with `do_`."""

    def __init__(self, spec: dict[str, Any]) -> None:
        """Starts vLLM.

        Args:
            spec: `options` of vLLM's `LLM`, and `kv_transfer_config` or None.
        """
        started = time.perf_counter()
        from vllm import LLM

        engine_hooks.register_weights()
        if os.environ.get(engine_hooks.ALLOW_JUMPS):
            engine_hooks.allow_jumps()
        self._loads = engine_hooks.record_loads()
        self._llm = LLM(**spec["options"], kv_transfer_config=spec.get("kv_transfer_config"))
        self._engine: Any = self._llm.llm_engine
        self._core: Any = self._engine.engine_core.engine_core
        self._vocabulary = self._core.vllm_config.model_config.get_vocab_size()
        self._asked = 0
        self.start_s = time.perf_counter() - started

    def do_ask(self, n: int, seed: int, tokens: int = ANSWER_TOKENS) -> dict[str, Any]:
        """Asks one prompt, and waits for the whole answer.

        Args:
            n: Tokens of the prompt.
            seed: Decides which tokens.
            tokens: Tokens of the answer.

        Returns:
            `ttft_s`; `tokens` of the answer; `top`: for each its candidates with their log
            probabilities; `external` and `in_gpu`: prompt tokens that were hits; `digest` and
            `sample` of the KV cache; `loads` that ended meanwhile.
        """
        before, text = self._counters(), prompt(n, seed, self._vocabulary)
        self._loads.clear()
        started = time.perf_counter()
        name = self._add(text, tokens, logprobs=CANDIDATES)
        first_s, found, output = 0.0, {"digest": "", "sample": ""}, None
        while output is None or not output.finished:
            given = self._step().get(name)
            if given is None:
                continue
            output = given
            if not first_s and output.outputs[0].token_ids:
                first_s = time.perf_counter() - started
                # A request of one token has ended, and its blocks belong to no request.
                found = self._cached(n) if tokens > 1 else found
        self._settle()
        after, answer = self._counters(), output.outputs[0]
        return {
            "n": n,
            "seed": seed,
            "ttft_s": round(first_s, 5),
            "tokens": list(answer.token_ids),
            "top": [
                [[token, round(one.logprob, 4)] for token, one in step.items()]
                for step in answer.logprobs or ()
            ],
            "external": after.get(EXTERNAL_HITS, 0) - before.get(EXTERNAL_HITS, 0),
            "in_gpu": after.get(GPU_HITS, 0) - before.get(GPU_HITS, 0),
            **found,
            "loads": list(self._loads),
        }

    def do_forget(self) -> dict[str, Any]:
        """Lets vLLM forget its own KV cache; the tiers behind it keep their blocks."""
        return {"forgotten": bool(self._llm.reset_prefix_cache())}

    def do_in_steps(self, *, allowed: bool) -> dict[str, Any]:
        """Changes whether loads run inside steps from now on."""
        return {"changed": engine_hooks.set_in_steps(self._core, allowed=allowed)}

    def do_front(self, *, part: float) -> dict[str, Any]:
        """Changes which part of a found prompt is computed while the rest is loaded."""
        return {"can_jump": engine_hooks.set_front(self._core, part)}

    def do_counters(self) -> dict[str, float]:
        """Returns vLLM's counters of hits and those of the store."""
        return self._counters()

    def do_gpu_facts(self) -> dict[str, Any]:
        """Returns what Dalsegno knows of the GPU; nothing without it, or on the CPU."""
        return engine_hooks.gpu_facts()

    def do_wait_registered(self) -> dict[str, Any]:
        """Waits until the GPU has registered the pool, as loads are slower before that."""
        until = time.monotonic() + SETTLE_S
        while engine_hooks.gpu_facts().get("registering") and time.monotonic() < until:
            time.sleep(0.01)
        return engine_hooks.gpu_facts()

    def do_decode(
        self, n: int, seed: int, others: list[tuple[int, int]], alone: int
    ) -> dict[str, Any]:
        """Decodes one request, first alone, then while others come one after the other.

        Args:
            n: Prompt tokens of the request.
            seed: Its seed.
            others: Prompt tokens and seed of each other request, which asks for one token.
            alone: Tokens to decode before the others come.

        Returns:
            `alone_s` and `with_s`: seconds between tokens of the request; `first_s`: seconds to the
            first token of each other one; `external`: prompt tokens that were loaded.
        """
        before, gaps, firsts = self._counters(), _Gaps(), []
        # It outlives the others, whatever their first tokens take.
        most = engine_hooks.most_tokens(self._core) - n
        running = self._add(prompt(n, seed, self._vocabulary), most)
        while len(gaps.seconds) < alone:
            gaps.note(self._step().get(running))
        alone_s, gaps.seconds = gaps.seconds, []
        for size, other in others:
            started = time.perf_counter()
            name, output = self._add(prompt(size, other, self._vocabulary), 1), None
            while output is None or not output.finished:
                stepped = self._step()
                gaps.note(stepped.get(running))
                output = stepped.get(name, output)
            firsts.append(round(time.perf_counter() - started, 5))
        self._engine.abort_request([running])
        self._settle()
        loaded = self._counters().get(EXTERNAL_HITS, 0) - before.get(EXTERNAL_HITS, 0)
        return {
            "alone_s": alone_s,
            "with_s": gaps.seconds,
            "first_s": firsts,
            "external": loaded,
        }

    def do_kill_while_loading(self, n: int, seed: int) -> dict[str, Any]:
        """Asks, and kills this process with SIGKILL as soon as a load runs.

        Returns:
            Only if the answer came before any load was seen to run.
        """
        name = self._add(prompt(n, seed, self._vocabulary), ANSWER_TOKENS)
        engine_hooks.kill_at_load()
        output = None
        while output is None or not output.finished:
            output = self._step().get(name, output)
        return {"killed": False}

    def do_close(self) -> dict[str, Any]:
        """Shuts the engine down."""
        self._engine.engine_core.shutdown()
        return {}

    def _cached(self, n: int) -> dict[str, str]:
        """Returns what identifies the KV cache of a prompt, or why it cannot be read."""
        try:
            return engine_hooks.cached(self._core, n)
        except Exception as error:  # noqa: BLE001 - times and tokens are worth more
            return {"digest": "", "sample": "", "unread": f"{type(error).__name__}: {error}"}

    def _add(self, tokens: list[int], most: int, logprobs: int | None = None) -> str:
        """Adds a request for so many tokens; returns its name."""
        from vllm import SamplingParams

        self._asked += 1
        name = f"request-{self._asked}"
        sampling = SamplingParams(
            temperature=0.0, max_tokens=most, ignore_eos=True, detokenize=False, logprobs=logprobs
        )
        self._engine.add_request(name, {"prompt_token_ids": tokens}, sampling)
        return name

    def _step(self) -> dict[str, Any]:
        """Runs a step; returns what it answers, by the names of the requests."""
        return {output.request_id: output for output in self._engine.step()}

    def _settle(self) -> None:
        """Steps until the connector has nothing in flight."""
        until = time.monotonic() + SETTLE_S
        while self._core.scheduler.has_requests() and time.monotonic() < until:
            self._engine.step()
            time.sleep(0.002)

    def _counters(self) -> dict[str, float]:
        """Returns counters by name, each summed over its labels."""
        totals: dict[str, float] = {}
        for metric in self._llm.get_metrics():
            known = metric.name.startswith((STORE_METRICS, EXTERNAL_HITS, GPU_HITS))
            if known and hasattr(metric, "value"):
                totals[metric.name] = totals.get(metric.name, 0) + metric.value
        return totals


class _Gaps:
    """Collects the seconds between the tokens of one request."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._count, self._last = 0, 0.0

    def note(self, output: Any) -> None:
        """Notes what a step answered for the request; None if nothing."""
        count = len(output.outputs[0].token_ids) if output is not None else self._count
        if count == self._count:
            return
        now = time.perf_counter()
        if self._count:
            self.seconds.append(round(now - self._last, 6))
        self._count, self._last = count, now


def main() -> None:
    """Runs the engine of a spec until its input ends."""
    spec = json.loads(sys.argv[1])
    # vLLM and the libraries below it write to the descriptor itself.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        engine = Engine(spec)
        print(json.dumps({"start_s": round(engine.start_s, 1)}), file=answers, flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            answer = getattr(engine, f"do_{order.pop('do')}")(**order)
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
