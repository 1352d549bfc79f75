"""A real SGLang server on the CPU, in processes of its own, and models that are created quickly.

1. Every wait has a bound, and every process of a server is gone when its block ends.
2. Tokens go in and out as numbers: the models have no tokenizer.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dalsegno

START_S = 300.0
ASK_S = 120.0
# A store that could not be opened is tried again every ten seconds.
TAKE_OVER_S = 45.0
KEY = "the administrator's"
# 4 KiB of KV a token.
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
}
# Settings that the server must not inherit from the environment of the tests, and their values.
ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "2",
}
OPTIONS = {
    "--device": "cpu",
    "--dtype": "float32",
    "--attention-backend": "torch_native",
    "--sampling-backend": "pytorch",
    "--grammar-backend": "none",
    "--cuda-graph-backend-decode": "disabled",
    "--cuda-graph-backend-prefill": "disabled",
    "--max-total-tokens": "8192",
    "--max-running-requests": "4",
    "--mem-fraction-static": "0.3",
    "--host": "127.0.0.1",
    "--admin-api-key": KEY,
    "--hicache-storage-backend": "dynamic",
}
FLAGS = (
    "--skip-tokenizer-init",
    "--skip-server-warmup",
    "--disable-overlap-schedule",
    "--enable-metrics",
    "--enable-cache-report",
    "--enable-hierarchical-cache",
)


def make_model(folder: Path, seed: int) -> Path:
    """Writes a small Llama with random weights, and returns its folder."""
    import torch
    from safetensors.torch import save_file

    draw = torch.Generator().manual_seed(seed)
    width, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    key_width = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]

    def random(*shape: int) -> torch.Tensor:
        # Wide enough for attention to influence the tokens.
        return torch.randn(*shape, generator=draw) * 1.5 / shape[-1] ** 0.5

    tensors = {
        "model.embed_tokens.weight": random(CONFIG["vocab_size"], width),
        "lm_head.weight": random(CONFIG["vocab_size"], width),
        "model.norm.weight": torch.ones(width),
    }
    for layer in range(CONFIG["num_hidden_layers"]):
        shapes = {
            "self_attn.q_proj": (width, width),
            "self_attn.k_proj": (key_width, width),
            "self_attn.v_proj": (key_width, width),
            "self_attn.o_proj": (width, width),
            "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
        }
        for name, shape in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = random(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.ones(width)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@dataclass(frozen=True)
class Answer:
    """The answer of a server.

    Attributes:
        tokens: The tokens of the answer.
        cached: Tokens of the prompt that were not computed.
        stored: Of these, those that came from the storage backend.
    """

    tokens: list[int]
    cached: int
    stored: int


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        url: Where it listens.
        process: Its first process, the leader of a group with all others.
        log_file: Where all of them write.
    """

    url: str
    process: subprocess.Popen[bytes]
    log_file: Path

    @property
    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def call(self, method: str, path: str, body: Any = None, timeout_s: float = ASK_S) -> str:
        """Sends a request; returns the body of the reply."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as reply:
                return str(reply.read().decode())
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            raise AssertionError(f"{method} {path}: {error.code} {text}") from None

    def ask(self, prompt: Sequence[int], tokens: int) -> Answer:
        """Has the model go on with a prompt, greedily."""
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        body = {"input_ids": list(prompt), "sampling_params": sampling}
        said = json.loads(self.call("POST", "/generate", body))
        meta = said["meta_info"]
        sources = meta.get("cached_tokens_details") or {}
        return Answer(said["output_ids"], meta["cached_tokens"], sources.get("storage", 0))

    def metric(self, name: str, label: str = "") -> float:
        """Returns a metric, summed over its labels and processes."""
        lines = self.call("GET", "/metrics").splitlines()
        found = [line for line in lines if line.split("{")[0].split(" ")[0] == name]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found if label in line)

    def wait_for(self, what: str, ready: Callable[[], bool], within_s: float = ASK_S) -> None:
        """Waits until a condition holds.

        Raises:
            AssertionError: The condition did not hold in time, or the server has ended.
        """
        until = time.monotonic() + within_s
        while not ready():
            assert self.process.poll() is None, f"the server has ended: {self.log[-3000:]}"
            assert time.monotonic() < until, f"no {what} in {within_s} s: {self.log[-3000:]}"
            time.sleep(0.1)

    def empty_caches(self) -> None:
        """Empties SGLang's own caches, once nothing is in flight and all pages are stored."""

        def emptied() -> bool:
            with suppress(AssertionError):
                self.call("POST", "/flush_cache")
                return True
            return False

        self.wait_for("flush", emptied)

    def kill(self) -> None:
        """Kills all of its processes."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=ASK_S)

    def terminate(self, path: Path) -> None:
        """Sends SIGTERM, and waits until no process owns the store at `path`."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=ASK_S)
        until = time.monotonic() + ASK_S
        while is_in_use(path):
            assert time.monotonic() < until, "the store stays locked"
            time.sleep(0.1)


def is_in_use(path: Path) -> bool:
    """Reports whether a process owns the store."""
    try:
        dalsegno.open(path, capacity="1GiB").close()
    except dalsegno.UnavailableError:
        return True
    return False


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def serving(model: Path, log_file: Path, extra: dict[str, Any], **changes: str) -> Iterator[Server]:
    """A server that answers; its processes are killed when the block ends.

    Args:
        model: Folder of the model.
        log_file: Where it writes.
        extra: HiCache's extra configuration.
        changes: Further options, by their name with underscores.
    """
    port = free_port()
    options = {**OPTIONS, "--model-path": str(model), "--port": str(port)}
    options |= {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    options["--hicache-storage-backend-extra-config"] = json.dumps(extra)
    words = [word for pair in options.items() for word in pair]
    command = [sys.executable, "-m", "sglang.launch_server", *words, *FLAGS]
    settings = {**os.environ, **ENVIRONMENT, "XDG_CACHE_HOME": str(log_file.parent / "cache")}
    with ExitStack() as last, log_file.open("ab") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=settings, start_new_session=True
        )
        last.callback(_end_group, process)
        server = Server(f"http://127.0.0.1:{port}", process, log_file)

        def healthy() -> bool:
            with suppress(OSError, AssertionError):
                server.call("GET", "/health", timeout_s=10)
                return True
            return False

        server.wait_for("answer", healthy, START_S)
        yield server


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kills the remaining processes of a server."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=ASK_S)
