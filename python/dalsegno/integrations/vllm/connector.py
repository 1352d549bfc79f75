"""The whole connection with a flat configuration.

    --kv-transfer-config '{"kv_connector": "DalsegnoConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "dalsegno.integrations.vllm",
        "kv_connector_extra_config": {"path": "/var/cache/kv", "capacity": "200GiB",
                                      "cpu_bytes_to_use": "8GiB"}}'

On the tiered path it is vLLM's `OffloadingConnector`, configured: a primary tier in memory,
`DalsegnoTier` behind it, and the identity of the model, which only a connector sees. On the direct
path, making one makes a `DirectConnector`.

1. The flat configuration becomes vLLM's own before vLLM reads it, in every process.
2. Only the scheduler's side establishes the identity; it reads the weights the first time.
3. A load that fails is computed. vLLM's default ends such requests, and vLLM does not record
   whether its user set that: it counts as set where the command line or its file names it.
4. A start that is refused leaves no file in `/dev/shm`.
5. Requests with inputs that vLLM's block hashes do not commit to keep away from the store
   (`inputs.py`). An adapter retrained under the same path would find its old blocks.
6. The tier sees each step once: its begin when vLLM has built it, its end when vLLM takes its
   events. vLLM updates the connector only after steps with reports, but takes events after each.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.logger import init_logger
from vllm.platforms import current_platform

from dalsegno import InvalidError
from dalsegno.integrations.vllm import compat, doors, identity, shared_memory
from dalsegno.integrations.vllm.advice import LoadAdviser
from dalsegno.integrations.vllm.direct import choice
from dalsegno.integrations.vllm.settings import (
    FAIL_WARNING,
    FAILURE_POLICY,
    TIER_TYPE,
    ConnectorSettings,
    check_memory,
    expand,
)
from dalsegno.integrations.vllm.tier import DalsegnoTier

logger = init_logger("vllm.dalsegno")

# A larger file is no configuration of vLLM's.
_CONFIG_BYTES = 1 << 20


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
    current = getattr(transfer, FAILURE_POLICY, "fail")
    setattr(transfer, FAILURE_POLICY, _failure_policy(current, extra))
    tiers: list[dict[str, Any]] = extra["secondary_tiers"]
    return next(tier for tier in tiers if tier["type"] == TIER_TYPE)


def _failure_policy(current: str, extra: dict[str, Any]) -> str:
    """Returns what vLLM does with a request whose load failed: `recompute` unless the user chose.

    Args:
        current: vLLM's setting, `fail` by default.
        extra: `kv_connector_extra_config`.
    """
    chosen = extra.get(FAILURE_POLICY)
    if chosen is None:
        chosen = current if _names_failure_policy(sys.argv[1:]) else "recompute"
    return str(chosen)


def _names_failure_policy(arguments: list[str]) -> bool:
    """Whether a command line, or the configuration file that it names, sets the policy.

    vLLM's processes have the command line of the one that started them.
    """
    for place, argument in enumerate(arguments):
        if FAILURE_POLICY in argument.replace("-", "_"):
            return True
        option, _, value = argument.partition("=")
        if option == "--config":
            try:
                with Path(value or arguments[place + 1]).open("rb") as file:
                    content = file.read(_CONFIG_BYTES)
            except (OSError, IndexError, ValueError):
                continue
            if FAILURE_POLICY.encode() in content.replace(b"-", b"_"):
                return True
    return False


def takes_direct_path(vllm_config: Any, kv_cache_config: Any, settings: ConnectorSettings) -> bool:
    """Returns which path an engine takes; all of its processes choose the same.

    Raises:
        InvalidError: The configuration asks for the direct path, and the engine cannot take it.
    """
    if settings.path_to_engine == "tiered":
        return False
    platform = choice.platform_of(current_platform)
    why = choice.refusal(vllm_config, kv_cache_config, settings, platform)
    if not why:
        return True
    if settings.path_to_engine == "direct":
        raise InvalidError(f'path_to_engine is "direct", which this engine cannot take: {why}')
    logger.info("Dalsegno takes the tiered path, because %s.", why)
    return False


class DalsegnoConnector(OffloadingConnector):  # type: ignore[misc]
    """vLLM's `OffloadingConnector` with a store behind it, or a `DirectConnector`."""

    _adviser: LoadAdviser | None = None

    def __new__(cls, vllm_config: Any = None, role: Any = None, kv_cache_config: Any = None) -> Any:
        """Chooses the path.

        Args:
            vllm_config: vLLM's configuration; its `kv_connector_extra_config` is expanded. None
                makes an object that is not configured.
            role: Scheduler or worker.
            kv_cache_config: vLLM's KV-cache groups.

        Raises:
            InvalidError: The configuration is wrong, or asks for a path that the engine cannot
                take.
            IncompatibleError: The model or the store cannot be used with this version.
        """
        if vllm_config is None:
            return super().__new__(cls)
        configure(vllm_config)
        transfer = vllm_config.kv_transfer_config
        settings = ConnectorSettings.of_extra(transfer.kv_connector_extra_config)
        if not takes_direct_path(vllm_config, kv_cache_config, settings):
            check_memory(transfer.kv_connector_extra_config)
            return super().__new__(cls)
        if role == KVConnectorRole.SCHEDULER:
            known = identity.engine_identity(
                vllm_config, kv_cache_config, settings.weights_fingerprint
            )
            settings = dataclasses.replace(settings, identity=known)
        # Only here: it needs more of vLLM than the tiered path.
        connector = importlib.import_module("dalsegno.integrations.vllm.direct.connector")
        return connector.DirectConnector(vllm_config, role, kv_cache_config, settings)

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
        is_scheduler = role == KVConnectorRole.SCHEDULER
        try:
            tier = configure(vllm_config)
            if is_scheduler:
                tier["identity"] = identity.engine_identity(
                    vllm_config, kv_cache_config, tier.get("weights_fingerprint", "")
                )
            else:
                doors.watch_worker(vllm_config.kv_transfer_config.engine_id)
            super().__init__(vllm_config, role, kv_cache_config)
            for one in compat.secondary_tiers(self):
                if isinstance(one, DalsegnoTier):
                    self._adviser = one.adviser
                    self._adviser.measure(vllm_config, kv_cache_config)
        except BaseException:
            if is_scheduler:
                shared_memory.forget(vllm_config.kv_transfer_config.engine_id)
            raise
        if is_scheduler and vllm_config.kv_transfer_config.kv_load_failure_policy == "fail":
            logger.warning(FAIL_WARNING)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Ends vLLM's scheduling: a step begins."""
        built = super().build_connector_meta(scheduler_output)
        if self._adviser is not None:
            self._adviser.begin_step(scheduler_output)
        return built

    def take_events(self) -> Any:
        """Returns the KV events of a step, which has ended."""
        if self._adviser is not None:
            self._adviser.end_step()
        return super().take_events()

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, *arguments: Any, **options: Any) -> Any:
        """Declares the metrics; vLLM calls it in the process of its API server."""
        configure(vllm_config)
        return super().build_prom_metrics(vllm_config, *arguments, **options)
