"""Two real vLLM engines on the CPU that share one store through `dalsegno serve`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.integration.shared_store import SharedStore
from tests.integration.vllm import engine as engine_program
from tests.integration.vllm import small_model
from tests.integration.vllm.processes import Program

from dalsegno.demo import primer

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]
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
def engines(folder: Path, **configs: dict[str, Any] | None) -> Iterator[dict[str, Engine]]:
    """Engines by their names, started at the same time, each on a core of its own."""
    spec = {
        "model": str(folder / "model"),
        "questions": QUESTIONS,
        "document": str(folder / "document.txt"),
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
        "kv_connector_extra_config": {"path": path, "cpu_bytes_to_use": "256MiB"},
    }


def loaded_share(answer: dict[str, Any]) -> float:
    return float(answer["external_tokens"] / answer["prompt_tokens"])


def test_two_engines_share_a_server_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    small_model.prepare(tmp_path / "model")
    (tmp_path / "document.txt").write_text(primer.document()[:DOCUMENT_CHARS], encoding="utf-8")
    with engines(tmp_path, oracle=None) as alone:
        right = [alone["oracle"].ask()["token_ids"] for _ in QUESTIONS]
    server = SharedStore(tmp_path / "store")
    try:
        # One by its directory, which somebody serves; the other by the socket.
        shared = {"a": connector(str(server.path)), "b": connector(server.socket)}
        with engines(tmp_path, **shared) as both:
            first, second = both["a"].ask(), both["b"].ask()
            assert (first["token_ids"], second["token_ids"]) == (right[0], right[0])
            assert loaded_share(first) == 0
            assert loaded_share(second) >= 0.95, "what one engine computed the other loads"
            server.kill()
            answers = [both[name].ask() for name in both]
            assert [answer["token_ids"] for answer in answers] == [right[1]] * 2
            server.start()
            first = both["a"].ask()
            server.wait_for_blocks(first["prompt_tokens"] // 128)
            second = both["b"].ask()
            assert (first["token_ids"], second["token_ids"]) == (right[2], right[2])
            assert second["external_tokens"] >= 128, "what is stored from now on is shared again"
        # What the server had when it was killed is there for an engine that starts now.
        with engines(tmp_path, late=connector(server.socket)) as late:
            answer = late["late"].ask()
        assert answer["token_ids"] == right[0]
        assert loaded_share(answer) >= 0.95
    finally:
        server.kill()
