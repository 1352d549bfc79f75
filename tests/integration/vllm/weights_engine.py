"""An engine whose weights are replaced while it runs, in a process of its own.

``python -m tests.integration.vllm.weights_engine SPEC`` takes JSON: ``model`` and ``other`` are
folders, ``store`` is a directory, ``steps`` are run in their order. The last line of its output is
JSON with the answers. Log probabilities are compared, since tokens of a small model hide wrong KV.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

from dalsegno.integrations.vllm import demo_engine

PROMPT_TOKENS = 300
TOLERANCE = 0.002


def with_other_weights(model: Path, folder: Path) -> Path:
    """Copies a model and changes its weights, as a trainer does."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    noise = torch.Generator().manual_seed(5)
    tensors = {
        name: tensor
        + (torch.randn(tensor.shape, generator=noise) * 0.05 * tensor.float().std()).to(
            tensor.dtype
        )
        for name, tensor in load_file(model / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def are_equal(one: list[float], other: list[float]) -> bool:
    """Whether two answers have the same log probabilities, up to rounding."""
    return all(abs(a - b) <= TOLERANCE for a, b in zip(one, other, strict=True))


def load_directly(worker: Any, folder: str) -> None:
    """Loads weights into the model of a worker, past all of vLLM's own ways."""
    from safetensors.torch import load_file

    tensors = load_file(Path(folder) / "model.safetensors")
    worker.model_runner.model.load_weights(iter(tensors.items()))


class Engine:
    """The engine and its steps."""

    def __init__(self, spec: dict[str, Any]) -> None:
        processes = str(int(spec.get("processes", False)))
        os.environ.update(
            {
                **demo_engine.ENVIRONMENT,
                "VLLM_ENABLE_V1_MULTIPROCESSING": processes,
                "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
            }
        )
        from vllm import LLM

        self._other, self._prompts = spec["other"], dict[str, list[int]]()
        extra = {"path": spec["store"], "capacity": "1GiB", "cpu_bytes_to_use": "128MiB"}
        extra |= {"load_policy": "always", "keep_profile": False}
        self.llm = LLM(
            model=spec["model"],
            dtype="float32",
            seed=0,
            enforce_eager=True,
            enable_prefix_caching=True,
            max_model_len=1024,
            max_num_seqs=4,
            disable_log_stats=False,
            kv_transfer_config={
                "kv_connector": "DalsegnoConnector",
                "kv_connector_module_path": "dalsegno.integrations.vllm",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": extra,
            },
        )
        self.answers: list[dict[str, Any]] = []

    def step(self, name: str) -> None:
        """Runs a step: ``ask NAME [salted]``, ``reload``, ``load directly`` or ``reset``."""
        match name.split():
            case ["ask", prompt, *rest]:
                self.answers.append(self._ask(prompt, "salt" if rest else None))
            case ["reload"]:
                self.llm.collective_rpc("reload_weights", kwargs={"weights_path": self._other})
            case ["load", "directly"]:
                self.llm.collective_rpc(load_directly, args=(self._other,))
            case ["reset"]:
                if not self.llm.reset_prefix_cache():
                    raise RuntimeError("vLLM's prefix cache is in use")

    def _ask(self, prompt: str, salt: str | None) -> dict[str, Any]:
        from vllm import SamplingParams

        numbers = random.Random(prompt)
        tokens = [numbers.randrange(300, 40_000) for _ in range(PROMPT_TOKENS)]
        request: Any = {"prompt_token_ids": tokens, **({"cache_salt": salt} if salt else {})}
        before = self._external()
        sampling = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=0)
        out = self.llm.generate([request], sampling, use_tqdm=False)[0].outputs[0]
        demo_engine.settle(self.llm)
        logprobs = [next(iter(one.values())).logprob for one in out.logprobs or ()]
        return {"logprobs": logprobs, "external": self._external() - before}

    def _external(self) -> int:
        return int(demo_engine.counters_of(self.llm).get(demo_engine.EXTERNAL_HITS, 0))

    def close(self) -> None:
        """Ends the engine."""
        self.llm.llm_engine.engine_core.shutdown()


def main() -> None:
    """Runs the command line."""
    spec: dict[str, Any] = json.loads(sys.argv[1])
    engine = Engine(spec)
    for name in spec["steps"]:
        engine.step(name)
    answers = {"answers": engine.answers}
    engine.close()
    sys.stdout.write(f"{json.dumps(answers)}\n")


if __name__ == "__main__":
    main()
