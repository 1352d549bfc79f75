"""One vLLM engine for `dalsegno profile run`, in a process of its own.

``python -m dalsegno.integrations.vllm.measured_engine SPEC`` asks the prompts of a measurement and
writes lines of JSON to standard output: `total` and `done` prompts, then the `result`, or an
`error`. All other output goes to standard error.

1. The connector measures steps and loads, and keeps its profile as for any other engine.
2. When standard input ends, the process that started this one is gone. Then the work folder is
   removed, and this process ends.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dalsegno import DalsegnoError, InvalidError
from dalsegno.integrations.common import deciding
from dalsegno.integrations.common.steps import StepTime
from dalsegno.integrations.vllm import demo_engine
from dalsegno.measuring import grid

Say = Callable[[dict[str, Any]], None]

# How long blocks of a document may take to be stored, and those that nobody will load.
SETTLE_S, QUIET_S = 60.0, 0.25
# Loads are not given up, however slow the disk is.
LOAD_TIMEOUT_S = 300
# Blocks have padding, and stores need space to work in.
PART_MORE, SPARE_BYTES = 1.25, 256 << 20
# Of the memory and the disk that are free, so much may be used.
FREE_PART = 0.8
# Of an error of vLLM's.
MOST_CHARS = 400
# A token has about so many numbers in each layer of a cache of MLA.
MLA_NUMBERS = 576


def main() -> None:
    """Runs the engine of a spec, which `dalsegno.measuring.running` writes."""
    spec = json.loads(sys.argv[1])
    threading.Thread(target=_watch, args=(Path(spec["work"]),), daemon=True).start()
    # vLLM and the libraries below it write to the descriptor itself.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)

        def say(answer: dict[str, Any]) -> None:
            print(json.dumps(answer), file=answers, flush=True)

        try:
            _measure(spec, say)
        except Exception as error:  # noqa: BLE001 - the other process reports it
            traceback.print_exc()
            say({"error": _line(error)})


def _watch(work: Path) -> None:
    """Ends this process when the one that started it is gone."""
    # Not `sys.stdin`: Python may not end while a thread reads that.
    while os.read(0, 4096):
        pass
    shutil.rmtree(work, ignore_errors=True)
    os._exit(1)


def _line(error: Exception) -> str:
    """Returns an error in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, DalsegnoError):
        return text
    line = f"vLLM could not run this model: {type(error).__name__}: {text}"
    return line if len(line) <= MOST_CHARS else f"{line[:MOST_CHARS]} …"


class _Measured:
    """What the connector measures.

    Attributes:
        times: Of the cells.
        loads: Tier, bytes and seconds of each load that had one tier.
        engine: What the engine computes and loads; None until a step was measured.
    """

    def __init__(self) -> None:
        self.times = grid.CellTimes()
        self.loads: list[tuple[str, int, float]] = []
        self.engine: deciding.Engine | None = None

    def step(self, engine: deciding.Engine, step: StepTime) -> None:
        self.engine = engine
        work = step.work
        self.times.add(round(work.read - work.tokens), round(work.tokens), step.seconds)

    def load(self, sizes: Mapping[str, int], seconds: float) -> None:
        if len(sizes) == 1:
            ((tier, size),) = sizes.items()
            self.loads.append((tier, size, seconds))


def _measure(spec: dict[str, Any], say: Say) -> None:
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    given = {"skip_tokenizer_init": True, **spec["options"], "model": spec["model"]}
    model = EngineArgs(**given).create_model_config()
    most = int(model.max_model_len)
    lengths = grid.fitting(spec["lengths"], most, is_default=spec["is_default"])
    sizes = _sizes(spec, lengths, _token_bytes(model, str(given.get("kv_cache_dtype", "auto"))))
    measured = _Measured()
    deciding.listeners.append(measured)
    llm = LLM(**given, kv_transfer_config=_transfer_config(spec, *sizes))
    prompts = _Prompts(llm, int(model.get_vocab_size()))
    # The first prompts are slow, and show what a block is. Those of the first engine are stored.
    for number in (-1, -2) if spec["phase"] == "memory" else (-3, -4):
        prompts.ask(grid.Ask(0, lengths[0], number), "warm-up")
    if measured.engine is None:
        raise InvalidError("the engine did not report how long its steps take")
    blocks = grid.whole_blocks(lengths, measured.engine.block_tokens)
    lengths = grid.fitting(blocks, most, is_default=True)
    skipped = prompts.ask_all(spec, lengths, measured, say)
    llm.llm_engine.engine_core.shutdown()
    result = {
        "cells": measured.times.table(),
        "loads": measured.loads,
        "missed": measured.times.missed,
        "skipped": skipped,
        "lengths": lengths,
        "chunk": measured.engine.chunk,
    }
    say({"result": result})


class _Prompts:
    """Asks prompts one after the other."""

    def __init__(self, llm: Any, vocabulary: int) -> None:
        self._llm, self._vocabulary = llm, vocabulary

    def ask(self, asked: grid.Ask, label: str) -> None:
        """Asks a prompt; vLLM forgets its own blocks before."""
        from vllm import SamplingParams

        one = SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False, temperature=0)
        self._llm.reset_prefix_cache()
        prompt = {"prompt_token_ids": asked.prompt(self._vocabulary, label)}
        self._llm.generate([prompt], one, use_tqdm=False)
        # What has no prefix is the prefix of others.
        demo_engine.settle(self._llm, QUIET_S if asked.prefix else SETTLE_S)

    def ask_all(
        self, spec: Mapping[str, Any], lengths: list[int], measured: _Measured, say: Say
    ) -> int:
        """Asks all prompts for which there is time; returns how many were left out."""
        budget, skipped = grid.Budget(spec["seconds"]), 0
        plan = grid.from_memory if spec["phase"] == "memory" else grid.from_disk
        asks = plan(lengths, spec["times"])
        for done, asked in enumerate(asks):
            say({"done": done, "total": len(asks)})
            if not budget.allows(asked):
                skipped += 1
                continue
            measured.times.ask(asked)
            started = time.monotonic()
            self.ask(asked, spec["phase"])
            budget.note(asked, time.monotonic() - started)
        return skipped


def _token_bytes(model: Any, cache_dtype: str) -> float:
    """Returns about how many bytes of KV cache a token has."""
    layers = int(model.hf_text_config.num_hidden_layers)
    width = 1 if cache_dtype.startswith(("fp8", "int8")) else model.dtype.itemsize
    numbers = 2 * int(model.get_total_num_kv_heads()) * int(model.get_head_size())
    return float(layers * width * (MLA_NUMBERS if getattr(model, "use_mla", False) else numbers))


def _sizes(spec: dict[str, Any], lengths: list[int], token_bytes: float) -> tuple[int, int]:
    """Returns the bytes of the pool and of the disk.

    Raises:
        InvalidError: There is not so much memory or disk.
    """
    in_pool, on_disk = grid.stored_tokens(lengths, spec["times"])
    pool = int(PART_MORE * token_bytes * in_pool) + SPARE_BYTES
    capacity = spec["capacity"] or int(PART_MORE * token_bytes * on_disk) + 4 * SPARE_BYTES
    free = {
        "memory": (pool, _free_memory()),
        "disk": (capacity, shutil.disk_usage(spec["work"]).free),
    }
    for name, (needed, there) in free.items():
        if needed > FREE_PART * there:
            raise InvalidError(
                f"this measurement needs {needed / 2**30:.1f} GiB of {name}, and "
                f"{there / 2**30:.1f} GiB are free; give shorter --lengths, or a smaller --times"
            )
    return pool, capacity


def _free_memory() -> int:
    """Returns the bytes of memory that are free, or would be without the page cache."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _transfer_config(spec: dict[str, Any], pool: int, capacity: int) -> dict[str, Any]:
    """Returns vLLM's connector configuration."""
    extra = {
        "path": str(Path(spec["work"]) / "store"),
        "path_to_engine": "direct",
        "capacity": capacity,
        "cpu_bytes_to_use": pool,
        "load_policy": "always",
        # Also what a slow disk loads too slowly.
        "min_gain": 0,
        "load_timeout_s": LOAD_TIMEOUT_S,
        # No step waits for blocks: loads and steps are measured each for itself.
        "kv_load_failure_policy": "fail",
        # Merging rewrites what was stored, and would be measured too.
        "store": {"merge_rate": 0},
        # Hashing the weights takes long, and nothing is shared.
        "weights_fingerprint": "profile run",
    }
    return {
        "kv_connector": "DalsegnoConnector",
        "kv_connector_module_path": "dalsegno.integrations.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
    }


if __name__ == "__main__":
    main()
