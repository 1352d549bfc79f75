"""The store of the direct path and its namespaces, as the halves find them.

vLLM makes the workers' halves first and calls them first, but only the scheduler's half knows what
the blocks are. So the scheduler's half opens the store. A worker in the same process finds it by
the name of the engine when it has its first job. A worker in a process of its own opens the server
of the store itself, with what the plan of a step says.

1. Each rank has a namespace, as its bytes are those of its heads. Ranks with equal bytes (MLA) have
   one together, and the first one saves.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from vllm.logger import init_logger

from dalsegno.integrations.common.opening import Backend, Opened, OpenNamespaces, Waits
from dalsegno.integrations.common.settings import byte_count
from dalsegno.integrations.common.trouble import Trouble
from dalsegno.integrations.vllm import doors, spaces
from dalsegno.integrations.vllm.direct.step import BlockSpace
from dalsegno.integrations.vllm.settings import ConnectorSettings
from dalsegno.integrations.vllm.transfers import codec_of
from dalsegno.paths import SOCKET_PREFIX

logger = init_logger("vllm.dalsegno")

_known: weakref.WeakValueDictionary[str, DirectStore] = weakref.WeakValueDictionary()
_lock = threading.Lock()
# Bytes of a put by layer. Several of them are gathered in memory.
SAVE_BYTES = 8 << 20
# How long the first step of a worker waits for the server of the store.
CONNECT_S = 5.0
# How long a scheduler waits for the server's answer which blocks are in places.
SERVED_LEASE_S = 0.01


def names_of_ranks(config: Any) -> tuple[str, ...]:
    """Returns a name for each namespace of an engine, in the order of its ranks.

    Args:
        config: vLLM's `OffloadingConfig`.
    """
    ranks = 1 if config.replicated_layout else config.parallel.world_size
    return ("all",) if ranks == 1 else tuple(str(rank) for rank in range(ranks))


class RankNamespaces(dict[int, Any]):
    """The namespaces of an engine by the numbers of ranks.

    Attributes:
        space: What workers in other processes need to find them.
        is_served: Whether a server owns the store.
        lease_s: Seconds in which blocks can be leased that need no disk.
        most_saved: How many blocks a put by layer may have: they fit into one extent.
        most_by_layer: How many blocks a load may have whose first layers are there before the last
            ones.
    """

    def __init__(self, store: Any, space: BlockSpace, block_bytes: int) -> None:
        """Opens the namespaces."""
        super().__init__(
            (rank, store.namespace(fields, **space.shape))
            for rank, fields in enumerate(space.fields)
        )
        self.space = space
        self.is_served: bool = store.served
        # Without time nothing is read from a disk.
        self.lease_s = SERVED_LEASE_S if self.is_served else 0.0
        limits = store.limits()
        self.most_saved: int = max(1, min(SAVE_BYTES, limits["extent_bytes"]) // block_bytes)
        by_layer = 0 if self.is_served else limits["dram_bytes"] // 4
        self.most_by_layer: int = by_layer // block_bytes


class DirectStore:
    """The store of one engine, with the namespaces of its blocks.

    Attributes:
        layers: Layers of a block.
        slice_bytes: Bytes of one layer of one block.
        tokens: Tokens of a block.
        place: The directory of the store, or the socket of its server.
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
        self.place, self._opening = spaces.place(settings, config), _opening(settings)
        self._backend = Backend(self.place, self._opening, self._prepare, "vLLM", logger)
        self._guard = doors.guard(self._backend, config.engine_id, on_mixed)
        ranks = self.ranks
        is_served = self.place.startswith(SOCKET_PREFIX) if ranks is None else ranks.is_served
        logger.info(
            "Dalsegno copies blocks directly into vLLM's KV cache: blocks of %d tokens, %s.",
            self.tokens,
            "in the pool of a server, so cpu_bytes_to_use is not used"
            if is_served
            else f"in a pool of {byte_count('dram', self._opening['dram'])} bytes",
        )
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
    def ranks(self) -> RankNamespaces | None:
        """The namespaces of the blocks; None as for `opened`."""
        opened = self.opened
        if opened is None:
            return None
        assert isinstance(opened.namespaces, RankNamespaces)
        return opened.namespaces

    def refuse(self, why: str) -> None:
        """Lets nothing be loaded or stored any more."""
        self._refusal = why

    def has_far(self) -> bool:
        """Returns whether the store has a far directory; a store that is not open may have one."""
        opened = self.opened
        limits = None if opened is None else opened.store.limits()
        return not limits or limits.get("far") is not None

    def note_use(self) -> None:
        """Notes that vLLM's cache is about to be filled."""
        self._guard.epoch.note_use()

    def renew(self, *, has_puts: bool) -> None:
        """Forgets every block for this process, whose weights may have changed.

        Args:
            has_puts: Whether blocks are being put. What a server has not received yet may come
                after a removal, so the namespaces of before are not used any more.
        """
        ranks = self.ranks
        if has_puts and (ranks is None or ranks.is_served):
            self._backend.leave()
        self._guard.renew()

    def stats(self) -> Mapping[str, Any] | None:
        """Returns the store's counters, None without a store."""
        return self._backend.stats()

    def report_poisoned(self) -> None:
        """Reopens the store, as a put failed because nothing more is written."""
        self._backend.report_poisoned()

    def close(self) -> None:
        """Closes the store; no transfer may be in flight."""
        self._guard.close()

    def _prepare(self) -> OpenNamespaces:
        """Establishes the identity; returns what opens the namespaces."""
        known = spaces.group_fields(self._settings, self._config, self.block_bytes)
        (number,) = known
        fields = {**known[number], "path": "direct"}

        def namespaces(store: Any, epoch: Mapping[str, str]) -> RankNamespaces:
            names = names_of_ranks(self._config)
            ranks = tuple({**fields, "rank": name, **epoch} for name in names)
            space = BlockSpace(self.place, self._opening, ranks, self._shape)
            return RankNamespaces(store, space, self.block_bytes)

        return namespaces


def _opening(settings: ConnectorSettings) -> dict[str, Any]:
    """Returns the settings of the store, whose DRAM tier takes the place of vLLM's CPU tier."""
    given = settings.store_settings()
    if "dram" not in settings.store:
        given["dram"] = settings.pool_bytes
    given.setdefault("dram_admission", "put")
    return given


class WorkerSpace:
    """The namespace of the blocks of one worker."""

    def __init__(self, engine_id: str, rank: int) -> None:
        """Opens nothing yet.

        Args:
            engine_id: vLLM's name of the engine.
            rank: Number of the worker.
        """
        self._engine_id, self._rank = engine_id, rank
        self._backend: Backend | None = None
        self._log = Trouble(logger)
        self._opened: Opened | None = None
        self._fields: Mapping[str, str] = {}
        self._namespace: Any = None
        self._is_refused = False

    def find(self, space: BlockSpace | None) -> Any:
        """Returns the namespace, or None if nothing may be loaded or stored. Never raises.

        Args:
            space: What the plan of the step says.
        """
        with _lock:
            here = _known.get(self._engine_id)
        if here is not None:
            ranks = here.ranks
            return None if ranks is None else ranks[self._rank % len(ranks)]
        if space is None or self._is_refused:
            return None
        try:
            return self._of_server(space)
        except Exception as error:  # noqa: BLE001 - the engine runs on without shared blocks
            # Its server has refused what the scheduler's half was allowed.
            self._is_refused = self._backend is None
            self._log.log("open", error)
            return None

    def _of_server(self, space: BlockSpace) -> Any:
        """Returns the namespace in the server of the store, None while that cannot be reached."""
        if self._backend is None:
            self._backend = Backend(
                space.place,
                dict(space.settings),
                lambda: lambda _store, _epoch: {},
                "A worker of vLLM",
                logger,
                Waits(open_s=CONNECT_S),
            )
        opened, fields = self._backend.current, space.fields[self._rank % len(space.fields)]
        if opened is None:
            return None
        if opened is not self._opened or fields != self._fields:
            self._namespace = opened.store.namespace(fields, **space.shape)
            self._opened, self._fields = opened, fields
        return self._namespace

    def close(self) -> None:
        """Lets go of the server; no transfer may be in flight."""
        if self._backend is not None:
            self._backend.close()
