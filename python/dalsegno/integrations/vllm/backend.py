"""The store behind a tier, or its absence.

1. A wrong configuration and a store of another format fail at start-up. Anything else (locked by
   another process, read-only, a full disk) leaves the tier empty: every answer is a miss, and a
   thread tries again until the store opens or the engine ends.
2. `current` is one reference, replaced as a whole: whoever reads it sees a store with all of its
   namespaces, or None.
3. After `renew` no block put before it is seen again by this process.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm.logger import init_logger

from dalsegno import IncompatibleError, InvalidError
from dalsegno.integrations.vllm.identity import nonce

logger = init_logger("vllm.dalsegno")

RETRY_S = 10.0
# How long vLLM's scheduler waits, when its caches are reset, until it is durable that a namespace
# is empty. Its blocks are gone at once; past this the process moves on to other namespaces.
EMPTY_S = 2.0


def open_store(path: str, settings: Mapping[str, Any]) -> Any:
    """Opens the store; a seam for tests."""
    import dalsegno

    return dalsegno.open(path, **settings)


@dataclass(frozen=True)
class Opened:
    """An open store.

    Attributes:
        store: The store.
        namespaces: One per KV-cache group, by the number that keys carry.
    """

    store: Any
    namespaces: Mapping[int, Any]


def _emptied(namespaces: Mapping[int, Any]) -> bool:
    """Removes every block of namespaces that no other process knows; returns whether all went."""
    try:
        for space in namespaces.values():
            space.remove(timeout_s=EMPTY_S)
    except Exception as error:  # noqa: BLE001 - the caller moves on to other namespaces
        logger.debug("Dalsegno cannot remove blocks: %s", error)
        return False
    return True


class Backend:
    """Opens the store, now or later, and closes it."""

    def __init__(
        self,
        path: str,
        settings: Mapping[str, Any],
        fields: Callable[[], Mapping[int, dict[str, str]]],
        shape: Mapping[str, Any],
        retry_s: float = RETRY_S,
    ) -> None:
        """Opens the store, or starts the thread that keeps trying.

        Args:
            path: Directory of the store.
            settings: How to open it.
            fields: Returns the fields of each namespace; may read the model's files.
            shape: What a block is in every namespace, and how it is stored.
            retry_s: Seconds between two attempts.

        Raises:
            InvalidError: The configuration is wrong.
            IncompatibleError: The store or the model cannot be used with this version.
        """
        self._path, self._settings, self._shape = path, settings, dict(shape)
        self._find_fields = fields
        self._fields: Mapping[int, dict[str, str]] = {}
        self._epoch: dict[str, str] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.current: Opened | None = None
        try:
            self._attach()
            logger.info("Dalsegno uses the store at %s.", path)
        except (InvalidError, IncompatibleError):
            raise
        except Exception as error:  # noqa: BLE001 - an engine runs on without its store
            logger.warning(
                "Dalsegno cannot use the store at %s: %s. vLLM runs on without it; the next "
                "attempt is in %.0f s.",
                path,
                error,
                retry_s,
            )
            self._thread = threading.Thread(
                target=self._retry, args=(retry_s,), name="dalsegno-open", daemon=True
            )
            self._thread.start()

    def _attach(self) -> None:
        """Opens the store and its namespaces and makes them current, unless closed meanwhile."""
        self._fields = self._fields or self._find_fields()
        store = open_store(self._path, self._settings)
        try:
            with self._lock:
                if not self._closing.is_set():
                    self.current = Opened(store, self._namespaces(store))
                    return
        except BaseException:
            store.close()
            raise
        store.close()

    def _namespaces(self, store: Any) -> dict[int, Any]:
        """Opens the namespace of each group."""
        return {
            number: store.namespace({**fields, **self._epoch}, **self._shape)
            for number, fields in self._fields.items()
        }

    def _retry(self, retry_s: float) -> None:
        """Keeps trying to open the store; runs on a thread of its own."""
        while not self._closing.wait(retry_s):
            try:
                self._attach()
            except (InvalidError, IncompatibleError) as error:
                logger.warning("Dalsegno gives up on the store at %s: %s", self._path, error)
                return
            except Exception as error:  # noqa: BLE001 - tried again
                logger.debug("Dalsegno still cannot use %s: %s", self._path, error)
                continue
            logger.info("Dalsegno uses the store at %s from now on.", self._path)
            return

    def renew(self) -> None:
        """Forgets every block, for this process: the weights may be others from now on.

        The first time the process moves to namespaces that no other has; after that it empties
        those, so that any number of resets makes no more of them unless the store refuses.
        """
        with self._lock:
            fresh = not self._epoch
            if self.current is not None and not fresh:
                fresh = not _emptied(self.current.namespaces)
            if fresh:
                self._epoch = {"reset": nonce()}
            if self.current is None or not fresh:
                return
            store, self.current = self.current.store, None
            try:
                self.current = Opened(store, self._namespaces(store))
            except Exception:
                store.close()
                raise

    def close(self) -> None:
        """Closes the store and ends the thread; nothing of the tier may be under way."""
        self._closing.set()
        with self._lock:
            opened, self.current = self.current, None
        if self._thread is not None:
            self._thread.join(timeout=5)
        if opened is not None:
            if self._epoch:
                _emptied(opened.namespaces)
            with contextlib.suppress(Exception):
                opened.store.close()
