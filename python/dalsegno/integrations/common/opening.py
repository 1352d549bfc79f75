"""The store behind an integration, or its absence.

1. A wrong configuration and a store of another format fail at start-up. Anything else (locked by
   another process, read-only, a full disk) leaves no store: every answer is a miss, and a
   thread tries again until the store opens or the engine ends.
2. `current` is one reference, replaced as a whole: whoever reads it sees a store with all of its
   namespaces, or None.
3. After `renew` no block put before it is seen again by this process.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from dalsegno import IncompatibleError, InvalidError
from dalsegno.integrations.common.fields import nonce

RETRY_S = 10.0
# How long an engine waits, when its caches are reset, until it is durable that a namespace is
# empty. Its blocks are gone at once; past this the process moves on to other namespaces.
EMPTY_S = 2.0

# Opens the namespaces of a store. The second argument belongs into the fields of each: it is empty
# until `Backend.renew` makes the process move to namespaces that no other has.
OpenNamespaces: TypeAlias = Callable[[Any, Mapping[str, str]], Mapping[Any, Any]]


def open_store(path: str, settings: Mapping[str, Any]) -> Any:
    """Opens the store; a seam for tests."""
    import dalsegno

    return dalsegno.open(path, **settings)


@dataclass(frozen=True)
class Opened:
    """An open store.

    Attributes:
        store: The store.
        namespaces: Its namespaces, by whatever the integration tells them apart.
    """

    store: Any
    namespaces: Mapping[Any, Any]


class Backend:
    """Opens the store, now or later, and closes it.

    Attributes:
        current: The open store; None while there is none.
        problem: Why there is none, empty while there is one.
    """

    def __init__(
        self,
        path: str,
        settings: Mapping[str, Any],
        prepare: Callable[[], OpenNamespaces],
        engine: str,
        logger: logging.Logger,
        retry_s: float = RETRY_S,
    ) -> None:
        """Opens the store, or starts the thread that keeps trying.

        Args:
            path: Directory of the store.
            settings: How to open it.
            prepare: Returns what opens the namespaces of a store. It is called before the store is
                opened, until it has returned once, and may read the model's files.
            engine: Its name as it stands in messages.
            logger: Where messages go.
            retry_s: Seconds between two attempts.

        Raises:
            InvalidError: The configuration is wrong.
            IncompatibleError: The store or the model cannot be used with this version.
        """
        self._path, self._settings = path, settings
        self._prepare, self._logger = prepare, logger
        self._open_namespaces: OpenNamespaces | None = None
        self._epoch: dict[str, str] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.current: Opened | None = None
        self.problem = ""
        try:
            self._attach()
            logger.info("Dalsegno uses the store at %s.", path)
        except (InvalidError, IncompatibleError):
            raise
        except Exception as error:  # noqa: BLE001 - an engine runs on without its store
            self.problem = str(error)
            logger.warning(
                "Dalsegno cannot use the store at %s: %s. %s runs on without it; the next "
                "attempt is in %.0f s.",
                path,
                error,
                engine,
                retry_s,
            )
            self._thread = threading.Thread(
                target=self._retry, args=(retry_s,), name="dalsegno-open", daemon=True
            )
            self._thread.start()

    def _attach(self) -> None:
        """Opens the store and its namespaces and makes them current, unless closed meanwhile."""
        opening = self._open_namespaces = self._open_namespaces or self._prepare()
        store = open_store(self._path, self._settings)
        try:
            with self._lock:
                if not self._closing.is_set():
                    self.current = Opened(store, opening(store, self._epoch))
                    return
        except BaseException:
            store.close()
            raise
        store.close()

    def _retry(self, retry_s: float) -> None:
        """Keeps trying to open the store; runs on a thread of its own."""
        while not self._closing.wait(retry_s):
            try:
                self._attach()
            except (InvalidError, IncompatibleError) as error:
                self.problem = str(error)
                self._logger.warning("Dalsegno gives up on the store at %s: %s", self._path, error)
                return
            except Exception as error:  # noqa: BLE001 - tried again
                self.problem = str(error)
                self._logger.debug("Dalsegno still cannot use %s: %s", self._path, error)
                continue
            self.problem = ""
            self._logger.info("Dalsegno uses the store at %s from now on.", self._path)
            return

    def renew(self) -> None:
        """Forgets every block, for this process: the weights may be others from now on.

        The first time the process moves to namespaces that no other has; after that it empties
        those, so that any number of resets makes no more of them unless the store refuses.
        """
        with self._lock:
            fresh = not self._epoch
            if self.current is not None and not fresh:
                fresh = not self._emptied(self.current.namespaces)
            if fresh:
                self._epoch = {"reset": nonce()}
            if self.current is None or self._open_namespaces is None or not fresh:
                return
            store, self.current = self.current.store, None
            try:
                self.current = Opened(store, self._open_namespaces(store, self._epoch))
            except Exception:
                store.close()
                raise

    def _emptied(self, namespaces: Mapping[Any, Any]) -> bool:
        """Removes every block of namespaces that no other process knows; tells if all went."""
        try:
            for space in namespaces.values():
                space.remove(timeout_s=EMPTY_S)
        except Exception as error:  # noqa: BLE001 - the caller moves on to other namespaces
            self._logger.debug("Dalsegno cannot remove blocks: %s", error)
            return False
        return True

    def close(self) -> None:
        """Closes the store and ends the thread; nothing of the store may be under way."""
        self._closing.set()
        with self._lock:
            opened, self.current = self.current, None
        if self._thread is not None:
            self._thread.join(timeout=5)
        if opened is not None:
            if self._epoch:
                self._emptied(opened.namespaces)
            with contextlib.suppress(Exception):
                opened.store.close()
