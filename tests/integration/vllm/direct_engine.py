"""An engine that is asked, and loses its own caches in between (`processes.Program`)."""

from __future__ import annotations

import json
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dalsegno.integrations.vllm import demo_engine


def run(spec: dict[str, Any], orders: Connection, answers: Connection) -> None:
    """Runs the engine.

    Args:
        spec: `model`, `document` (a file), `steps` and `context_tokens`; `kv_transfer_config` and
            `options` of the engine if given. A step is a list of questions that are asked at the
            same time, or nothing: then vLLM forgets the prompts that it has in its own cache.
        orders: Not used.
        answers: Takes one record for each question.
    """
    del orders
    engine = demo_engine.Engine(
        spec["model"],
        Path(spec["document"]).read_text(encoding="utf-8"),
        spec.get("kv_transfer_config"),
        max_model_len=spec["context_tokens"],
        **spec.get("options", {}),
    )
    for questions in spec["steps"]:
        if not questions:
            assert engine.llm.reset_prefix_cache()
        for question in questions:
            answers.send_bytes(json.dumps(engine.ask(question)).encode())
    engine.close()
