"""Whether a lookup loads or its prompt is computed, from measured loads and a profile of computing.

LMCache asks before it looks anything up. So a lookup is expected to hit as much, from the tier, as
the last one of its model.

1. A lookup loads unless that is predicted to be slower than computing by more than the guard. What
   is not known is loaded: the model, the tier, or how fast the engine computes.
2. While a prompt is computed that was declined, some objects of the last lookup with hits are read
   again: so a tier that became fast is found (`rereads.py`).
3. Nothing here waits for a disk, but for a profile, which is read at most once a minute.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dalsegno import merge_located, profiles
from dalsegno.integrations.common.deciding import Engine, LoadDecider
from dalsegno.integrations.common.rereads import Rereads
from dalsegno.integrations.common.wishes import Wish
from dalsegno.integrations.lmcache.meter import Meter
from dalsegno.integrations.lmcache.settings import AdapterSettings
from dalsegno.integrations.lmcache.spaces import Space

# Objects of the last lookup with hits that are remembered.
MOST_OBJECTS = 64
# How often a profile is looked for, in seconds, until there is one.
SEARCH_EVERY_S = 60.0
# Tokens that a step of the engine computes at most, if the profile does not say.
CHUNK = 8192
# Models whose last lookups are remembered.
MOST_MODELS = 64
# How many tokens of a prompt the engine has itself, as LMCache's connectors report it.
COMPUTED = "lmcache.hint.engine_computed_tokens"

# The costs of all open adapters of this process.
opened: weakref.WeakSet[LoadCosts] = weakref.WeakSet()


class Seen(NamedTuple):
    """What the last lookup with hits found.

    Attributes:
        tier: Where most of its bytes were.
        chunk_bytes: Bytes of a chunk of tokens, for all ranks.
        namespace: Where some of its objects are.
        hashes: Their names, in prefix order.
    """

    tier: str
    chunk_bytes: float
    namespace: Any
    hashes: Sequence[bytes]


@dataclass(frozen=True)
class Asked:
    """A lookup that is decided.

    Attributes:
        model: Its model.
        tokens: Tokens that it covers, from the first one on.
        computed: Of these, tokens that the engine has itself.
        chunk_tokens: Tokens of a chunk.
    """

    model: str
    tokens: int
    computed: int
    chunk_tokens: int


def sizes_of(space: Space, hashes: Sequence[bytes]) -> dict[str, int]:
    """Returns the bytes of objects by the tiers that they are in; what has left counts as `log`."""
    sizes, left = dict[str, int](), len(hashes)
    for run in space.namespace.locate(hashes):
        sizes[run["tier"]] = sizes.get(run["tier"], 0) + run["blocks"] * space.object_bytes
        left -= run["blocks"]
    if left:
        sizes["log"] = sizes.get("log", 0) + left * space.object_bytes
    return sizes


class LoadCosts:
    """What an adapter has measured, and what it decides.

    Attributes:
        is_used: Whether a policy asks. Without one nothing is measured.
    """

    def __init__(self, settings: AdapterSettings, meter: Meter, logger: logging.Logger) -> None:
        """Starts without measurements.

        Args:
            settings: Of the adapter.
            meter: Counts lookups that are declined.
            logger: Takes what the user should know.
        """
        self._settings, self._meter, self._logger = settings, meter, logger
        self._lock = threading.Lock()
        self._seen: dict[str, Seen] = {}
        self._decider: LoadDecider | None = None
        self._known: Mapping[str, Any] = {}
        self._searched_at: float | None = None
        self._rereads: Rereads | None = None
        self.is_used = False
        opened.add(self)

    def note_lookup(
        self, model: str, found: Sequence[tuple[Space, list[bytes]]], chunks: int
    ) -> None:
        """Notes what a lookup has found.

        Args:
            model: The model's name.
            found: The objects, by namespace.
            chunks: How many chunks of tokens they are, at least 1.
        """
        sizes: dict[str, int] = {}
        for space, hashes in found:
            for tier, size in sizes_of(space, hashes).items():
                sizes[tier] = sizes.get(tier, 0) + size
        if not sizes:
            return
        tier = max(sizes, key=lambda tier: sizes[tier])
        space, hashes = max(found, key=lambda one: len(one[1]))
        each = sum(sizes.values()) / chunks
        seen = Seen(tier, each, space.namespace, hashes[:MOST_OBJECTS])
        with self._lock:
            self._seen.pop(model, None)
            self._seen[model] = seen
            if len(self._seen) > MOST_MODELS:
                del self._seen[next(iter(self._seen))]

    def begin(self, number: int, sizes: dict[str, int]) -> None:
        """Notes that a load begins, of so many bytes from each tier."""
        with self._lock:
            if self._decider is not None and sizes:
                self._decider.begin_bytes(number, sizes)
                if self._rereads is not None:
                    self._rereads.note_loaded(list(sizes.items()))

    def end(self, number: int, seconds: float, *, is_whole: bool) -> None:
        """Learns how long a load took."""
        with self._lock:
            if self._decider is not None:
                self._decider.end_load(number, seconds, is_whole=is_whole)

    def should_load(self, asked: Asked) -> bool:
        """Returns whether a lookup loads."""
        self.is_used = True
        if self._settings.load_policy != "auto":
            return True
        with self._lock:
            decider, seen = self._find(asked.model), self._seen.get(asked.model)
            if decider is None or self._rereads is None or seen is None:
                return True
            self._rereads.take()
            wish = self._wish(decider, seen, asked)
            if wish is None or decider.loss_s(wish) <= decider.guard_s(wish):
                return True
            runs = merge_located([seen.namespace.locate(seen.hashes)], len(seen.hashes))
            computed_s = decider.computed_s(wish)
            self._rereads.offer([seen.namespace], seen.hashes, runs, computed_s)
        self._meter.count(load_declined=1)
        return False

    def _wish(self, decider: LoadDecider, seen: Seen, asked: Asked) -> Wish | None:
        """Returns what a lookup could load; None if the engine has all of it."""
        begin = asked.computed // asked.chunk_tokens
        chunks = asked.tokens // asked.chunk_tokens - begin
        if chunks <= 0:
            return None
        decider.engine = Engine(
            layers=max(1, int(self._known["engine"].get("layers", 1))),
            block_bytes=max(1, round(seen.chunk_bytes)),
            block_tokens=asked.chunk_tokens,
            chunk=int(self._known.get("table", {}).get("chunk", CHUNK)),
        )
        return Wish([(seen.tier, chunks)], begin * asked.chunk_tokens, asked.tokens)

    def _find(self, model: str) -> LoadDecider | None:
        """Returns what decides for a model; None as long as no profile is found for it."""
        given = self._settings.profile
        now = time.monotonic()
        is_due = self._searched_at is None or now - self._searched_at > SEARCH_EVERY_S
        if self._decider is None and is_due:
            known = found(given) if given else {}
            if known:
                kind = profiles.Profile(known["engine"], profiles.ComputePrior(1, 1, 1, 1), None)
                engine = Engine(layers=1, block_bytes=1, block_tokens=1, chunk=CHUNK)
                decider = LoadDecider(self._settings, engine, _Given(kind, known))
                self._decider, self._known, self._rereads = decider, known, Rereads(decider)
            elif self._searched_at is None:
                self._logger.warning(
                    "DalsegnoLoadPolicy loads every hit: %s.",
                    f"there is no profile of {given!r} in {profiles.folder()}"
                    if given
                    else 'adapter_params have no "profile", so it is unknown how fast is computed',
                )
            self._searched_at = now
        is_file = given.endswith(".json")
        return self._decider if is_file or model == given else None


class _Given(profiles.Profile):
    """A profile that is read and never written."""

    def __init__(self, kind: profiles.Profile, known: Mapping[str, Any]) -> None:
        super().__init__(kind.engine, profiles.ComputePrior(1, 1, 1, 1), None)
        self._content = known

    def model(self) -> Any:
        return self.model_of(self._content)


def found(given: str) -> dict[str, Any]:
    """Returns a profile; nothing if there is none.

    Args:
        given: Path of its file, which ends in `.json`, or the name of a model: then the profile of
            it that was written last.
    """
    if given.endswith(".json"):
        return profiles.read(Path(given).expanduser())
    found = [profiles.read(path) for path in profiles.files(profiles.folder())]
    of_model = [one for one in found if one and one["engine"].get("model") == given]
    return max(of_model, key=lambda one: float(one["saved_at"]), default={})
