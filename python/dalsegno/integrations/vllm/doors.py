"""Finds the doors of vLLM while it runs: the calls that can change the weights of an engine.

`tools/vllm_doors.py` lists the doors of each version in `tools/vllm_doors.json`. The
engine's own ways all lead through one call in the scheduler's process, `Executor.collective_rpc`.
Programs that hold a worker or a model call it directly, in the worker's process.

1. In the scheduler's process, a `collective_rpc` of anything but `HARMLESS` is a door. A method
   that a later vLLM adds is one, and so is one of the user's.
2. In the process of a worker, the methods `DOORS` of workers, model runners, weight transfer
   engines, loaders and models are doors. A worker reports them by a datagram (`door_line.py`).
3. A door is reported before it opens and after it is closed.
4. After a door, `reset_prefix_cache` also resets the connector, whose memory tier has old blocks.
5. Classes are changed once per process, and calls of engines without Dalsegno pass through.
6. A class that a version lacks makes the epoch begin as `MIXED`.
"""

from __future__ import annotations

import functools
import importlib
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any

from vllm.logger import init_logger

from dalsegno.integrations.common.opening import Backend
from dalsegno.integrations.vllm import door_line
from dalsegno.integrations.vllm.epoch import Epoch, GuardedBackend, State

logger = init_logger("vllm.dalsegno")

# Methods of workers that neither change weights nor hand out the model.
HARMLESS = frozenset(
    {
        "add_lora",
        "check_health",
        "compile_or_warm_up_model",
        "compute_weight_checksums",
        "determine_available_memory",
        "execute_dummy_batch",
        "execute_model",
        "get_cache_block_size_bytes",
        "get_compilation_match_table",
        "get_encoder_timing_stats",
        "get_kv_cache_spec",
        "get_kv_connector_handshake_metadata",
        "get_model_inspection",
        "get_simple_cpu_offload_num_cpu_blocks",
        "get_supported_kv_cache_layouts",
        "get_supported_tasks",
        "list_loras",
        "pin_lora",
        "profile",
        "release_late_interaction_query_cache",
        "remove_lora",
        "reset_encoder_cache",
        "reset_mm_cache",
        "sample_tokens",
        "save_sharded_state",
        "save_tensorized_model",
        "set_kv_cache_layout",
        "shutdown",
        "supports_draft_weight_updates",
        "synchronize_device",
        "take_draft_token_ids",
    }
)
# Methods in a worker's process that change weights, or hand the model to a function.
DOORS = frozenset(
    {
        "apply_model",
        "checkpoint_restore",
        "discard",
        "elastic_ep_execute",
        "finish_weight_update",
        "handle_ft_command",
        "init_transfer_engine",
        "init_weight_transfer_engine",
        "load_model",
        "load_weights",
        "prepare_new_worker",
        "prepare_reconfiguration",
        "receive_weights",
        "reload_weights",
        "reset_weight_update_target",
        "reset_weights",
        "set_weight_update_target",
        "shutdown_weight_transfer_engine",
        "sleep",
        "start_draft_weight_update",
        "start_weight_update",
        "transfer_weights",
        "update_config",
        "update_weights",
        "wake_up",
    }
)
_EXECUTOR = ("vllm.v1.executor.abstract", "Executor")
_SCHEDULER = ("vllm.v1.core.sched.interface", "SchedulerInterface")
# Classes whose methods are doors in a worker's process, as far as that process has loaded them.
_WORKER_CLASSES = (
    ("vllm.distributed.elastic_ep.elastic_execute", "ElasticEPScalingExecutor"),
    ("vllm.distributed.weight_transfer.base", "WeightTransferEngine"),
    ("vllm.model_executor.model_loader.base_loader", "BaseModelLoader"),
    ("vllm.v1.worker.gpu.model_runner", "GPUModelRunner"),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner"),
    ("vllm.v1.worker.worker_base", "WorkerBase"),
)
_MODEL = ("torch.nn", "Module")
_OURS = "_dalsegno_door"


class _Process:
    """What this process knows.

    Attributes:
        epochs: Those of the tiers in this process.
        engines: Engines of which this process has a worker.
        nested: The depth of doors that are open, by thread.
    """

    def __init__(self) -> None:
        self.epochs: weakref.WeakSet[Epoch] = weakref.WeakSet()
        self.engines: set[str] = set()
        self.nested = threading.local()


_process = _Process()


def guard(backend: Backend, engine_id: str, on_mixed: Callable[[], None]) -> GuardedBackend:
    """Guards a tier's backend against changes of the weights.

    Args:
        backend: The backend of a tier in the scheduler's process.
        engine_id: vLLM's name of the engine.
        on_mixed: Called when nothing may be loaded or stored any more; must not raise.
    """
    epoch = Epoch(engine_id, on_mixed)
    watch_scheduler(epoch)
    return GuardedBackend(backend, epoch)


def watch_scheduler(epoch: Epoch) -> None:
    """Reports doors and resets of this process to an epoch, as long as it lives. Never raises."""
    try:
        schedulers, executors = _family(_SCHEDULER), _family(_EXECUTOR)
        wrapped = [
            _wrap(executors, {"collective_rpc"}, _rpc),
            _wrap(schedulers, {"reset_prefix_cache"}, _reset),
            _wrap(schedulers, {"schedule"}, _schedule),
        ]
    except Exception as error:  # noqa: BLE001 - an engine runs on without shared blocks
        epoch.refuse(f"this version of vLLM is unknown ({error})")
        return
    if not all(wrapped):
        epoch.refuse("this version of vLLM lacks collective_rpc, reset_prefix_cache or schedule")
    _process.epochs.add(epoch)


def watch_worker(engine_id: str) -> None:
    """Reports the doors of a worker in this process to its scheduler. Never raises."""
    try:
        for place in _WORKER_CLASSES:
            # What the process has not loaded has no object here.
            if place[0] in sys.modules:
                _wrap(_family(place), DOORS, _door)
        _wrap(_family(_MODEL), {"load_weights"}, _door)
    except Exception as error:  # noqa: BLE001 - the scheduler sees what vLLM does itself
        logger.warning(
            "Dalsegno cannot see direct calls that change the weights of this worker: %s. Call "
            "reset_prefix_cache(reset_connector=True) after each.",
            error,
        )
    # Later changes of `TMPDIR` in this process do not matter.
    tempfile.gettempdir()
    _process.engines.add(engine_id)


def _family(place: tuple[str, str]) -> list[type]:
    """Returns a class and everything derived from it in this process."""
    found, queue = dict[type, None](), [getattr(importlib.import_module(place[0]), place[1])]
    while queue:
        one = queue.pop()
        if one not in found:
            found[one] = None
            queue += type.__subclasses__(one)
    return list(found)


def _wrap(
    classes: Iterable[type],
    names: Iterable[str],
    around: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> int:
    """Wraps the methods that the classes define themselves; returns how many are wrapped."""
    count = 0
    for one in classes:
        for name in names:
            method = vars(one).get(name)
            if not isinstance(method, FunctionType):
                continue
            count += 1
            if not hasattr(method, _OURS):
                wrapper = functools.wraps(method)(around(method))
                setattr(wrapper, _OURS, True)
                setattr(one, name, wrapper)
    return count


def _rpc(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Executor.collective_rpc`."""

    def collective_rpc(self: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(method, str) and method in HARMLESS:
            return call(self, method, *args, **kwargs)
        name = method if isinstance(method, str) else getattr(method, "__name__", "a function")
        return _through(f"collective_rpc({name})", lambda: call(self, method, *args, **kwargs))

    return collective_rpc


def _door(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method that is a door in a worker's process."""

    def door(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = f"{type(self).__name__}.{getattr(call, '__name__', 'a method')}"
        return _through(name, lambda: call(self, *args, **kwargs))

    return door


def _through(name: str, call: Callable[[], Any]) -> Any:
    """Makes a call that is a door; the outermost of nested doors is reported."""
    depth = getattr(_process.nested, "depth", 0)
    _process.nested.depth = depth + 1
    try:
        if depth == 0:
            _report(name)
        return call()
    finally:
        _process.nested.depth = depth
        if depth == 0:
            _report(name)


def _report(name: str) -> None:
    """Reports a door to the tiers of this process, and to the engines of its workers."""
    here = list(_process.epochs)
    for epoch in here:
        epoch.open_door(name)
    for engine_id in _process.engines - {epoch.engine_id for epoch in here}:
        if not door_line.send(engine_id, name):
            logger.warning(
                "Dalsegno: %s may have changed the weights of this worker, and its scheduler "
                "cannot be reached: it is on another host, or has another folder for temporary "
                "files. Call reset_prefix_cache(reset_connector=True).",
                name,
            )


def _reset(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `reset_prefix_cache` of the scheduler."""

    def reset_prefix_cache(self: Any, *args: Any, **kwargs: Any) -> Any:
        concerned = {epoch: epoch.drains for epoch in _epochs_of(self)}
        done = call(self, *args, **kwargs)
        for epoch, drains in concerned.items():
            if epoch.drains == drains and epoch.state is State.MIXED:
                _reset_connector(self)
            if done and epoch.drains > drains:
                epoch.note_reset()
        return done

    return reset_prefix_cache


def _schedule(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `schedule`: a step that computes tokens fills the caches."""

    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = call(self, *args, **kwargs)
        if getattr(output, "total_num_scheduled_tokens", 1):
            for epoch in _epochs_of(self):
                epoch.note_use()
        return output

    return schedule


def _reset_connector(scheduler: Any) -> None:
    """Resets the connector as `reset_prefix_cache(reset_connector=True)` does. Never raises."""
    try:
        scheduler.reset_connector_cache()
    except Exception as error:  # noqa: BLE001 - vLLM's own reset succeeded
        logger.warning(
            "Dalsegno cannot reset vLLM's memory tier after the weights were updated: %s. Nothing "
            "is loaded or stored until a reset succeeds.",
            error,
        )


def _epochs_of(scheduler: Any) -> Iterator[Epoch]:
    """Yields the epochs of a scheduler's tiers."""
    transfer = getattr(getattr(scheduler, "vllm_config", None), "kv_transfer_config", None)
    engine_id = getattr(transfer, "engine_id", None)
    for epoch in list(_process.epochs):
        if epoch.engine_id == engine_id:
            yield epoch
