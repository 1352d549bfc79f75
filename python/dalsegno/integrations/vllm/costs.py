"""What decides for an engine of vLLM which blocks are worth loading, with its profile."""

from __future__ import annotations

from typing import Any

import torch
import vllm
from vllm.platforms import current_platform

from dalsegno.integrations.common import probe
from dalsegno.integrations.common.deciding import Engine, LoadDecider
from dalsegno.integrations.common.settings import StoreSettings
from dalsegno.integrations.vllm.direct import choice


def create_decider(
    settings: StoreSettings,
    vllm_config: Any,
    engine: Engine,
    token_bytes: float,
    store: str,
    **further: str,
) -> LoadDecider:
    """Creates what decides for an engine; costs that nobody has learned are measured shortly.

    Args:
        settings: The policy.
        vllm_config: vLLM's configuration.
        engine: What the engine computes and loads.
        token_bytes: Bytes of a token in the KV cache of one worker.
        store: The directory of the store, or the socket of its server.
        **further: What else makes engines of one kind.
    """
    platform, model = choice.platform_of(current_platform), vllm_config.model_config
    kind = {
        "model": str(getattr(model, "model", "")),
        "engine": f"vllm {vllm.__version__}",
        "device": _device(platform),
        "block_bytes": str(engine.block_bytes),
        "block_tokens": str(engine.block_tokens),
        "layers": str(engine.layers),
        "ranks": str(vllm_config.parallel_config.world_size),
        "store": store,
        **further,
    }
    is_cpu, gpu = platform is choice.Platform.CPU, _gpu(platform)
    # The scheduler's process may not use the GPU that computes.
    has_device = is_cpu or gpu is not None
    profile = probe.profile(
        settings,
        kind,
        token_bytes=token_bytes,
        is_cpu=is_cpu,
        policies=("auto", "always"),
        operations=lambda: probe.operations_per_s(model.dtype, gpu) if has_device else None,
    )
    return LoadDecider(settings, engine, profile)


def _device(platform: choice.Platform) -> str:
    if platform is choice.Platform.CPU:
        return "cpu"
    return str(current_platform.get_device_name())


def _gpu(platform: choice.Platform) -> Any:
    """Returns the GPU that computes, if this process uses it; else None."""
    uses_it = platform is choice.Platform.NVIDIA and torch.cuda.is_initialized()
    return torch.device("cuda") if uses_it else None
