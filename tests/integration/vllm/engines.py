"""Engines that answer three questions about one text, each when it is asked to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.integration.vllm import engine as engine_program
from tests.integration.vllm.processes import Program

from dalsegno.demo import primer

# The last one has blocks of its own.
QUESTIONS = (
    "What does the player do at the sign?",
    "What does the model keep?",
    "Which of these is in the text? " + primer.document()[9000:9900],
)
DOCUMENT_CHARS = 6740


class Engine:
    """An engine in a process of its own that answers when it is asked to."""

    def __init__(self, folder: Path, name: str, core: int, spec: dict[str, Any]) -> None:
        self._program = Program(
            engine_program.run,
            {**spec, "waits": True, "log_file": str(folder / f"{name}.log")},
            XDG_CACHE_HOME=str(folder / "cache"),
            VLLM_CPU_OMP_THREADS_BIND=str(core),
        )

    def ask(self) -> dict[str, Any]:
        """Answers the next question."""
        self._program.order()
        for record in self._program.records():
            if "token_ids" in record:
                return record
        raise AssertionError(self._program.said())

    def stop(self) -> None:
        """Kills it."""
        self._program.stop()


@contextmanager
def engines(
    folder: Path, model: Path, **configs: dict[str, Any] | None
) -> Iterator[dict[str, Engine]]:
    """Engines by their names, started at the same time, each on a core of its own."""
    document = folder / "document.txt"
    document.write_text(primer.document()[:DOCUMENT_CHARS], encoding="utf-8")
    spec = {
        "model": str(model),
        "questions": QUESTIONS,
        "document": str(document),
        "context_tokens": 2048,
    }
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as opened:
        running = {}
        for at, (name, config) in enumerate(configs.items()):
            core, own = cores[at % len(cores)], {**spec, "kv_transfer_config": config}
            if config is None:
                own["options"] = {"enable_prefix_caching": False}
            running[name] = Engine(folder, name, core, own)
            opened.callback(running[name].stop)
        yield running


def connector(path: str) -> dict[str, Any]:
    return {
        "kv_connector": "DalsegnoConnector",
        "kv_connector_module_path": "dalsegno.integrations.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "path": path,
            "cpu_bytes_to_use": "256MiB",
            "load_policy": "always",
            "keep_profile": False,
        },
    }


def loaded_share(answer: dict[str, Any]) -> float:
    return float(answer["external_tokens"] / answer["prompt_tokens"])
