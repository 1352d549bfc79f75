"""vLLM's scheduler, with requests that jump over blocks that were loaded while they computed.

Name it where vLLM cannot be given it: `--scheduler-cls dalsegno.integrations.vllm.make_scheduler`.

1. A request jumps before a step is scheduled, so that its blocks, tokens and positions follow. It
   stays where it is in vLLM's queue.
2. vLLM's second model runner counts the tokens of its requests itself. A request that jumped, or
   must compute again what a load inside a step has not brought, is sent to it again as a new one,
   as vLLM does after a preemption.
3. A version whose hooks differ from those that are known is served by vLLM's own scheduler.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from dalsegno.integrations.vllm import compat

NAME = "dalsegno.integrations.vllm.make_scheduler"
# The columns of what vLLM sends of known requests, one place for each of them.
_COLUMNS = ("req_ids", "new_block_ids", "num_computed_tokens", "num_output_tokens")
# What is used of vLLM that it does not promise: classes, their methods, and arguments of these.
_HOOKS: tuple[tuple[type[Any], str, tuple[str, ...]], ...] = (
    (Scheduler, "schedule", ()),
    (
        Scheduler,
        "_reserve_prefill_lookahead",
        ("request", "num_computed_tokens", "num_new_tokens"),
    ),
    (Scheduler, "_update_requests_with_invalid_blocks", ()),
    (KVCacheManager, "allocate_slots", ("request", "num_new_tokens", "delay_cache_blocks")),
    (KVCacheManager, "get_block_ids", ("request_id",)),
    (NewRequestData, "from_request", ("request", "block_ids")),
)


def unknown_hook() -> str:
    """Returns which hook of this version of vLLM is not as it is known; empty if all are."""
    for owner, name, arguments in _HOOKS:
        hook = getattr(owner, name, None)
        if hook is None or not set(arguments) <= set(inspect.signature(hook).parameters):
            return f"{owner.__name__}.{name}"
    columns = {column.name for column in dataclasses.fields(CachedRequestData)}
    return "" if set(_COLUMNS) <= columns else CachedRequestData.__name__


class JumpingScheduler(Scheduler):  # type: ignore[misc]
    """vLLM's scheduler, whose requests may jump."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Joins the connector, if it is one of ours."""
        super().__init__(*arguments, **options)
        self._sent_again: set[str] = set()
        jumper = _jumper_of(self.connector)
        # Without jumps it is vLLM's scheduler, and nothing else.
        has_joined = jumper is not None and jumper.join(self.kv_cache_manager)
        self._jumper = jumper if has_joined else None

    def schedule(self, *arguments: Any, **options: Any) -> Any:
        """Lets requests jump, and schedules a step."""
        for jump in self._jumper.jumps() if self._jumper is not None else ():
            self._jump(jump.state.request, jump.tokens)
        output = super().schedule(*arguments, **options)
        if self._sent_again:
            self._send_again(output)
        return output

    @property
    def _runner_counts(self) -> bool:
        """Whether the model runner counts tokens itself."""
        return bool(getattr(self, "use_v2_model_runner", False))

    def _jump(self, request: Any, tokens: int) -> None:
        """Lets a request go on behind so many tokens."""
        if request.status != RequestStatus.RUNNING:
            return
        before, request.num_computed_tokens = request.num_computed_tokens, tokens
        if (stats := getattr(request, "prefill_stats", None)) is not None:
            local, prompt = stats.num_local_cached_tokens, stats.num_prompt_tokens
            external = stats.num_external_cached_tokens + tokens - before
            stats.set(prompt, local, min(external, prompt - local))
        self._count_hits(request, tokens - before)
        if self._runner_counts:
            self._sent_again.add(request.request_id)

    def _count_hits(self, request: Any, tokens: int) -> None:
        """Counts tokens as vLLM counts those that a connector has promised."""
        stats = getattr(self, "connector_prefix_cache_stats", None)
        if stats is None or request.num_preemptions:
            return
        stats.hits += tokens
        if (source := compat.host_hits()) is not None:
            stats.hits_by_source[source] = stats.hits_by_source.get(source, 0) + tokens

    def _send_again(self, output: Any) -> None:
        """Sends requests as new ones whose computed tokens have changed."""
        known = output.scheduled_cached_reqs
        self._sent_again -= {new.req_id for new in output.scheduled_new_reqs}
        for request_id in list(self._sent_again):
            request = self.requests.get(request_id)
            if request is None or request.status != RequestStatus.RUNNING:
                # Gone, or it will be resumed: that sends it again.
                self._sent_again.discard(request_id)
            elif request_id in known.req_ids:
                at = known.req_ids.index(request_id)
                data = compat.new_request_data(
                    request,
                    self.kv_cache_manager.get_block_ids(request_id),
                    known.num_computed_tokens[at],
                )
                output.scheduled_new_reqs.append(data)
                for column in _COLUMNS:
                    del getattr(known, column)[at]
                self._sent_again.discard(request_id)

    def _update_requests_with_invalid_blocks(self, *arguments: Any, **options: Any) -> Any:
        """Takes tokens of requests back whose blocks were not loaded."""
        found = super()._update_requests_with_invalid_blocks(*arguments, **options)
        affected, *_ = found
        if self._jumper is not None and self._runner_counts:
            self._sent_again |= affected & {request.request_id for request in self.running}
        return found

    def _reserve_prefill_lookahead(
        self, request: Any, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        """Ends a chunk where the back will be."""
        if self._jumper is not None:
            request_id = request.request_id
            num_new_tokens = self._jumper.chunk(request_id, num_computed_tokens, num_new_tokens)
        tokens: int = super()._reserve_prefill_lookahead(
            request, num_computed_tokens, num_new_tokens
        )
        return tokens


class JumpingAsyncScheduler(JumpingScheduler, AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler, whose requests may jump."""


def _jumper_of(connector: Any) -> Any:
    """Returns a connector if it lets requests jump; else None."""
    return connector if hasattr(connector, "jumps") else None


def scheduler_class(vllm_config: Any) -> type[Any]:
    """Returns the class that vLLM would take itself, with requests that jump if that is possible.

    Args:
        vllm_config: vLLM's configuration.
    """
    is_async = vllm_config.scheduler_config.async_scheduling
    own: type[Any] = AsyncScheduler if is_async else Scheduler
    if unknown_hook():
        return own
    return JumpingAsyncScheduler if is_async else JumpingScheduler


def make_scheduler(vllm_config: Any, **options: Any) -> Any:
    """Makes the scheduler of an engine; vLLM calls it as `scheduler_cls`."""
    return scheduler_class(vllm_config)(vllm_config=vllm_config, **options)


def install(vllm_config: Any) -> None:
    """Lets an engine make our scheduler, if it has not made one and its user gave none.

    Args:
        vllm_config: vLLM's configuration, the object that its engine reads.
    """
    config = vllm_config.scheduler_config
    if config.scheduler_cls is None:
        config.scheduler_cls = make_scheduler


def refusal() -> str:
    """Returns why an engine whose requests may jump has a scheduler that lets none."""
    if hook := unknown_hook():
        return f"this version of vLLM has another {hook} than is known"
    return f"its scheduler is not {NAME} (--scheduler-cls)"
