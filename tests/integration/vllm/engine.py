"""The demo's engine with several questions, for a process of its own (`processes.Program`).

It answers with a record before each question and one for each answer. With ``waits`` in its spec it
waits for an order before each question.
"""

from __future__ import annotations

import json
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dalsegno.integrations.vllm import demo_engine


def run(spec: dict[str, Any], orders: Connection, answers: Connection) -> None:
    """Runs the engine until its questions are answered.

    Args:
        spec: `model`, `document` (a file), `questions` and `context_tokens`; `kv_transfer_config`,
            `options` of the engine, `max_tokens` of an answer and `waits` if given.
        orders: Gives what lets it continue.
        answers: Takes the records.
    """
    engine = demo_engine.Engine(
        spec["model"],
        Path(spec["document"]).read_text(encoding="utf-8"),
        spec.get("kv_transfer_config"),
        max_model_len=spec["context_tokens"],
        **spec.get("options", {}),
    )

    def report(record: dict[str, Any]) -> None:
        answers.send_bytes(json.dumps(record).encode())

    for question in spec["questions"]:
        if spec.get("waits"):
            orders.recv_bytes()
        report({"stage": "reading and answering"})
        report(engine.ask(question, spec.get("max_tokens", demo_engine.ANSWER_TOKENS)))
    engine.close()
