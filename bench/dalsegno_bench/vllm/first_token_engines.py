"""Engines for `dalsegno bench first-token`, with a store for each."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dalsegno_bench.vllm.first_token_model import Model
from dalsegno_bench.vllm.throttle import Throttle

__all__ = ["Engine", "Place", "fill", "running"]

# An engine that is silent for so long has failed.
ANSWER_S = 600.0
ANSWER_TOKENS = 4
# Loads of the policy `always` are not given up, however slow the disk is.
LOAD_TIMEOUT_S = 300


@dataclass(frozen=True)
class Place:
    """Where engines run.

    Attributes:
        folder: Where their stores are.
        model: The model.
        throttle: Limits their reads.
        capacity: Bytes of disk of each store.
        pool: Bytes of memory of each store.
        settings: Further settings of the connector.
    """

    folder: Path
    model: Model
    throttle: Throttle
    capacity: int
    pool: int
    settings: Mapping[str, Any] = field(default_factory=dict)


class Engine:
    """An engine in a process of its own."""

    def __init__(self, place: Place, name: str, policy: str, *, threads: int = 1) -> None:
        """Starts it.

        Args:
            place: Where it runs.
            name: Of its store.
            policy: Its `load_policy`.
            threads: Threads that compute.
        """
        extra = {
            "path": str(place.folder / name),
            "path_to_engine": "direct",
            "capacity": place.capacity,
            "cpu_bytes_to_use": place.pool,
            "load_policy": policy,
            "load_timeout_s": LOAD_TIMEOUT_S,
            "keep_profile": False,
            # Merging rewrites what was stored, and would evict the first documents.
            "store": {"merge_rate": 0},
            "weights_fingerprint": "random",
            **place.settings,
        }
        config = {
            "kv_connector": "DalsegnoConnector",
            "kv_connector_module_path": "dalsegno.integrations.vllm",
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra,
        }
        spec = {
            "model": str(place.model.folder),
            "block_tokens": Model.BLOCK_TOKENS,
            "kv_transfer_config": config,
        }
        program = "dalsegno_bench.vllm.first_token_program"
        self._log = place.folder / f"{name}.log"
        with self._log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", program, json.dumps(spec)],
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
        try:
            place.throttle.add(self._process.pid)
        except BaseException:
            self.stop()
            raise

    def wait_until_ready(self) -> None:
        """Waits until it answers."""
        self._answer()

    def ask(self, *prompts: Sequence[int]) -> dict[str, Any]:
        """Asks for some tokens after prompts that arrive together.

        Args:
            *prompts: Their tokens.
        """
        return self._order({"prompts": prompts, "answer_tokens": ANSWER_TOKENS})

    def explain(self) -> dict[str, Any]:
        """Returns what its cost model has learned."""
        return self._order({"prompts": []})

    def _order(self, order: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_S)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            end = self._log.read_text(encoding="utf-8", errors="replace")[-3000:]
            state = "has ended" if ready else f"did not answer for {ANSWER_S:.0f} s"
            raise RuntimeError(f"the engine {state}:\n{end}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Lets it close its store, and waits for that."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(ANSWER_S)
        finally:
            self.stop()

    def stop(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()


def fill(place: Place, prompts: Sequence[Sequence[int]], names: Sequence[str]) -> Iterator[int]:
    """Stores prompts, and copies the store for engines that start afterwards.

    No engine runs meanwhile, so two threads compute.

    Args:
        place: Where the stores are.
        prompts: What is computed and stored.
        names: Of the stores.

    Yields:
        How many prompts are stored.
    """
    first, *others = names
    engine = Engine(place, first, "never", threads=2)
    try:
        engine.wait_until_ready()
        for number, prompt in enumerate(prompts, 1):
            stored = engine.ask(prompt)["stored_blocks"]
            assert stored == len(prompt) // Model.BLOCK_TOKENS, "a document was not stored"
            yield number
        engine.close()
    finally:
        engine.stop()
    for name in others:
        shutil.copytree(place.folder / first, place.folder / name)
    os.sync()


@contextmanager
def running(place: Place, policies: Sequence[str]) -> Iterator[dict[str, Engine]]:
    """Runs an engine for each policy, in the store of that name.

    Args:
        place: Where they run.
        policies: Their policies. All engines but the last one start together, as that takes less
            time; while the last one starts, it measures the disk, and has the machine for itself.
    """
    engines: dict[str, Engine] = {}
    try:
        for policy in policies[:-1]:
            engines[policy] = Engine(place, policy, policy)
        for engine in engines.values():
            engine.wait_until_ready()
        engines[policies[-1]] = Engine(place, policies[-1], policies[-1])
        engines[policies[-1]].wait_until_ready()
        yield engines
    finally:
        for engine in engines.values():
            engine.stop()
