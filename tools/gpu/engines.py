"""Engines in processes of their own, and what they run: models, options and connectors."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gpu.cells import Session, TimeUpError
from gpu.engine_hooks import LOAD_FORMAT

PROGRAM = Path(__file__).resolve().parent / "engine_process.py"
CLOSE_S = 30.0
# A process whose engine was shut down has nothing to lose.
EXIT_S = 8.0
# The start of a process is known in hundredths of a second.
FILE_TICK_S = 0.1
GIB, MIB = 1 << 30, 1 << 20

# vLLM reads them when it is imported.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_LOGGING_LEVEL": "INFO",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",
}


class EngineError(RuntimeError):
    """An engine has ended; the message has the end of its log."""


@dataclass(frozen=True)
class Setup:
    """What engines run.

    Attributes:
        model: The `config.json` of the model.
        options: Arguments of vLLM's `LLM`, without the model.
        environment: Variables of the engine's process.
        lengths: Tokens of the prompts.
        block_tokens: Tokens of a block.
        pool: Bytes of a pool that has all prompts.
        small_pool: Bytes of one that has not, but lets a prompt of `short` be read by layer.
        short, filler: Tokens of a prompt that is damaged, and of one that takes the small pool.
        loaded, loads: Tokens of a prompt that is loaded while another request decodes, and how many
            such prompts come.
        alone: Tokens that are decoded before they come.
    """

    model: Mapping[str, Any]
    options: Mapping[str, Any]
    environment: Mapping[str, str]
    lengths: tuple[int, ...]
    block_tokens: int
    pool: int
    small_pool: int
    short: int
    filler: int
    loaded: int
    loads: int
    alone: int

    @property
    def capacity(self) -> int:
        """Most bytes of a store on disk: it has all prompts, and some space to write."""
        return self.pool * 5 // 4

    def hits(self, n: int) -> int:
        """Returns how many tokens of a prompt can be hits: full blocks before its last token."""
        return (n - 1) // self.block_tokens * self.block_tokens

    def cached_bytes(self, n: int) -> int:
        """Returns the bytes of the KV cache of a prompt's full blocks."""
        model = self.model
        head = model["hidden_size"] // model["num_attention_heads"]
        number = 4 if model["torch_dtype"] == "float32" else 2
        token = 2 * model["num_hidden_layers"] * model["num_key_value_heads"] * head * number
        return int(self.hits(n) * token)


_LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
_OPTIONS: Mapping[str, Any] = {
    "load_format": LOAD_FORMAT,
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "enable_prefix_caching": True,
    "max_num_seqs": 8,
    "seed": 0,
    "disable_log_stats": False,
}

# Llama-3-8B: 128 KiB of KV cache for each token in bfloat16.
LLAMA_8B = Setup(
    model={
        **_LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "rope_theta": 500_000.0,
        "torch_dtype": "bfloat16",
    },
    options={
        **_OPTIONS,
        "dtype": "bfloat16",
        "max_model_len": 66_000,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.85,
        "attention_config": {"backend": "FLASH_ATTN"},
    },
    environment=ENVIRONMENT,
    lengths=(4096, 16_384, 32_768, 65_000),
    block_tokens=16,
    pool=24 * GIB,
    small_pool=GIB,
    short=2000,
    filler=16_384,
    loaded=32_768,
    loads=5,
    alone=150,
)

# For a machine without a GPU, to try these programs: 2 KiB for each token in float32.
TINY = Setup(
    model={
        **_LLAMA,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "vocab_size": 512,
        "max_position_embeddings": 2048,
        "torch_dtype": "float32",
    },
    options={
        **_OPTIONS,
        "dtype": "float32",
        "max_model_len": 2048,
        "max_num_batched_tokens": 512,
        "block_size": 32,
    },
    environment={
        **ENVIRONMENT,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    },
    lengths=(200, 1000),
    block_tokens=32,
    pool=64 * MIB,
    small_pool=4 * MIB,
    short=500,
    filler=2000,
    loaded=1000,
    loads=2,
    alone=20,
)


def setup_of(*, tiny: bool) -> Setup:
    """Returns what engines run."""
    return TINY if tiny else LLAMA_8B


def of_dalsegno(path: str, way: str, **extra: Any) -> dict[str, Any]:
    """Returns vLLM's `kv_transfer_config` for our connector.

    Args:
        path: The directory of the store, or the socket of its server.
        way: `direct` or `tiered`.
        **extra: Further keys of `kv_connector_extra_config`.
    """
    return {
        "kv_connector": "DalsegnoConnector",
        "kv_connector_module_path": "dalsegno.integrations.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "path": path,
            "path_to_engine": way,
            "weights_fingerprint": "noise 1",
            # What is measured is loading, unless a cell says otherwise.
            "load_policy": "always",
            "keep_profile": False,
            **extra,
        },
    }


def of_vllm(cpu_bytes: int, files: Path | None = None) -> dict[str, Any]:
    """Returns vLLM's `kv_transfer_config` for its own tiers.

    Args:
        cpu_bytes: Bytes of its CPU tier.
        files: The folder of its `fs` tier; None for none.
    """
    extra: dict[str, Any] = {"cpu_bytes_to_use": cpu_bytes}
    if files is not None:
        tier = {"type": "fs", "root_dir": str(files)}
        extra |= {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [tier]}
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }


@dataclass
class Start:
    """How an engine is started.

    Attributes:
        name: Of its log.
        connector: vLLM's `kv_transfer_config`; None for none.
        options: Further arguments of `LLM`.
        environment: Further variables of its process.
    """

    name: str
    connector: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def _model(session: Session, setup: Setup) -> Path:
    """Returns the folder of the model, which is written once.

    Files that change while an engine starts give it an identity of its own, which finds no block.
    """
    folder, content = session.scratch / "model", json.dumps(dict(setup.model))
    place = folder / "config.json"
    if not place.exists() or place.read_text(encoding="utf-8") != content:
        folder.mkdir(parents=True, exist_ok=True)
        place.write_text(content, encoding="utf-8")
        time.sleep(FILE_TICK_S)
    return folder


class Engine:
    """An engine that follows orders; killing its process ends everything of it.

    Attributes:
        start_s: How long it took to start, in seconds.
    """

    def __init__(self, session: Session, setup: Setup, start: Start) -> None:
        """Starts it, and waits until it answers.

        Args:
            session: Where, and how long.
            setup: What it runs.
            start: How it is started.

        Raises:
            EngineError: It does not start.
            TimeUpError: The time is up.
        """
        self._session = session
        spec = {
            "options": {"model": str(_model(session, setup)), **setup.options, **start.options},
            "kv_transfer_config": start.connector,
        }
        self._log = session.out / "logs" / f"{start.name}.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        python = session.options.get("python") or sys.executable
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                [python, str(PROGRAM), json.dumps(spec)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **setup.environment, **start.environment},
                process_group=0,
            )
        self._rest = b""
        try:
            self.start_s: float = self._answer()["start_s"]
        except BaseException:
            self.kill()
            raise

    def do(self, order: str, **arguments: Any) -> dict[str, Any]:
        """Gives an order; returns the answer: see the methods of `engine_process.Engine`.

        Raises:
            EngineError: The engine has ended.
            TimeUpError: The time is up.
        """
        assert self._process.stdin is not None
        line = json.dumps({"do": order, **arguments}).encode() + b"\n"
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EngineError(self._end()) from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        """Returns the next line of the engine."""
        assert self._process.stdout is not None
        while b"\n" not in self._rest:
            left_s = self._session.left_s
            ready = select.select([self._process.stdout], [], [], max(0.0, left_s))[0]
            if not ready:
                self.kill()
                raise TimeUpError
            if not (part := os.read(self._process.stdout.fileno(), 1 << 16)):
                raise EngineError(self._end())
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _end(self) -> str:
        """Returns how the process has ended, and the end of its log."""
        code = self._process.wait(CLOSE_S)
        said = self._log.read_text(encoding="utf-8", errors="replace")[-1500:]
        return f"the engine has ended with exit code {code}:\n{said}"

    def wait_killed(self) -> int:
        """Waits until the process has ended by itself; returns its exit code."""
        code = self._process.wait(CLOSE_S)
        self._close_pipes()
        return code

    def close(self) -> None:
        """Shuts it down, and kills it if it does not end."""
        with contextlib.suppress(
            EngineError, TimeUpError, OSError, ValueError, subprocess.TimeoutExpired
        ):
            self.do("close")
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(EXIT_S)
        self.kill()

    def kill(self) -> None:
        """Kills it and all of its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_S)
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is None:
            self.close()
        else:
            self.kill()
        # Memory of the GPU is free a moment after its process.
        time.sleep(0.2)
