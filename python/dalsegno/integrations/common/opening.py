"""The store behind an integration, or its absence.

1. A wrong configuration and a store of another format fail at start-up. Anything else (locked by
   another process, read-only, a full disk) leaves no store: every answer is a miss, and a
   thread tries again until the store opens or the engine ends.
2. The engine waits for its store, but not for long: a disk that hangs may not keep it from
   starting.
3. `current` is one reference, replaced as a whole: whoever reads it sees a store with all of its
   namespaces, or None.
4. After `renew` no block put before it is seen again by this process, whether its namespace was
   opened in this life of the store, in an earlier one or not at all.
5. A store that writes nothing more, since a sync failed, is opened anew after a while: each time
   after twice as long, unless it was well for longer than the longest pause. Until then it is read.
6. While there is no store and this is open, a thread tries to open one, unless it is told that it
   never will.
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

# A store whose syncs fail again and again is opened anew at most this often.
REOPEN_MOST_S = 600.0
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


@dataclass
class Opened:
    """An open store.

    Attributes:
        store: The store.
        namespaces: Its namespaces, by whatever the integration tells them apart.
        poisoned: Whether a sync failed: it takes nothing more.
        since: When it was opened, in seconds of the monotonic clock.
    """

    store: Any
    namespaces: Mapping[Any, Any]
    poisoned: bool = False
    since: float = field(default_factory=time.monotonic)


class Waits(NamedTuple):
    """How long to wait.

    Attributes:
        retry_s: Seconds between two attempts to open the store; also before it is opened anew.
        open_s: Seconds that an engine waits for the first attempt.
    """

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
        """Opens the store, or leaves that to a thread that keeps trying.

        Args:
            path: Directory of the store.
            settings: How to open it.
            prepare: Returns what opens the namespaces of a store. It is called before the store is
                opened, until it has returned once, and may read the model's files.
            engine: Its name as it stands in messages.
            logger: Where messages go.
            waits: How long to wait.

        Raises:
            InvalidError: The configuration is wrong.
            IncompatibleError: The store or the model cannot be used with this version.
        """
        self._path, self._settings = path, settings
        self._prepare, self._engine, self._logger = prepare, engine, logger
        self._retry_s = self._reopen_s = waits.retry_s
        self._open_namespaces: OpenNamespaces | None = None
        self._epoch: dict[str, str] = {}
        # Whether the epoch may hold namespaces that the present store has not opened.
        self._strays = False
        self._lock = threading.Lock()
        self._closing, self._tried = threading.Event(), threading.Event()
        self._refusal: InvalidError | IncompatibleError | None = None
        self._late = False
        self.current: Opened | None = None
        self.problem = ""
        pause_s = 0.0
        try:
            # On this thread: the model's files may take their time.
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
                "until it is open. Does its disk answer?",
                path,
                waits.open_s,
                engine,
            )
        with self._lock:
            refusal = None if self._late else self._refusal
        if refusal is not None:
            raise refusal

    def _stop_waiting(self) -> bool:
        """Takes note that the first attempt takes too long, unless it has just ended."""
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
        """Opens the store and its namespaces and makes them current; not if closed meanwhile."""
        opening = self._open_namespaces = self._open_namespaces or self._prepare()
        store = open_store(self._path, self._settings)
        try:
            while not self._closing.is_set():
                epoch = self._epoch
                # Without the lock: on a disk that hangs this takes its time.
                namespaces = opening(store, epoch)
                with self._lock:
                    if epoch is self._epoch and not self._closing.is_set():
                        self.current, self.problem = Opened(store, namespaces), ""
                        return True
        except BaseException:
            store.close()
            raise
        store.close()
        return False

    def _keep_trying(self, pause_s: float) -> None:
        """Tries until the store is open; runs on a thread of its own."""
        while not self._closing.wait(pause_s):
            pause_s = self._retry_s
            try:
                if self._attach():
                    self._succeed()
            except (InvalidError, IncompatibleError) as error:
                self._give_up(error)
            except BaseException as error:  # noqa: BLE001 - a panic of the extension too
                self._fail(error)
                continue
            return

    def _succeed(self) -> None:
        """Takes note that the store is open."""
        with self._lock:
            since = " from now on" if self._late or self._tried.is_set() else ""
            self._tried.set()
        self._logger.info("Dalsegno uses the store at %s%s.", self._path, since)

    def _give_up(self, error: InvalidError | IncompatibleError) -> None:
        """Takes note that there will be no store; whoever still waits for it is told."""
        with self._lock:
            told = not (self._late or self._tried.is_set())
            self.problem, self._refusal = str(error), error
            self._tried.set()
        if not told:
            self._logger.warning("Dalsegno gives up on the store at %s: %s", self._path, error)

    def _fail(self, error: BaseException) -> None:
        """Takes note of an attempt that failed; the later ones say what the first one said."""
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
        # Whoever waits for it finds it logged.
        self._tried.set()

    def tell_poisoned(self) -> None:
        """A put was refused as a sync had failed: the store is to be opened anew, by a thread.

        Never raises.
        """
        if self.current is None:
            return
        try:
            with self._lock:
                self._reopen_later()
        except Exception as error:  # noqa: BLE001 - it will be told again
            self._logger.debug("Dalsegno cannot open the store anew: %s", error)

    def _reopen_later(self) -> None:
        """Starts the thread that opens the store anew; the lock is held."""
        opened = self.current
        # What an earlier store refused may be told late.
        if opened is None or opened.poisoned or not opened.store.stats()["poisoned"]:
            return
        if time.monotonic() - opened.since > REOPEN_MOST_S:
            self._reopen_s = self._retry_s
        self._thread = self._start(self._reopen, self._reopen_s)
        opened.poisoned = True
        pause_s, self._reopen_s = self._reopen_s, min(2 * self._reopen_s, REOPEN_MOST_S)
        self._logger.warning(
            "Dalsegno: nothing more is written to the store at %s, since a sync failed or its "
            "index is damaged; it is still read, and opened anew in %.0f s. Look at its disk.",
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
            self.problem = "it is opened anew, since nothing more was written to it"
        if opened is not None:
            with contextlib.suppress(Exception):
                opened.store.close()
        self._keep_trying(0.0)

    def renew(self) -> None:
        """Forgets every block, for this process: the weights may be others from now on.

        The first time the process moves to namespaces that no other has; after that it empties
        those, so that any number of resets makes no more of them unless the store refuses.
        """
        with self._lock:
            # A store that is being opened anew cannot be emptied, nor what it does not know.
            fresh = not self._epoch or self.current is None or self._strays
            if self.current is not None and not fresh:
                fresh = not self._emptied(self.current.namespaces)
            if not fresh:
                return
            self._epoch, self._strays = {"reset": nonce()}, False
            if self.current is not None and self._open_namespaces is not None:
                self._move(self.current, self._open_namespaces)

    def _move(self, opened: Opened, opening: OpenNamespaces) -> None:
        """Moves to the namespaces of a new epoch, or does without the store; the lock is held."""
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
            # What waits to open a poisoned store anew does that as well.
            if not opened.poisoned:
                self._thread = self._start(self._keep_trying, self._retry_s)
            with contextlib.suppress(Exception):
                opened.store.close()
            return
        self.current = Opened(opened.store, namespaces, opened.poisoned, opened.since)

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
        self._thread.join(timeout=5)
        if opened is not None:
            if self._epoch:
                self._emptied(opened.namespaces)
            with contextlib.suppress(Exception):
                opened.store.close()
