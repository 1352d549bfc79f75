"""The backend: SGLang's `HiCacheStorage` over a store, in all three generations of its interface.

SGLang calls look-ups, loads and stores from one thread each, and a few methods from its scheduler.
Look-ups are answered from the store's index; loads and stores go straight from and into the host
pools, where these have addresses, and wait for the disk up to a deadline.

1. No exception leaves a method that SGLang calls while it serves: it becomes a miss or a page that
   is not kept, a counter and at most one log line per 30 s. A wrong configuration fails when the
   backend is attached.
2. A call returns when every transfer of it has ended.
3. A page is found by its hash alone. `prefix_keys` only says where to put pages and which prefix is
   in use (`prefix.py`).
4. `get_stats` and `exists` touch no disk and take no lock that a transfer holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)

from dalsegno import PoisonedError
from dalsegno.integrations.sglang import hits, identity, plugin, prefix
from dalsegno.integrations.sglang.loads import Loads
from dalsegno.integrations.sglang.metrics import Meter
from dalsegno.integrations.sglang.pools import PoolPages, byte_view
from dalsegno.integrations.sglang.settings import HiCacheSettings
from dalsegno.integrations.sglang.spaces import KV, PoolSpaces, block_hash, logger
from dalsegno.integrations.sglang.transfers import Moved, Mover

T = TypeVar("T")


class DalsegnoHiCache(HiCacheStorage):  # type: ignore[misc]
    """Keeps the pages of SGLang's host pools in a store, and brings them back."""

    def __init__(
        self, storage_config: HiCacheStorageConfig, kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Opens the store.

        Args:
            storage_config: SGLang's description of this rank; `extra_config` holds our settings.
            kwargs: What SGLang may hand to external backends; not needed.

        Raises:
            InvalidError: The configuration is wrong.
            IncompatibleError: The store or the model cannot be used with this version.
        """
        del kwargs
        extra = storage_config.extra_config
        settings = HiCacheSettings.parse(extra or {})
        if extra is not None:
            # SGLang looks for it once we are made; only the value 0 selects the copying interface.
            extra.setdefault("interface_v1", 1)
        ranks = identity.Ranks.of(storage_config)
        if ranks.replicated:
            plugin.write_on_every_rank(storage_config)
        self._meter = Meter(logger)
        self._store_prefix = prefix.StorePrefix(logger)
        self._mover = Mover(settings.load_timeout_s, settings.store_timeout_s)
        self._loads = Loads(settings, storage_config, lambda: self._spaces.store)
        self._spaces = PoolSpaces(settings, ranks, flat=not (extra or {}).get("interface_v1", 1))
        plugin.watch(self)

    # Pools.

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Takes the host pool of the KV cache."""
        super().register_mem_pool_host(mem_pool_host)
        self._spaces.pools[KV] = PoolPages(mem_pool_host)
        self._loads.open(self._spaces.pools[KV])

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Takes a further host pool: of sliding windows, states, indexers, drafts."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = str(host_pool_name)
        if name != KV or name not in self._spaces.pools:
            self._spaces.pools[name] = PoolPages(host_pool)

    def _safe(self, call: str, work: Callable[[], T], otherwise: T) -> T:
        """Does what SGLang asks; an exception becomes a miss."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - SGLang loses a thread, or more, by it
            self._meter.trouble(call, error)
            return otherwise

    # Lookups.

    def exists(self, key: str) -> bool:
        """Returns whether the store has a page of the KV, in whatever form."""

        def work() -> bool:
            one = [block_hash(key)]
            return any(space.contains(one)[0] for space in self._spaces.all_kv())

        return self._safe("exists", work, otherwise=False)

    def batch_exists(
        self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> int:
        """Returns how many leading pages of a chain to load; it may start at any page."""

        def work() -> int:
            self._use(extra_info)
            hashes = list(map(block_hash, keys))
            return self._worth(hashes, self._probe(hashes), extra_info)

        return self._safe("batch_exists", work, 0)

    def _use(self, extra_info: HiCacheStorageExtraInfo | None, *pools: str) -> None:
        """Notes the use of the pages before those of a lookup, in the KV and in other pools.

        A lookup that finds pages raises all pages before them. One that finds none does not.
        """
        hashes = prefix.of_lookup(extra_info)
        if hashes:
            for space in (self._spaces.kv(), *map(self._spaces.of, pools)):
                if space is not None:
                    space.touch(hashes)

    def _probe(self, hashes: Sequence[bytes]) -> int:
        """Returns how many leading pages the KV has."""
        space = self._spaces.kv()
        found = int(space.probe(hashes)) if space is not None else 0
        self._meter.count("lookup_pages", found, "hit")
        self._meter.count("lookup_pages", len(hashes) - found, "miss")
        return found

    def _worth(
        self,
        hashes: Sequence[bytes],
        found: int,
        extra_info: HiCacheStorageExtraInfo | None,
        transfers: Sequence[PoolTransfer] = (),
    ) -> int:
        """Returns how many of the leading pages that were found are loaded."""
        pages = {str(one.name): len(one.keys or ()) or found for one in transfers}
        beside = sum(count * self._spaces.page_bytes(name) for name, count in pages.items())
        before = prefix.of_lookup(extra_info)
        taken = self._loads.choose(self._spaces.kv(), hashes, found, before, beside)
        self._meter.count("load_declined_pages", found - taken)
        return taken

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        """Returns which prefixes of a chain all pools can restore, and are worth loading."""

        def work() -> PoolTransferResult:
            hashes, transfers = list(map(block_hash, keys)), pool_transfers or []
            self._use(extra_info, *(str(one.name) for one in transfers))
            if self._spaces.pools[KV].shape.block_bytes:
                kv_pages = self._probe(hashes)
            else:
                # A KV pool without bytes has what the other pools have: at least one must know.
                known = any(one.hit_policy != hits.BLOCK_GROUPS for one in transfers)
                kv_pages = len(keys) if known else 0
            wanted = [self._wanted(one, hashes[:kv_pages]) for one in transfers]
            lengths, longest = hits.restorable(kv_pages, wanted)
            if kv_pages:
                longest[PoolName.KV] = kv_pages
            most = self._worth(hashes, max(lengths, default=0), extra_info, transfers)
            lengths = [length for length in lengths if length <= most]
            return PoolTransferResult(max(lengths, default=0), longest, lengths)

        return self._safe("batch_exists_v2", work, PoolTransferResult(0, {}, []))

    def _wanted(self, transfer: PoolTransfer, hashes: Sequence[bytes]) -> hits.Wanted:
        """Looks up the pages of a chain in one pool."""
        groups = transfer.hit_policy == hits.BLOCK_GROUPS
        asked = list(map(block_hash, transfer.keys or ())) if groups else hashes
        space = self._spaces.of(str(transfer.name))
        present = space.contains(asked) if space is not None and asked else [False] * len(asked)
        return hits.Wanted(
            transfer.name,
            str(transfer.hit_policy.value),
            present,
            len(transfer.keys or ()),
            transfer.block_pages,
            transfer.group_pages,
        )

    # Loads and stores of the second and third interface.

    def batch_get_v1(
        self,
        keys: list[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        """Fills pages of the KV pool; returns for each whether it was filled."""
        del extra_info
        return self._load("batch_get_v1", KV, keys, host_indices)

    def batch_set_v1(
        self,
        keys: list[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        """Stores pages of the KV pool; returns for each whether the store has handled it."""
        return self._store("batch_set_v1", KV, keys, host_indices, extra_info)

    def batch_get_v2(
        self,
        transfers: list[PoolTransfer],
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> dict[str, list[bool]]:
        """Fills pages of several pools."""
        del extra_info
        return {
            one.name: self._load("batch_get_v2", str(one.name), one.keys or [], one.host_indices)
            for one in transfers
        }

    def batch_set_v2(
        self,
        transfers: list[PoolTransfer],
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> dict[str, list[bool]]:
        """Stores pages of several pools."""
        return {
            one.name: self._store(
                "batch_set_v2", str(one.name), one.keys or [], one.host_indices, extra_info
            )
            for one in transfers
        }

    def _load(self, call: str, name: str, keys: Sequence[str], indices: Any) -> list[bool]:
        """Fills pages of a pool."""

        def load(space: Any, hashes: list[bytes], pages: PoolPages) -> Moved:
            def move(timeout_s: float | None) -> Moved:
                return self._mover.get(space, hashes, pages, indices, timeout_s)

            return self._loads.measured(space, hashes, move, is_kv=name == KV)

        return self._move(call, "load", name, keys, load)

    def _store(
        self,
        call: str,
        name: str,
        keys: Sequence[str],
        indices: Any,
        extra_info: HiCacheStorageExtraInfo | None,
    ) -> list[bool]:
        """Stores pages of a pool."""

        def store(space: Any, hashes: list[bytes], pages: PoolPages) -> Moved:
            before = self._store_prefix.before(extra_info)
            return self._mover.put(space, hashes, pages, indices, before)

        return self._move(call, "store", name, keys, store)

    def _move(
        self,
        call: str,
        direction: str,
        name: str,
        keys: Sequence[str],
        move: Callable[[Any, list[bytes], PoolPages], Moved],
    ) -> list[bool]:
        """Moves pages of a pool one way, unless there is nothing to move or nowhere to."""

        def work() -> list[bool]:
            pages, space = self._spaces.pools[name], self._spaces.of(name)
            if not pages.shape.block_bytes:
                # It only stands for pools that hold the bytes.
                return [True] * len(keys)
            if space is None:
                return [False] * len(keys)
            hashes = list(map(block_hash, keys))
            return self._counted(call, direction, space, lambda: move(space, hashes, pages))

        return self._safe(call, work, [False] * len(keys))

    # Loads and stores of the first interface.

    def get(
        self, key: str, target_location: Any = None, target_sizes: Any = None
    ) -> torch.Tensor | None:
        """Fills a tensor with a page; returns it, or None."""
        del target_sizes
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        """Fills tensors with pages; returns each tensor, or None in its place."""
        del target_sizes

        def work() -> list[torch.Tensor | None]:
            pages = self._spaces.pools[KV].pool
            given = list(target_locations or [None] * len(keys))
            targets = [pages.get_dummy_flat_data_page() if one is None else one for one in given]
            blocks = [[byte_view(one)] for one in targets]
            space = self._spaces.flat(len(blocks[0][0])) if blocks else None
            if space is None:
                return [None] * len(keys)
            hashes = list(map(block_hash, keys))

            def move(timeout_s: float | None) -> Moved:
                return self._mover.get_blocks(space, hashes, blocks, timeout_s)

            def load() -> Moved:
                return self._loads.measured(space, hashes, move, is_kv=True)

            done = self._counted("batch_get", "load", space, load)
            return [one if there else None for one, there in zip(targets, done, strict=True)]

        return self._safe("batch_get", work, [None] * len(keys))

    def set(
        self,
        key: str,
        value: Any = None,
        target_location: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Stores a tensor as a page; returns whether the store has handled it."""
        del target_location, target_sizes
        return self.batch_set([key], [value])

    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Stores tensors as pages; returns whether the store has handled all of them."""
        del target_locations, target_sizes

        def work() -> bool:
            blocks = [[byte_view(one.contiguous())] for one in values or ()]
            space = self._spaces.flat(len(blocks[0][0])) if blocks else None
            if space is None:
                return not keys
            hashes = list(map(block_hash, keys))

            def store() -> Moved:
                return self._mover.put_blocks(space, hashes, blocks, None)

            return all(self._counted("batch_set", "store", space, store))

        return self._safe("batch_set", work, otherwise=False)

    def _counted(
        self, call: str, direction: str, space: Any, move: Callable[[], Moved]
    ) -> list[bool]:
        """Carries out a load or a store and counts it; returns what became of each page."""
        started = time.monotonic()
        moved = move()
        self._meter.note_moved(direction, moved, space.block_bytes, time.monotonic() - started)
        for error in moved.errors:
            self._meter.trouble(call, error)
            if isinstance(error, PoisonedError):
                self._spaces.report_poisoned()
        return moved.done

    # Calls that SGLang makes periodically.

    def clear(self) -> bool:
        """Removes every page of this model; returns whether that succeeded."""
        return self._safe("clear", self._spaces.clear, otherwise=False)

    def renew(self) -> None:
        """Forgets every page, for this process: whose weights may have changed."""
        self._safe("renew", self._spaces.renew, None)

    def get_stats(self) -> Any:
        """Returns SGLang's record of loads and stores since the last call."""
        if self._meter.due():
            self._meter.gauge(self._safe("get_stats", self._spaces.counters, None))
        return self._meter.take()

    def counts(self) -> dict[str, int]:
        """Returns the backend's own counters, by name and label."""
        return self._meter.counts()

    def close(self) -> None:
        """Closes the store; SGLang has ended its threads by then."""
        self._safe("close", self._loads.close, None)
        self._safe("close", self._spaces.close, None)
