"""What decides for an engine of vLLM which blocks are worth loading, with its profile."""

from __future__ import annotations

from typing import Any

import torch
import vllm
from vllm.platforms import current_platform

from dalsegno import profiles
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
    place = profiles.folder() if settings.keep_profile else None
    is_known = bool(profiles.known_of(kind, profiles.path_of(kind, place)))
    is_probed = settings.load_policy != "never" and not is_known
    prior = profiles.ComputePrior.of_shape(
        engine.layers,
        token_bytes,
        is_cpu=platform is choice.Platform.CPU,
        operations_per_s=(
            probe.operations_per_s(model.dtype, _gpu(platform)) if is_probed else None
        ),
    )
    tiers = probe.tiers(store) if is_probed else {}
    return LoadDecider(settings, engine, profiles.Profile(kind, prior, place, tiers))


def _device(platform: choice.Platform) -> str:
    if platform is choice.Platform.CPU:
        return "cpu"
    return str(current_platform.get_device_name())


def _gpu(platform: choice.Platform) -> Any:
    """Returns the GPU that computes, if this process uses it; else None."""
    uses_it = platform is choice.Platform.NVIDIA and torch.cuda.is_initialized()
    return torch.device("cuda") if uses_it else None
