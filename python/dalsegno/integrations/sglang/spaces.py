"""SGLang's pools and the namespaces in which their pages are.

SGLang registers its pools one by one, also after the backend has begun to serve, and its oldest
interface passes the size of a page only with each call. So namespaces are opened when needed.

Pages of one pool, one form and one size go into one namespace: what the oldest interface stores
(flat pages) and what the later ones do (parts by address) are never mixed.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, cast

from dalsegno import InvalidError
from dalsegno.integrations.common.opening import Backend, OpenNamespaces
from dalsegno.integrations.common.settings import element_bytes
from dalsegno.integrations.sglang import identity
from dalsegno.integrations.sglang.pools import PoolPages
from dalsegno.integrations.sglang.settings import HiCacheSettings

logger = logging.getLogger("sglang.dalsegno")
KV = "kv"
HASH_BYTES = 32
# Namespaces of one process: a handful of pools, and sizes that the oldest interface came with.
MOST = 64

# Fields of a namespace, and how its blocks are stored: `codec`, `element_bytes`.
Description: TypeAlias = tuple[Mapping[str, str], Mapping[str, Any]]


def block_hash(key: str) -> bytes:
    """Returns the block hash of a key of SGLang's.

    Args:
        key: 64 hexadecimal digits, which are the hash. Any other key is hashed, apart from those.
    """
    if len(key) == 2 * HASH_BYTES:
        try:
            return bytes.fromhex(key)
        except ValueError:
            pass
    return hashlib.sha256(b"dalsegno sglang key\0" + key.encode()).digest()


class Spaces(Mapping[str, Any]):
    """The namespaces that this process has used of one store."""

    def __init__(self, store: Any, identity: Mapping[str, str]) -> None:
        """Opens none yet.

        Args:
            store: The open store.
            identity: Fields that all namespaces share.
        """
        self._store, self._identity = store, dict(identity)
        self._lock = threading.Lock()
        self._known: dict[str, Any] = {}

    def open(self, name: str, block_bytes: int, describe: Callable[[], Description]) -> Any:
        """Returns a namespace; the first call with a name opens it.

        Args:
            name: Its name within this process.
            block_bytes: Size of a block.
            describe: Returns its own fields, and how its blocks are stored from now on; called
                when it is opened.

        Raises:
            InvalidError: There are too many.
            DalsegnoError: The store cannot open it.
        """
        known = self._known.get(name)
        if known is not None:
            return known
        with self._lock:
            if name not in self._known:
                if len(self._known) >= MOST:
                    raise InvalidError(f"SGLang uses more than {MOST} pools or sizes of pages")
                fields, storing = describe()
                self._known[name] = self._store.namespace(
                    {**self._identity, **fields},
                    layers=1,
                    slice_bytes=block_bytes,
                    **storing,
                )
            return self._known[name]

    def __getitem__(self, name: str) -> Any:
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._known))

    def __len__(self) -> int:
        return len(self._known)


class PoolSpaces:
    """The store of one backend, or its absence, seen by pool.

    Attributes:
        pools: The pages of each registered pool, by its name.
    """

    def __init__(self, settings: HiCacheSettings, ranks: identity.Ranks, *, flat: bool) -> None:
        """Opens the store.

        Args:
            settings: The settings.
            ranks: Which part of the model this process serves.
            flat: Whether SGLang moves the pages of the KV by its oldest interface.

        Raises:
            InvalidError: The configuration is wrong.
            IncompatibleError: The store or the model cannot be used with this version.
        """
        self._settings, self._ranks, self._flat = settings, ranks, flat
        self.pools: dict[str, PoolPages] = {}
        path = settings.place(ranks.folder)
        self._backend = Backend(path, settings.store_settings(), self._prepare, "SGLang", logger)

    def _prepare(self) -> OpenNamespaces:
        """Finds out whose pages these are; may read the model's files."""
        known = identity.engine_identity(self._settings.salt, self._settings.weights_fingerprint)

        def open_namespaces(store: Any, epoch: Mapping[str, str]) -> Spaces:
            return Spaces(store, {**known, **epoch})

        return open_namespaces

    @property
    def store(self) -> Any:
        """The open store, None without one."""
        opened = self._backend.current
        return None if opened is None else opened.store

    def _opened(self) -> Spaces | None:
        """Returns the namespaces of the open store, None without one."""
        opened = self._backend.current
        # What `_prepare` returns makes them.
        return None if opened is None else cast("Spaces", opened.namespaces)

    def of(self, name: str) -> Any:
        """Returns the namespace of a pool's pages as the later interfaces move them.

        Returns:
            None without a store, and for a pool without bytes of its own.
        """
        opened, pages = self._opened(), self.pools[name]
        size = pages.shape.block_bytes
        if opened is None or not size:
            return None

        def describe() -> Description:
            return identity.pool_fields(self._ranks, name, pages), self._storing(pages)

        return opened.open(name, size, describe)

    def page_bytes(self, name: str) -> int:
        """Returns the bytes of a page of a pool, 0 for an unknown one."""
        pages = self.pools.get(name)
        return 0 if pages is None else pages.shape.block_bytes

    def flat(self, size: int) -> Any:
        """Returns the namespace of the KV's flat pages of a size, None without a store."""
        opened, pages = self._opened(), self.pools[KV]
        if opened is None:
            return None

        def describe() -> Description:
            fields = identity.pool_fields(self._ranks, KV, pages)
            return {**fields, "page": "flat"}, self._storing(pages)

        return opened.open(f"{KV} {size}", size, describe)

    def kv(self) -> Any:
        """Returns the namespace in which SGLang's way of moving pages finds those of the KV."""
        return self.flat(self.pools[KV].flat_bytes) if self._flat else self.of(KV)

    def all_kv(self) -> list[Any]:
        """Returns all namespaces of the KV: also those of sizes that the oldest interface had."""
        opened = self._opened()
        if opened is None:
            return []
        self.kv()
        return [space for name, space in opened.items() if name == KV or name.startswith(f"{KV} ")]

    def _storing(self, pages: PoolPages) -> dict[str, Any]:
        """Returns how pages are stored from now on.

        `none` is said as well: a namespace remembers `zstd`.
        """
        width = element_bytes(str(getattr(pages.pool, "dtype", "")))
        if self._settings.codec == "none" or width is None:
            return {"codec": "none"}
        return {"codec": self._settings.codec, "element_bytes": width}

    def counters(self) -> dict[str, Any] | None:
        """Returns the store's own counters, None without a store."""
        opened = self._backend.current
        return None if opened is None else dict(opened.store.stats())

    def report_poisoned(self) -> None:
        """Reopens the store after a failed sync."""
        self._backend.report_poisoned()

    def clear(self) -> bool:
        """Forgets every page of this model for good; returns whether there was a store to do so.

        Raises:
            DalsegnoError: It is not durable that they are gone.
        """
        opened = self._opened()
        if opened is None:
            return False
        for name in list(self.pools):
            # What no call has asked for yet may hold pages of an earlier process.
            self.of(name)
        for space in list(opened.values()):
            space.remove(timeout_s=self._settings.store_timeout_s)
        return True

    def renew(self) -> None:
        """Forgets every page, for this process: the weights may be others from now on."""
        self._backend.renew()

    def close(self) -> None:
        """Closes the store and lets go of SGLang's memory; nothing may be under way."""
        self._backend.close()
        self.pools.clear()
