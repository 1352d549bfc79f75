"""The whole connection with a flat configuration.

    --kv-transfer-config '{"kv_connector": "DalsegnoConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "dalsegno.integrations.vllm",
        "kv_connector_extra_config": {"path": "/var/cache/kv", "capacity": "200GiB",
                                      "cpu_bytes_to_use": "8GiB"}}'

It is vLLM's `OffloadingConnector`, configured: a primary tier in memory, `DalsegnoTier` behind it,
and the identity of the model, which only a connector sees.

1. The flat configuration becomes vLLM's own before vLLM reads it, in every process.
2. Only the scheduler's side establishes the identity; it reads the weights the first time.
3. Requests with inputs that vLLM's block hashes do not commit to keep away from the store
   (`inputs.py`). An adapter retrained under the same path would find its old blocks.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.logger import init_logger
from vllm.platforms import current_platform

from dalsegno.integrations.vllm import doors, identity
from dalsegno.integrations.vllm.settings import TIER_TYPE, expand

logger = init_logger("vllm.dalsegno")


def configure(vllm_config: Any) -> dict[str, Any]:
    """Turns the flat configuration into vLLM's own, in place.

    Args:
        vllm_config: vLLM's configuration; a second call changes nothing.

    Returns:
        The configuration of the tier.

    Raises:
        InvalidError: A key is unknown or missing, or a value is not allowed.
    """
    transfer = vllm_config.kv_transfer_config
    extra = expand(transfer.kv_connector_extra_config, on_cpu=current_platform.is_cpu())
    transfer.kv_connector_extra_config = extra
    tiers: list[dict[str, Any]] = extra["secondary_tiers"]
    return next(tier for tier in tiers if tier["type"] == TIER_TYPE)


class DalsegnoConnector(OffloadingConnector):  # type: ignore[misc]
    """vLLM's `OffloadingConnector` with a store behind it."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        """Configures vLLM's connector.

        Args:
            vllm_config: vLLM's configuration; its `kv_connector_extra_config` is expanded.
            role: Scheduler or worker.
            kv_cache_config: vLLM's KV-cache groups.

        Raises:
            InvalidError: The configuration is wrong.
            IncompatibleError: The model or the store cannot be used with this version.
        """
        tier = configure(vllm_config)
        if role == KVConnectorRole.SCHEDULER:
            tier["identity"] = identity.engine_identity(
                vllm_config, kv_cache_config, tier.get("weights_fingerprint", "")
            )
        else:
            doors.watch_worker(vllm_config.kv_transfer_config.engine_id)
        super().__init__(vllm_config, role, kv_cache_config)

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, *arguments: Any, **options: Any) -> Any:
        """Declares the metrics; vLLM calls it in the process of its API server."""
        configure(vllm_config)
        return super().build_prom_metrics(vllm_config, *arguments, **options)
