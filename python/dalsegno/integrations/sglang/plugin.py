"""What SGLang loads when it starts, by the entry point `sglang.srt.plugins`.

* The backend is found by its name: `{"backend_name": "dalsegno", "path": "..."}` is a whole extra
  configuration for `--hicache-storage-backend dynamic`.
* When weights are updated in a running server, SGLang empties its own caches but leaves storage as
  it is, so that pages of the old weights would be found again. From here on it does not: the
  backends of the process move to namespaces that no other has.
* The steps of SGLang's scheduler are measured (`steps.py`).

1. All go through SGLang's own registry of hooks, and nothing else of SGLang is changed.
2. `register` may be called any number of times.
3. A process whose weights were updated once never uses pages of its model's files again, whenever
   a backend is attached.
4. After SGLang's caches were emptied, no page is found that was computed with earlier weights: an
   update may leave them full, and what is in them is stored after it.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from dalsegno.integrations.common import file_times
from dalsegno.integrations.sglang import steps
from dalsegno.integrations.sglang.settings import CLASS, MODULE, NAME

logger = logging.getLogger("sglang.dalsegno")

_FACTORY = "sglang.srt.mem_cache.storage.backend_factory.StorageBackendFactory.create_backend"
_UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
_RESET = "sglang.srt.managers.cache_controller.HiCacheController.reset"
# Between begin and end the weights may also be written from outside. Memory that was released comes
# back without its content.
_UPDATES = (
    "begin_weight_update",
    "end_weight_update",
    "release_memory_occupation",
    "resume_memory_occupation",
    "update_weights_from_disk",
    "update_weights_from_distributed",
    "update_weights_from_ipc",
    "update_weights_from_tensor",
)
# A check may also fill the weights with random numbers; these only read them.
_CHECK = "check_weights"
_HARMLESS = ("checksum", "compare", "snapshot")


class Renewable(Protocol):
    """A backend whose pages may have become those of other weights."""

    def renew(self) -> None:
        """Forgets every page that was stored before."""


class _State:
    """What this process has seen.

    Attributes:
        registered: Whether the hooks are known to SGLang.
        updated: Whether the weights may be others than those of the model's files.
        mixed: Whether SGLang's caches may hold pages of the weights before an update.
        backends: The backends in use.
    """

    def __init__(self) -> None:
        self.registered = self.updated = self.mixed = False
        self.backends: weakref.WeakSet[Any] = weakref.WeakSet()

    def renew(self) -> None:
        """Has every backend forget what was stored before."""
        for backend in list(self.backends):
            backend.renew()


_state = _State()


def register() -> None:
    """Registers the hooks; SGLang applies them when all plugins are loaded."""
    file_times.announce_start()
    if _state.registered:
        return
    _state.registered = True
    HookRegistry.register(_FACTORY, name_backend, HookType.BEFORE)
    for name in _UPDATES:
        HookRegistry.register(f"{_UPDATER}.{name}", _renew_after_update, HookType.AROUND)
    HookRegistry.register(f"{_UPDATER}.{_CHECK}", _renew_after_check, HookType.AROUND)
    HookRegistry.register(_RESET, _renew_after_reset, HookType.AFTER)
    steps.register()


def watch(backend: Renewable) -> None:
    """Has a backend renewed after every update of the weights, as long as it lives."""
    if not _state.registered:
        logger.warning(
            "Dalsegno's plugin was not loaded when SGLang started (is SGLANG_PLUGINS set without "
            "it?): if the weights are updated in the running server, clear the storage backend."
        )
        register()
        HookRegistry.apply_hooks()
    elif not steps.are_seen() and steps.register():
        # The scheduler was imported after the plugin was loaded.
        HookRegistry.apply_hooks()
    _state.backends.add(backend)
    if _state.updated:
        backend.renew()


def name_backend(*args: Any, **kwargs: Any) -> None:
    """Registers the backend `dalsegno` with SGLang's factory; changes its configuration."""
    config = next((one for one in (*args, *kwargs.values()) if hasattr(one, "extra_config")), None)
    extra = getattr(config, "extra_config", None)
    if isinstance(extra, dict) and extra.get("backend_name") == NAME:
        extra.setdefault("module_path", MODULE)
        extra.setdefault("class_name", CLASS)


def _renew_after_update(update: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Updates the weights; whatever came of that, what was stored before is not theirs."""
    _state.updated = _state.mixed = True
    try:
        return update(*args, **kwargs)
    finally:
        _state.renew()


def _renew_after_check(check: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Makes a check of the weights; one that is not known to be harmless is an update."""
    if any(getattr(one, "action", None) in _HARMLESS for one in (*args, *kwargs.values())):
        return check(*args, **kwargs)
    return _renew_after_update(check, *args, **kwargs)


def _renew_after_reset(*_: Any, **__: Any) -> None:
    """Forgets what was stored from caches that an update had left as they were.

    SGLang has ended its threads and dropped its queues by then.
    """
    if _state.mixed:
        _state.mixed = False
        _state.renew()


def write_on_every_rank(config: Any) -> None:
    """Has every rank keep the pages that all ranks of an MLA model hold alike.

    SGLang has one rank write them, for backends that all ranks read. A store is read by its owner
    only, so each rank needs a copy of its own.

    Args:
        config: SGLang's `HiCacheStorageConfig`, which decides who writes.
    """
    if config.tp_size > 1:
        config.is_mla_model = False
