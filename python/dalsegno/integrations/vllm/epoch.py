"""Whether the weights of a running engine are still those of its namespaces.

An identity is established once, when an engine starts. A *door* is a call that can change weights
after that; `doors.py` finds them. An epoch begins with a door:

| state | the caches of vLLM hold | namespaces |
|---|---|---|
| `LOADED` | KV of the weights that were loaded at the start | of the identity |
| `MIXED` | KV of weights before and after a door | none: nothing is loaded or stored |
| `EMPTY` | nothing, since a reset | of this process alone |
| `OWN` | KV computed since that reset | of this process alone |

1. A door makes `LOADED` and `OWN` `MIXED`. `EMPTY` stays: nothing in the caches is older.
2. Only a reset of all caches ends `MIXED`: vLLM's prefix cache, its memory tier, and the tier's
   knowledge, which moves to other namespaces. No reset leads back to `LOADED`.
3. A door in another process of this host is a datagram to a socket of the scheduler's process
   (`door_line.py`). The sender is done when the datagram is queued, and the epoch reads the queue
   before each use. So no use that begins after a door misses it.
4. Without that socket the epoch begins as `MIXED`.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from enum import Enum, auto

from dalsegno.integrations.common.opening import Backend, Opened
from dalsegno.integrations.vllm.door_line import Line

# vLLM configures its own loggers, this one included.
logger = logging.getLogger("vllm.dalsegno")


class State(Enum):
    """What the caches of an engine may hold."""

    LOADED = auto()
    MIXED = auto()
    EMPTY = auto()
    OWN = auto()


class _Shared:
    """The line of an engine, and the tiers of this process that it concerns."""

    def __init__(self, engine_id: str) -> None:
        self.line, self.epochs = Line(engine_id), weakref.WeakSet[Epoch]()
        self._lock = threading.Lock()

    def read(self) -> None:
        """Applies the doors that were reported since the last call."""
        # A thread that finds the queue empty must find the states as the reports made them.
        with self._lock:
            doors, epochs = self.line.read(), list(self.epochs)
            mixed = [one for door in doors for one in epochs if one.mix(door)]
        for one in mixed:
            one.on_mixed()


_lines: dict[str, _Shared] = {}
_lines_lock = threading.Lock()


class Epoch:
    """The state of one tier.

    Attributes:
        engine_id: vLLM's name of the engine, which all its processes know.
        on_mixed: Called when nothing may be loaded or stored any more; must not raise.
        drains: How often the tier moved to other namespaces.
    """

    def __init__(self, engine_id: str, on_mixed: Callable[[], None]) -> None:
        """Begins as `LOADED`, and listens for the doors of other processes.

        Args:
            engine_id: vLLM's name of the engine.
            on_mixed: Called when nothing may be loaded or stored any more; must not raise.
        """
        self.engine_id, self.drains = engine_id, 0
        self._state, self.on_mixed = State.LOADED, on_mixed
        # vLLM 0.33 polls its tiers from a second thread.
        self._lock = threading.Lock()
        self._line: _Shared | None = None
        try:
            with _lines_lock:
                if engine_id not in _lines:
                    _lines[engine_id] = _Shared(engine_id)
                self._line = _lines[engine_id]
                self._line.epochs.add(self)
        except OSError as error:
            self.refuse(f"the socket for reports of its workers cannot be made ({error})")

    @property
    def state(self) -> State:
        """The state, doors of other processes included."""
        if (line := self._line) is not None:
            line.read()
        return self._state

    @property
    def is_usable(self) -> bool:
        """Whether blocks may be loaded and stored."""
        return self.state is not State.MIXED

    def refuse(self, problem: str) -> None:
        """Begins as `MIXED`, as doors cannot be seen."""
        with self._lock:
            self._state = State.MIXED
        logger.warning(
            "Dalsegno cannot see whether the weights of this engine are updated: %s. Nothing is "
            "loaded or stored until vLLM's caches are reset, and nothing is shared with other "
            "engines.",
            problem,
        )

    def open_door(self, door: str) -> None:
        """Notes that the weights may be others from here on."""
        if self.mix(door):
            self.on_mixed()

    def mix(self, door: str) -> bool:
        """Does so without calling `on_mixed`; returns whether that call is due."""
        with self._lock:
            if self._state in {State.MIXED, State.EMPTY}:
                return False
            first, self._state = self._state is State.LOADED, State.MIXED
        if first:
            logger.warning(
                "Dalsegno: %s may have changed the weights, so this engine shares no blocks with "
                "other engines until it restarts. It loads and stores blocks of its own after the "
                "next reset_prefix_cache().",
                door,
            )
        return True

    def note_reset(self) -> None:
        """Notes that all caches of vLLM are empty, and the tier was drained."""
        state = self.state
        with self._lock:
            self._state = State.EMPTY
        logger.debug("Dalsegno: vLLM's caches are empty, after %s.", state.name)

    def note_use(self) -> None:
        """Notes that the caches are about to be filled."""
        state = self.state
        if state is State.EMPTY:
            with self._lock:
                if self._state is state:
                    self._state = State.OWN

    def close(self) -> None:
        """Stops to listen."""
        line, self._line = self._line, None
        if line is None:
            return
        with _lines_lock:
            line.epochs.discard(self)
            if not line.epochs:
                _lines.pop(self.engine_id, None)
                line.line.close()


class GuardedBackend:
    """A backend without a store while the caches may hold KV of other weights."""

    def __init__(self, backend: Backend, epoch: Epoch) -> None:
        """Takes a backend that is open, or that opens later."""
        self._backend, self.epoch = backend, epoch

    @property
    def current(self) -> Opened | None:
        """The open store; None while there is none, or nothing may be loaded or stored."""
        return self._backend.current if self.epoch.is_usable else None

    def renew(self) -> None:
        """Moves to namespaces that no other process has."""
        self._backend.renew()
        self.epoch.drains += 1

    def close(self) -> None:
        """Closes the store; no transfer may be in flight."""
        self.epoch.close()
        self._backend.close()
