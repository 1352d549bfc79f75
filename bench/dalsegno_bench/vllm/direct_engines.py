"""Engines for `dalsegno bench direct`, each with a store of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dalsegno_bench.vllm.llama import Llama

__all__ = ["Contender", "Model", "running"]


class Model(Llama):
    """A model whose KV cache is large and whose layers are small."""

    LAYERS, KV_HEADS, WIDTH, MOST_TOKENS = 16, 4, 256, 4096

    def __init__(self, folder: Path) -> None:
        """Writes its configuration; the weights are random."""
        super().__init__(folder, self.LAYERS)


class Contender:
    """An engine in a process of its own."""

    def __init__(
        self, model: Model, config: Mapping[str, Any], log: Path, *, reads: bool, threads: int
    ) -> None:
        """Starts it.

        Args:
            model: The model.
            config: vLLM's `kv_transfer_config`.
            log: File for what it says.
            reads: Whether steps may read blocks.
            threads: Threads that compute.
        """
        spec = {"model": str(model.folder), "kv_transfer_config": config, "reads": reads}
        command = [sys.executable, "-m", "dalsegno_bench.vllm.direct_program", json.dumps(spec)]
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={
                    **os.environ,
                    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                    "OMP_NUM_THREADS": str(threads),
                },
            )

    def wait(self) -> None:
        """Waits until it answers."""
        self._answer()

    def ask(self, prompt: list[int], *, forget: bool = True) -> dict[str, float]:
        """Asks for one token after a prompt.

        Args:
            prompt: Its tokens.
            forget: Whether vLLM forgets what it has in its own KV cache before that.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompt": prompt, "forget": forget}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            end = self._log.read_text(encoding="utf-8", errors="replace")[-3000:]
            raise RuntimeError(f"the engine has ended:\n{end}")
        answer: dict[str, float] = json.loads(line)
        return answer

    def stop(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()


@contextmanager
def running(
    folder: Path,
    model: Model,
    settings: Mapping[str, Mapping[str, Any]],
    waiting: Collection[str] = (),
    threads: int = 2,
) -> Iterator[dict[str, Contender]]:
    """Runs engines, each with a new store.

    Args:
        folder: Where the stores are.
        model: The model.
        settings: `kv_connector_extra_config` of each, without the path.
        waiting: Engines whose requests wait for blocks that are not in the pool.
        threads: Threads with which each computes.
    """
    folder.mkdir()
    with ExitStack() as stack:
        engines = {}
        for name, given in settings.items():
            extra = {"path": str(folder / name), "capacity": "4GiB", **given}
            config = {
                "kv_connector": "DalsegnoConnector",
                "kv_connector_module_path": "dalsegno.integrations.vllm",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {**extra, "weights_fingerprint": "random"},
            }
            log = folder / f"{name}.log"
            reads = name not in waiting
            engines[name] = Contender(model, config, log, reads=reads, threads=threads)
            stack.callback(engines[name].stop)
            # One after the other: starting takes all cores.
            engines[name].wait()
        yield engines
