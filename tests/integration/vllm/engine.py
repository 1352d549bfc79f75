"""The demo's engine with several questions, in a process of its own.

``python -m tests.integration.vllm.engine SPEC`` prints a line of JSON before each question and one
with each answer. With ``waits`` it reads a line before each question. SPEC is JSON; its keys are in
:func:`main`. vLLM's messages go to ``log_file``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from dalsegno.integrations.vllm import demo_engine


def main() -> None:
    """Runs the command line."""
    spec: dict[str, Any] = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # vLLM and the libraries below it write to the descriptors themselves.
    log = os.open(spec["log_file"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    engine = demo_engine.Engine(
        spec["model"],
        Path(spec["document"]).read_text(encoding="utf-8"),
        spec.get("kv_transfer_config"),
        max_model_len=spec["context_tokens"],
        **spec.get("options", {}),
    )
    for question in spec["questions"]:
        if spec.get("waits"):
            print(json.dumps({"stage": "waiting"}), file=answers, flush=True)
            sys.stdin.readline()
        print(json.dumps({"stage": "reading and answering"}), file=answers, flush=True)
        answer = engine.ask(question, spec.get("max_tokens", demo_engine.ANSWER_TOKENS))
        print(json.dumps(answer), file=answers, flush=True)
    engine.close()


if __name__ == "__main__":
    main()
