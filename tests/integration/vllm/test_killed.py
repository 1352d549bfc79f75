"""Engines that are killed with SIGKILL: nothing of them stays in `/dev/shm`.

A real vLLM on the CPU with a model of random weights. Each engine takes some 15 seconds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.dose import long_dose

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]
SHARED_MEMORY = Path("/dev/shm")
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "torch_dtype": "float32",
}
PROGRAM = """
import json, os, signal, sys
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    engine = LLM(**options)
    prompt = {"prompt_token_ids": [7] * 300}
    engine.generate([prompt], SamplingParams(max_tokens=2), use_tqdm=False)
    print("ready", flush=True)
    signal.pause()
"""


def regions() -> set[str]:
    """The files of primary tiers."""
    return {one.name for one in SHARED_MEMORY.iterdir() if one.name.startswith("vllm_offload_")}


def run_and_kill(folder: Path, number: int, ranks: int) -> set[str]:
    """Starts an engine, kills all of its processes, and returns what it had in `/dev/shm`."""
    extra: dict[str, Any] = {"path": str(folder / "store"), "capacity": "64MiB"}
    extra |= {"cpu_bytes_to_use": "64MiB", "load_policy": "always", "keep_profile": False}
    connector = {
        "kv_connector": "DalsegnoConnector",
        "kv_connector_module_path": "dalsegno.integrations.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
    }
    options: dict[str, Any] = {
        "model": str(folder / "model"),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 1024,
        "tensor_parallel_size": ranks,
        "kv_transfer_config": connector,
    }
    program, log = folder / "program.py", folder / f"{number}.log"
    program.write_text(PROGRAM)
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "OMP_NUM_THREADS": "1",
    }
    with log.open("w") as errors:
        engine = subprocess.Popen(
            [sys.executable, str(program), json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
            start_new_session=True,
        )
    try:
        assert engine.stdout is not None
        is_ready = any(line == "ready\n" for line in engine.stdout)
        assert is_ready, log.read_text()[-3000:]
        return regions()
    finally:
        os.killpg(engine.pid, signal.SIGKILL)
        engine.wait()


def kill_six(folder: Path, ranks: int) -> None:
    """Kills engines one after the other."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(MODEL))
    before = regions()
    for number in range(6):
        assert run_and_kill(folder, number, ranks) <= before, "the file of a running engine"
        end = time.monotonic() + 60
        while not regions() <= before:
            assert time.monotonic() < end, "a killed engine left its memory"
            time.sleep(0.1)


# Without an engine: test_spec.py.
@long_dose
def test_killed_engines_leave_no_memory(tmp_path: Path) -> None:
    kill_six(tmp_path, 1)


@long_dose
def test_killed_engines_of_two_ranks_leave_no_memory(tmp_path: Path) -> None:
    kill_six(tmp_path, 2)
