"""The store behind an integration, or its absence.

1. A wrong configuration and a store of another format fail at start-up. With any other error (a
   locked store, a read-only or full disk) there is no store: every lookup is a miss, and a thread
   retries until the store opens or the engine ends.
2. The engine waits for its store for a bounded time: a disk that hangs must not block its start.
3. `current` is one reference, replaced as a whole: a reader sees a store with all of its
   namespaces, or None.
4. After `renew` this process sees no block that was put before it, in whichever namespace.
5. A poisoned store (a sync failed) is reopened after a pause, and is read until then. The pause
   doubles each time, unless the store worked for longer than the longest pause.
6. While there is no store and this is open, a thread tries to open one, unless the store refused
   the configuration.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from dalsegno import IncompatibleError, InvalidError
from dalsegno.integrations.common.fields import nonce
from dalsegno.paths import SOCKET_PREFIX

# Longest pause before a poisoned store is reopened.
REOPEN_MOST_S = 600.0
# Longest wait of an engine that resets its caches until an emptied namespace is durable. Its blocks
# are gone immediately; after this time the process uses other namespaces.
EMPTY_S = 2.0

# Opens the namespaces of a store. The second argument is added to the fields of each: it is empty
# until `Backend.renew` moves the process to namespaces that no other process has.
OpenNamespaces: TypeAlias = Callable[[Any, Mapping[str, str]], Mapping[Any, Any]]


def open_store(path: str, settings: Mapping[str, Any]) -> Any:
    """Opens the store; a seam for tests."""
    import dalsegno

    return dalsegno.open(path, **settings)


@dataclass
class Opened:
    """An open store.

    Attributes:
        store: The store.
        namespaces: Its namespaces, by the integration's own keys.
        poisoned: Whether a sync failed, so that it writes nothing.
        since: When it was opened, in seconds of the monotonic clock.
    """

    store: Any
    namespaces: Mapping[Any, Any]
    poisoned: bool = False
    since: float = field(default_factory=time.monotonic)


class Waits(NamedTuple):
    """Seconds between two attempts to open the store, and of the wait for the first one."""

    retry_s: float = 10.0
    open_s: float = 60.0


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
        waits: Waits = Waits(),  # noqa: B008 - it cannot change
    ) -> None:
        """Opens the store, or leaves that to a thread that retries.

        Args:
            path: Directory of the store.
            settings: Settings of the store.
            prepare: Returns the function that opens the namespaces of a store. It is called before
                the store is opened, until it has returned once, and may read the model's files.
            engine: Name of the engine in messages.
            logger: Logger of the messages.
            waits: Times to wait.

        Raises:
            InvalidError: The configuration is wrong.
            IncompatibleError: The store or the model cannot be used with this version.
        """
        self._path, self._settings = path, settings
        self._prepare, self._engine, self._logger = prepare, engine, logger
        self._retry_s = self._reopen_s = waits.retry_s
        self._open_namespaces: OpenNamespaces | None = None
        self._epoch: dict[str, str] = {}
        # Whether the epoch may have namespaces that the current store has not opened.
        self._strays = False
        # Namespaces of this process that were left while blocks may have been put into them.
        self._left: Opened | None = None
        self._lock = threading.Lock()
        self._closing, self._tried = threading.Event(), threading.Event()
        self._refusal: InvalidError | IncompatibleError | None = None
        self._late = False
        self.current: Opened | None = None
        self.problem = ""
        pause_s = 0.0
        try:
            # On this thread: reading the model's files may take long.
            self._open_namespaces = prepare()
        except (InvalidError, IncompatibleError):
            raise
        except Exception as error:  # noqa: BLE001 - an engine runs on without its store
            self._fail(error)
            pause_s = waits.retry_s
        self._thread = self._start(self._keep_trying, pause_s)
        if not self._tried.wait(waits.open_s) and self._stop_waiting():
            logger.warning(
                "Dalsegno is still opening the store at %s after %.0f s, so %s runs on without it "
                "until it is open. Check whether its disk responds.",
                path,
                waits.open_s,
                engine,
            )
        with self._lock:
            refusal = None if self._late else self._refusal
        if refusal is not None:
            raise refusal

    def _stop_waiting(self) -> bool:
        """Records that the first attempt takes too long, unless it has just ended."""
        with self._lock:
            self._late = not self._tried.is_set()
            if self._late:
                self.problem = self.problem or "it is still being opened"
            return self._late

    def _start(self, work: Callable[[float], None], pause_s: float) -> threading.Thread:
        thread = threading.Thread(target=work, args=(pause_s,), name="dalsegno-open", daemon=True)
        thread.start()
        return thread

    def _attach(self) -> bool:
        """Opens the store and its namespaces, and makes them current unless this was closed."""
        opening = self._open_namespaces = self._open_namespaces or self._prepare()
        store = open_store(self._path, self._settings)
        try:
            while not self._closing.is_set():
                epoch = self._epoch
                # Without the lock: on a disk that hangs this takes long.
                namespaces = opening(store, epoch)
                with self._lock:
                    if epoch is self._epoch and not self._closing.is_set():
                        # Other threads read both without the lock.
                        self.problem = ""
                        self.current = Opened(store, namespaces)
                        return True
        except BaseException:
            store.close()
            raise
        store.close()
        return False

    def _keep_trying(self, pause_s: float) -> None:
        """Retries until the store is open; runs on a thread of its own."""
        while not self._closing.wait(pause_s):
            pause_s = self._retry_s
            try:
                if self._attach():
                    self._succeed()
            except (InvalidError, IncompatibleError) as error:
                if isinstance(error, IncompatibleError) and self._path.startswith(SOCKET_PREFIX):
                    # Another version of the server: it may be replaced while the engine runs.
                    self._fail(error)
                    continue
                self._give_up(error)
            except BaseException as error:  # noqa: BLE001 - a panic of the extension too
                self._fail(error)
                continue
            return

    def _succeed(self) -> None:
        """Records that the store is open."""
        with self._lock:
            since = " from now on" if self._late or self._tried.is_set() else ""
            self._tried.set()
        self._logger.info("Dalsegno uses the store at %s%s.", self._path, since)

    def _give_up(self, error: InvalidError | IncompatibleError) -> None:
        """Records that there is no store; the constructor raises the error if it still waits."""
        with self._lock:
            raised = not (self._late or self._tried.is_set())
            self.problem, self._refusal = str(error), error
            self._tried.set()
        if not raised:
            self._logger.warning("Dalsegno gives up on the store at %s: %s", self._path, error)

    def _fail(self, error: BaseException) -> None:
        """Records an attempt that failed; only the first one is a warning."""
        with self._lock:
            self.problem = str(error)
        if self._tried.is_set():
            self._logger.debug("Dalsegno still cannot use %s: %s", self._path, error)
            return
        self._logger.warning(
            "Dalsegno cannot use the store at %s: %s. %s runs on without it; the next attempt is "
            "in %.0f s.",
            self._path,
            error,
            self._engine,
            self._retry_s,
        )
        # The constructor waits for this until it is logged.
        self._tried.set()

    def stats(self) -> Mapping[str, Any] | None:
        """Returns the store's counters, None without a store; reopens one that is poisoned."""
        opened = self.current
        if opened is None:
            return None
        counters: Mapping[str, Any] = opened.store.stats()
        if counters["poisoned"]:
            self.report_poisoned()
        return counters

    def report_poisoned(self) -> None:
        """Reopens the store on a thread, as a put failed with `PoisonedError`. Never raises."""
        if self.current is None:
            return
        try:
            with self._lock:
                self._reopen_later()
        except Exception as error:  # noqa: BLE001 - it will be reported again
            self._logger.debug("Dalsegno cannot reopen the store: %s", error)

    def _reopen_later(self) -> None:
        """Starts the thread that reopens the store; the lock is held."""
        opened = self.current
        # The report may be late, and be about an earlier store.
        if opened is None or opened.poisoned or not opened.store.stats()["poisoned"]:
            return
        if time.monotonic() - opened.since > REOPEN_MOST_S:
            self._reopen_s = self._retry_s
        self._thread = self._start(self._reopen, self._reopen_s)
        opened.poisoned = True
        pause_s, self._reopen_s = self._reopen_s, min(2 * self._reopen_s, REOPEN_MOST_S)
        self._logger.warning(
            "Dalsegno: nothing more is written to the store at %s, because a sync failed or its "
            "index is damaged; it is still read, and reopened in %.0f s. Check its disk.",
            self._path,
            pause_s,
        )

    def _reopen(self, pause_s: float) -> None:
        """Closes the store after a pause and opens it again; runs on a thread of its own."""
        if self._closing.wait(pause_s):
            return
        with self._lock:
            opened, self.current = self.current, None
            self._strays = bool(self._epoch)
            self.problem = "it is being reopened, because nothing more was written to it"
        if opened is not None:
            with contextlib.suppress(Exception):
                opened.store.close()
        self._keep_trying(0.0)

    def renew(self) -> None:
        """Forgets every block for this process, whose weights may have changed.

        The first call moves the process to namespaces that no other process has. Later calls empty
        those, so that resets make no more namespaces unless the store refuses.
        """
        with self._lock:
            self._empty_left(self.current)
            # Neither a store that is being reopened nor a namespace not yet opened can be emptied.
            fresh = not self._epoch or self.current is None or self._strays
            if self.current is not None and not fresh:
                fresh = not self._emptied(self.current.namespaces)
            if not fresh:
                return
            if self._epoch:
                self._left = self.current
            self._epoch, self._strays = {"reset": nonce()}, False
            if self.current is not None and self._open_namespaces is not None:
                self._move(self.current, self._open_namespaces)

    def leave(self) -> None:
        """Lets the next :meth:`renew` move to other namespaces, as blocks are put into these.

        These are emptied by the renewal after that, or by :meth:`close`.
        """
        with self._lock:
            self._strays = True

    def _empty_left(self, opened: Opened | None) -> None:
        """Removes the blocks of namespaces of a store that were left."""
        left, self._left = self._left, None
        # Those of an earlier store are not open any more.
        if left is not None and opened is not None and left.store is opened.store:
            self._emptied(left.namespaces)

    def _move(self, opened: Opened, opening: OpenNamespaces) -> None:
        """Moves to the namespaces of a new epoch, or drops the store; the lock is held."""
        self.current = None
        try:
            namespaces = opening(opened.store, self._epoch)
        except Exception as error:  # noqa: BLE001 - an engine runs on without its store
            self.problem = str(error)
            self._logger.warning(
                "Dalsegno cannot move to new namespaces of the store at %s: %s. %s runs on without "
                "it until it is open again.",
                self._path,
                error,
                self._engine,
            )
            # The thread that reopens a poisoned store does that too.
            if not opened.poisoned:
                self._thread = self._start(self._keep_trying, self._retry_s)
            with contextlib.suppress(Exception):
                opened.store.close()
            return
        self.current = Opened(opened.store, namespaces, opened.poisoned, opened.since)

    def _emptied(self, namespaces: Mapping[Any, Any]) -> bool:
        """Removes every block of this process's own namespaces; returns whether that worked."""
        try:
            for space in namespaces.values():
                space.remove(timeout_s=EMPTY_S)
        except Exception as error:  # noqa: BLE001 - the caller moves on to other namespaces
            self._logger.debug("Dalsegno cannot remove blocks: %s", error)
            return False
        return True

    def close(self) -> None:
        """Closes the store and ends the thread; no transfer may be in flight."""
        self._closing.set()
        with self._lock:
            opened, self.current = self.current, None
        self._thread.join(timeout=5)
        if opened is not None:
            self._empty_left(opened)
            if self._epoch:
                self._emptied(opened.namespaces)
            with contextlib.suppress(Exception):
                opened.store.close()
