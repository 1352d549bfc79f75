"""What every engine imports; the process that engines are forked from imports it once.

It computes nothing: threads of torch would be missing in a fork.
"""

from __future__ import annotations

import contextlib
import importlib
import os

from dalsegno.integrations.vllm import demo_engine

os.environ.update(demo_engine.ENVIRONMENT)
for name in (
    "vllm",
    "vllm.entrypoints.llm",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector",
    "dalsegno.integrations.vllm.connector",
    "dalsegno.integrations.vllm.spec",
    "dalsegno.integrations.vllm.tier",
):
    # A version may have it elsewhere. Then the engine imports it, or says what is wrong.
    with contextlib.suppress(Exception):
        importlib.import_module(name)
