"""KV events, on both paths: which blocks of the store a router may count on.

1. A block is announced when the store has it, and withdrawn after it left. Between two steps, what
   was published is a subset of the store but for removals that wait in the queues here.
2. Everything is bounded: the keys that are remembered, the store's queue of removals, and the work
   of one step. What is over a bound is not announced.
3. If removals were lost, every published block is compared with the store, some thousand per step.
   A tier has no event for "all blocks are gone": that one would clear the GPU's blocks too.
4. A removal is emitted before the same block is announced again. Where routers drop a block whose
   parent they do not know, it is announced only if its parent is published.
5. A published key is in exactly one of three sets: `_published`, `_doubtful` (to be compared with
   the store) and `_removed` (to be withdrawn).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.logger import init_logger
from vllm.v1.kv_offload.base import Locality, Medium

from dalsegno.integrations.common.opening import Opened
from dalsegno.integrations.common.trouble import is_suspended
from dalsegno.integrations.vllm import compat
from dalsegno.integrations.vllm.metrics import Meter
from dalsegno.integrations.vllm.settings import TierSettings
from dalsegno.integrations.vllm.transfers import peek

logger = init_logger("vllm.dalsegno")

# Who owns these blocks, for consumers of the events.
OWNERSHIP = "dalsegno"
# Removals that may wait in the store.
QUEUE_BLOCKS = 1 << 16
# Blocks that one step withdraws, takes from the queue, or compares with the store.
BLOCKS_PER_STEP = 4096
# A comparison that takes longer is one of fewer blocks at the next step.
LATE_S = 0.05
FEW_BLOCKS = 64
# How long a watch is left alone that twice in a row knew only that something was lost: a server may
# refuse it each time.
PAUSE_S = 1.0


def are_on(settings: TierSettings, config: Any) -> bool:
    """Whether KV events are on, in the settings and in vLLM.

    Args:
        settings: The tier's settings.
        config: vLLM's `OffloadingConfig`.
    """
    if not settings.enable_kv_events:
        return False
    is_on, _ = compat.kv_events(config)
    if not is_on:
        logger.warning(
            "Dalsegno reports no KV events: enable_kv_events is set, but vLLM publishes none. "
            "Start it with --kv-events-config '{\"enable_kv_cache_events\": true, ...}'."
        )
    return is_on


def open_events(
    settings: TierSettings, config: Any, locality: Locality | None, meter: Meter
) -> KvEvents | None:
    """Returns the KV events of a tier; None if they are off, for the tier or in vLLM.

    Args:
        settings: The tier's settings.
        config: vLLM's `OffloadingConfig`.
        locality: Where the tier is, in vLLM's terms.
        meter: Counts events.
    """
    if not are_on(settings, config):
        return None
    _, names_tokens = compat.kv_events(config)
    if not names_tokens:
        logger.warning(
            "Dalsegno's KV events name no tokens, so routers drop them: "
            '"self_describing_kv_events" is off in kv_connector_extra_config. Set it to true.'
        )
    if locality is Locality.REMOTE:
        logger.warning(
            "Dalsegno's KV events say that the tier is REMOTE, and NVIDIA Dynamo drops those. "
            "Leave locality out for a store on this machine."
        )
    # vLLM then keeps the tokens of each block in memory until it is withdrawn. It needs them only
    # to name all blocks of a chunk.
    removal_expected = config.cache.blocks_per_chunk > 1

    def event(keys: list[bytes], *, removed: bool) -> Any:
        return compat.offloading_event(
            keys,
            medium=Medium.STORAGE,
            removed=removed,
            locality=locality,
            ownership=OWNERSHIP,
            removal_expected=removal_expected and not removed,
        )

    form = Form(
        stored=lambda blocks: [event(list(blocks), removed=False)],
        removed=lambda keys: [event(keys, removed=True)],
        peek=peek,
        groups=lambda opened: {one.id: group for group, one in opened.namespaces.items()},
    )
    return KvEvents(settings.kv_events_keys, form, meter)


@dataclass(frozen=True)
class Form:
    """How a path names its blocks, and what it reports of them. A key is a hash and a group.

    Attributes:
        stored: Builds vLLM's events of blocks that are there, by key; the values are those that
            were given to `KvEvents.announce`.
        removed: Builds vLLM's events of blocks that left.
        peek: Returns which keys a store has.
        groups: Returns the KV-cache groups of the namespaces of a store, by the namespaces' ids.
        parent: Returns the key of the block before one; None if it is the first one, or if that
            does not matter.
    """

    stored: Callable[[Mapping[bytes, Any]], list[Any]]
    removed: Callable[[list[bytes]], list[Any]]
    peek: Callable[[Opened, Sequence[bytes]], list[tuple[bytes, bool]]]
    groups: Callable[[Opened], Mapping[str, int]]
    parent: Callable[[Any], bytes | None] = lambda _: None


class KvEvents:
    """What is published of one engine, and what is to be published next."""

    def __init__(self, most_keys: int, form: Form, meter: Meter) -> None:
        """Starts with nothing published.

        Args:
            most_keys: Published keys that are remembered; beyond it no more are announced.
            form: How blocks are named.
            meter: Counts events.
        """
        self._most_keys, self._form, self._meter = most_keys, form, meter
        self._published: set[bytes] = set()
        self._doubtful: set[bytes] = set()
        self._removed: set[bytes] = set()
        # In the order of their prompts, as dictionaries keep it.
        self._stored: dict[bytes, Any] = {}
        self._store: Any = None
        self._watch: Any = None
        # How often in a row the watch knew only of a loss, and when it is asked again.
        self._gaps, self._watch_at = 0, 0.0
        self._paused = False
        self._compare_blocks = BLOCKS_PER_STEP

    def pending(self) -> bool:
        """Whether a step would emit events, or find out whether there are any."""
        return bool(
            self._stored
            or self._removed
            or (self._doubtful and not self._paused)
            or self._has_removals()
        )

    def announce(self, opened: Opened | None, blocks: Mapping[bytes, Any]) -> None:
        """Announces those of some blocks that the store has and that are not published.

        Args:
            opened: The store.
            blocks: What `Form.stored` gets, by key.
        """
        fresh = [key for key in blocks if not self.is_known(key)]
        if not fresh or opened is None:
            return
        # First, or a removal between the question and the watch would be missed.
        self._follow(opened)
        for key, there in self._form.peek(opened, fresh):
            if not there:
                continue
            if self._remembered() >= self._most_keys:
                self._meter.count("events_dropped_blocks")
            else:
                self._stored[key] = blocks[key]

    def withdraw_all(self) -> None:
        """Withdraws everything that is published: none of it can be loaded any more."""
        self._stored.clear()
        largest, *others = sorted((self._removed, self._doubtful, self._published), key=len)[::-1]
        for other in others:
            largest |= other
        self._removed, self._doubtful, self._published = largest, set(), set()

    def take(self, opened: Opened | None) -> list[Any]:
        """Returns the events of this step: removals first.

        Args:
            opened: The store; without one, everything is withdrawn.
        """
        has_gap = False
        if opened is None:
            self._store = self._watch = None
            self.withdraw_all()
        else:
            self._follow(opened)
            has_gap = self._take_removals(opened)
            self._compare(opened)
        gone = [key for key in self._stored if key in self._removed]
        self._removed.difference_update(gone)
        while self._removed and len(gone) < BLOCKS_PER_STEP:
            gone.append(self._removed.pop())
        # What was lost may be among them.
        new = self._publish(self._doubtful if has_gap else self._published)
        self._meter.count("events_removed_blocks", len(gone))
        self._meter.count("events_stored_blocks", len(new))
        events = self._form.removed(gone) if gone else []
        return [*events, *self._form.stored(new)] if new else events

    def _publish(self, known: set[bytes]) -> dict[bytes, Any]:
        """Returns the blocks to announce, which are added to those that are known."""
        stored, self._stored = self._stored, {}
        new: dict[bytes, Any] = {}
        for key, block in stored.items():
            parent = self._form.parent(block)
            if parent is None or parent in self._published or parent in self._doubtful:
                known.add(key)
                new[key] = block
        return new

    def is_known(self, key: bytes) -> bool:
        """Whether a block is published, or about to be."""
        return key in self._published or key in self._doubtful or key in self._stored

    def _remembered(self) -> int:
        """Returns how many keys are remembered."""
        return len(self._published) + len(self._doubtful) + len(self._removed) + len(self._stored)

    def _follow(self, opened: Opened) -> None:
        """Watches the removals of a store; what an earlier one had is compared with this one."""
        if self._store is not opened.store:
            self._watch = opened.store.watch_removals(QUEUE_BLOCKS)
            self._store = opened.store
            self._stored.clear()
            self._doubt()

    def _doubt(self) -> None:
        """Has everything that is published compared with the store."""
        if not (self._published or self._stored):
            return
        self._meter.count("events_resyncs")
        small, large = sorted((self._published, self._doubtful), key=len)
        large |= small
        self._published, self._doubtful = set(), large

    def _has_removals(self) -> bool:
        """Whether the watch has something to report."""
        if self._watch is None or time.monotonic() < self._watch_at:
            return False
        return bool(self._watch.waiting)

    def _take_removals(self, opened: Opened) -> bool:
        """Withdraws published blocks that left the store; returns whether others left too."""
        if not self._has_removals():
            return False
        gone, is_complete = self._watch.take(BLOCKS_PER_STEP)
        self._gaps = 0 if gone or is_complete else self._gaps + 1
        if self._gaps > 1:
            self._watch_at = time.monotonic() + PAUSE_S
        groups = self._form.groups(opened)
        for name, hashes in gone.items():
            # Blocks of other namespaces are other engines', or were withdrawn with their epoch.
            if name in groups:
                for one in hashes:
                    self._withdraw(compat.join_key(one, groups[name]))
        if not is_complete:
            self._doubt()
        return not is_complete

    def _withdraw(self, key: bytes) -> None:
        """Withdraws a block, if it is published; does not announce it, if it is about to be."""
        self._stored.pop(key, None)
        if key in self._published or key in self._doubtful:
            self._published.discard(key)
            self._doubtful.discard(key)
            self._removed.add(key)

    def _compare(self, opened: Opened) -> None:
        """Compares some of the doubtful blocks with the store."""
        if not self._doubtful:
            return
        # A disk that does not respond hides blocks that are still there.
        self._paused = is_suspended(opened.store.stats())
        if self._paused:
            return
        started = time.monotonic()
        some = list(itertools.islice(self._doubtful, self._compare_blocks))
        compared = self._form.peek(opened, some)
        # The store answers within a bound of its own; what an on-disk index did not find until then
        # may be there.
        is_late = time.monotonic() - started > LATE_S
        self._compare_blocks = FEW_BLOCKS if is_late else BLOCKS_PER_STEP
        for key, there in compared:
            if there or not is_late:
                self._doubtful.discard(key)
                (self._published if there else self._removed).add(key)
