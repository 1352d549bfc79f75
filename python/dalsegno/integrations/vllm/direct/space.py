"""The store and the namespace of the direct path, as the halves of one process share them.

vLLM makes the worker's half first and calls it first, but only the scheduler's half knows what the
blocks are. So the scheduler's half opens the store, and the worker's half finds it by the name of
the engine when it has its first job.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from vllm.logger import init_logger

from dalsegno.integrations.common.opening import Backend, Opened, OpenNamespaces
from dalsegno.integrations.vllm import doors, spaces
from dalsegno.integrations.vllm.settings import ConnectorSettings
from dalsegno.integrations.vllm.transfers import codec_of

logger = init_logger("vllm.dalsegno")

_known: weakref.WeakValueDictionary[str, DirectStore] = weakref.WeakValueDictionary()
_lock = threading.Lock()


class DirectStore:
    """The store of one engine, with the namespace of its blocks.

    Attributes:
        layers: Layers of a block.
        slice_bytes: Bytes of one layer of one block.
        tokens: Tokens of a block.
    """

    def __init__(
        self, settings: ConnectorSettings, config: Any, on_mixed: Callable[[], None]
    ) -> None:
        """Opens the store.

        Args:
            settings: Of the connector.
            config: vLLM's `OffloadingConfig`, with one group.
            on_mixed: Called when nothing may be loaded or stored any more.

        Raises:
            InvalidError: The configuration is wrong.
            IncompatibleError: The store or the model cannot be used with this version.
        """
        (group,) = config.groups
        self.layers: int = len(group.layer_names)
        pages = config.cache.blocks_per_chunk
        self.tokens: int = group.tokens_per_block * pages
        self.slice_bytes: int = config.worker_kv_bytes_per_block // self.layers * pages
        self._settings, self._config, self._refusal = settings, config, ""
        shape = {"layers": self.layers, "slice_bytes": self.slice_bytes}
        self._shape = {**shape, **codec_of(settings, config.model.dtype)}
        place = settings.place(self._folder())
        self._backend = Backend(place, self._store_settings(), self._prepare, "vLLM", logger)
        self._guard = doors.guard(self._backend, config.engine_id, on_mixed)
        with _lock:
            _known[config.engine_id] = self

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.layers * self.slice_bytes

    @property
    def opened(self) -> Opened | None:
        """The open store; None while there is none, or nothing may be loaded or stored."""
        return None if self._refusal else self._guard.current

    @property
    def namespace(self) -> Any:
        """The namespace of the blocks; None as for `opened`."""
        opened = self.opened
        return None if opened is None else opened.namespaces[0]

    def refuse(self, why: str) -> None:
        """Lets nothing be loaded or stored any more."""
        self._refusal = why

    def note_use(self) -> None:
        """Notes that vLLM's cache is about to be filled."""
        self._guard.epoch.note_use()

    def renew(self) -> None:
        """Forgets every block for this process, whose weights may have changed."""
        self._guard.renew()

    def stats(self) -> Mapping[str, Any] | None:
        """Returns the store's counters, None without a store."""
        opened = self._backend.current
        if opened is None:
            return None
        counters: Mapping[str, Any] = opened.store.stats()
        if counters["poisoned"]:
            self._backend.report_poisoned()
        return counters

    def report_poisoned(self) -> None:
        """Reopens the store, as a put failed because nothing more is written."""
        self._backend.report_poisoned()

    def close(self) -> None:
        """Closes the store; no transfer may be in flight."""
        self._guard.close()

    def _folder(self) -> str:
        """Returns the folder of this replica, if there are several."""
        parallel = self._config.parallel
        return f"dp{parallel.data_parallel_index}" if parallel.data_parallel_size > 1 else ""

    def _store_settings(self) -> dict[str, Any]:
        """Returns the settings of the store, whose DRAM tier takes the place of vLLM's CPU tier."""
        settings = self._settings
        given = settings.store_settings()
        if "dram" not in settings.store:
            given["dram"] = settings.pool_bytes
        given.setdefault("dram_admission", "put")
        return given

    def _prepare(self) -> OpenNamespaces:
        """Establishes the identity; returns what opens the namespace."""
        known = spaces.group_fields(self._settings, self._config, self.block_bytes)
        (number,) = known
        fields = {**known[number], "path": "direct"}

        def namespaces(store: Any, epoch: Mapping[str, str]) -> dict[int, Any]:
            return {0: store.namespace({**fields, **epoch}, **self._shape)}

        return namespaces


def of_engine(engine_id: str) -> DirectStore | None:
    """Returns the store that the scheduler's half of this process has opened."""
    with _lock:
        return _known.get(engine_id)
