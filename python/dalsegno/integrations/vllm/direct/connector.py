"""vLLM's `KVConnectorBase_V1` on the direct path.

vLLM makes one for its scheduler and one for each worker; each calls only the methods of its half.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA
from vllm.logger import init_logger
from vllm.platforms import current_platform

from dalsegno.integrations.vllm import compat, doors, scheduling
from dalsegno.integrations.vllm.direct import choice
from dalsegno.integrations.vllm.direct.both_ends import Jump
from dalsegno.integrations.vllm.direct.scheduler import DirectScheduler
from dalsegno.integrations.vllm.direct.step import StepPlan
from dalsegno.integrations.vllm.direct.worker import DirectWorker
from dalsegno.integrations.vllm.settings import ConnectorSettings

logger = init_logger("vllm.dalsegno")


class DirectConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """A store whose blocks are copied directly into vLLM's KV cache."""

    _cache_hit_source = compat.host_hits()

    def __init__(
        self, vllm_config: Any, role: Any, kv_cache_config: Any, settings: ConnectorSettings
    ) -> None:
        """Opens the store, or waits for vLLM's KV cache.

        Args:
            vllm_config: vLLM's configuration.
            role: Scheduler or worker.
            kv_cache_config: vLLM's KV-cache groups.
            settings: Of the connector, with the identity for a scheduler.

        Raises:
            InvalidError: The configuration is wrong.
            IncompatibleError: The model or the store cannot be used with this version.
        """
        super().__init__(vllm_config, role, kv_cache_config)
        config = compat.offloading_config(vllm_config, kv_cache_config)
        self._handled: BaseException | None = None
        self._scheduler: DirectScheduler | None = None
        self._worker: DirectWorker | None = None
        platform = choice.platform_of(current_platform)
        self._no_jumps = choice.jump_refusal(vllm_config, settings, platform)
        self._has_planned = False
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = DirectScheduler(settings, config, vllm_config)
        else:
            doors.watch_worker(vllm_config.kv_transfer_config.engine_id)
            if not self._no_jumps:
                # Where vLLM makes its scheduler in this process, it does so later.
                scheduling.install(vllm_config)
            self._worker = DirectWorker(
                config, kv_cache_config.num_blocks, settings.store_timeout_s
            )

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache may drop what it was given."""
        return False

    @property
    def _schedules(self) -> DirectScheduler:
        """The scheduler's half."""
        assert self._scheduler is not None, "vLLM calls this in its scheduler"
        return self._scheduler

    @property
    def _works(self) -> DirectWorker:
        """The worker's half."""
        assert self._worker is not None, "vLLM calls this in a worker"
        return self._worker

    # The worker's half.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Takes vLLM's KV cache."""
        self._works.register(kv_caches)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """Begins a step."""
        super().bind_connector_metadata(connector_metadata)
        # A caller of vLLM may be handling an exception of its own.
        self._handled = sys.exc_info()[1]
        assert isinstance(connector_metadata, StepPlan)
        self._works.begin_step(connector_metadata)

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """Waits for the saves of blocks that were given to others."""
        if kv_connector_metadata.must_drain:
            self._works.drain()

    def start_load_kv(self, forward_context: Any, **_: Any) -> None:
        """Starts the loads of the step."""
        self._works.start_loads(hooks_run=compat.calls_layer_hooks(forward_context))

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Waits until a layer is there."""
        self._works.wait_for_layer(layer_name)

    def save_kv_layer(self, layer_name: str, *_: Any, **__: Any) -> None:
        """Starts to save a layer."""
        self._works.save_layer(layer_name)

    def wait_for_save(self) -> None:
        """Ends the step's loads, and starts saves of layers that no hook has started."""
        # vLLM calls it in a `finally`.
        self._works.end_step(is_aborted=sys.exc_info()[1] is not self._handled)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        """Returns no request whose blocks were sent, and those whose loads have ended."""
        del finished_req_ids
        return set(), self._works.finished()

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Returns the blocks to compute again."""
        return self._works.take_invalid()

    def build_connector_worker_meta(self) -> Any:
        """Returns what the scheduler's half learns of the step."""
        return None if self._worker is None else self._worker.take_report()

    # The scheduler's half.

    def on_new_request(self, request: Any) -> None:
        """Starts to remember a request."""
        self._schedules.on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Returns how many tokens can be loaded, and whether the request waits for them."""
        return self._schedules.matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plans a load into the blocks of a request."""
        # One list for each KV-cache group: there is one.
        (pages,) = blocks.get_block_ids() if num_external_tokens else ([],)
        self._schedules.allocated(request, list(pages), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepPlan:
        """Returns what the step loads and saves."""
        if not self._has_planned:
            self._has_planned = True
            self._log_jumps()
        return self._schedules.plan(scheduler_output)

    def _log_jumps(self) -> None:
        """Logs why prompts are loaded or computed, not both at the same time, if that is so."""
        if self._no_jumps or not self._schedules.both_ends.is_possible:
            logger.info(
                "Dalsegno loads or computes a prompt, not both at the same time: %s.",
                self._no_jumps or scheduling.refusal(),
            )

    def update_connector_output(self, connector_output: Any) -> None:
        """Takes what the workers report."""
        self._schedules.update(connector_output)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """Forgets a request. vLLM may give its blocks away at once."""
        del block_ids
        self._schedules.finished(request)
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """As `request_finished`: there is one group."""
        return self.request_finished(request, block_ids)

    def has_pending_push_work(self) -> bool:
        """Whether vLLM must keep stepping."""
        return self._schedules.has_work()

    def reset_cache(self) -> bool:
        """Forgets every block."""
        self._schedules.reset()
        return True

    def join(self, kv_cache_manager: Any) -> bool:
        """Notes that a scheduler of ours runs; returns whether requests may jump."""
        if self._no_jumps:
            return False
        self._schedules.both_ends.join(kv_cache_manager)
        return True

    def jumps(self) -> list[Jump]:
        """Returns the requests that go on behind blocks that were loaded meanwhile."""
        return self._schedules.jumps()

    def chunk(self, request_id: str, computed: int, most: int) -> int:
        """Returns how many tokens of a request a step computes, of so many that it could."""
        return self._schedules.both_ends.chunk(request_id, computed, most)

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Takes vLLM's own cache."""
        if self._scheduler is not None:
            self._scheduler.bind(kv_cache_manager)

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Takes vLLM's own blocks, in versions that offer no more than these."""
        if self._scheduler is not None:
            self._scheduler.bind(gpu_block_pool)

    def take_events(self) -> Iterable[Any]:
        """Returns the KV events of this step."""
        return () if self._scheduler is None else self._scheduler.take_events()

    def get_kv_connector_stats(self) -> Any:
        """Returns what the scheduler's half has counted."""
        return None if self._scheduler is None else self._scheduler.take_stats()

    def shutdown(self) -> None:
        """Waits for what is under way, and closes the store."""
        if self._worker is not None:
            self._worker.close()
        if self._scheduler is not None:
            self._scheduler.close()
