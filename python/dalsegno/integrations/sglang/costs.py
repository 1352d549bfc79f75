"""What is known of SGLang's costs at the start, and who waits for loads."""

from __future__ import annotations

from typing import Any

import sglang
import torch
from sglang.srt import runtime_context

from dalsegno.integrations.common import probe
from dalsegno.integrations.common.deciding import Engine, LoadDecider
from dalsegno.integrations.sglang.pools import PoolPages
from dalsegno.integrations.sglang.settings import HiCacheSettings

# Tokens of a step, if SGLang's option cannot be read.
CHUNK = 8192


def decider(settings: HiCacheSettings, config: Any, pages: PoolPages) -> LoadDecider:
    """Creates what decides for an engine.

    Args:
        settings: Of the backend.
        config: SGLang's `HiCacheStorageConfig`.
        pages: Of the KV pool.
    """
    pool, page_bytes, place = pages.pool, pages.shape.block_bytes, str(settings.path)
    layers = max(1, int(getattr(pool, "layer_num", 1)))
    is_gpu = torch.cuda.is_available()
    kind = {
        "model": str(config.model_name or runtime_context.get_server_args().model_path),
        "engine": f"sglang {sglang.__version__}",
        "device": torch.cuda.get_device_name() if is_gpu else "cpu",
        "block_bytes": str(page_bytes),
        "block_tokens": str(pages.page_tokens),
        "layers": str(layers),
        "ranks": str(config.tp_size * config.pp_size),
        "store": place,
    }
    device = torch.device("cuda") if is_gpu and torch.cuda.is_initialized() else None
    dtype = getattr(pool, "dtype", torch.float32)
    # A cache of bytes is not computed in bytes.
    dtype = dtype if dtype.is_floating_point and dtype.itemsize > 1 else torch.bfloat16
    has_device = device is not None or not is_gpu
    profile = probe.profile(
        settings,
        kind,
        token_bytes=page_bytes / pages.page_tokens,
        is_cpu=not is_gpu,
        policies=("auto",),
        operations=lambda: probe.operations_per_s(dtype, device) if has_device else None,
    )
    engine = Engine(layers, page_bytes, pages.page_tokens, _chunk())
    return LoadDecider(settings, engine, profile)


def _chunk() -> int:
    """Returns how many tokens of a prompt a step computes at most."""
    try:
        schedule = runtime_context.get_schedule()
        sizes = (schedule.chunked_prefill_size, schedule.max_prefill_tokens)
    except (AttributeError, ValueError):
        return CHUNK
    return next((int(size) for size in sizes if size and size > 0), CHUNK)


def nobody_waits() -> bool:
    """Returns whether no request waits for loads: SGLang computes what has not arrived."""
    try:
        return str(runtime_context.get_memory().hicache_storage_prefetch_policy) == "best_effort"
    except (AttributeError, ValueError):
        return False
