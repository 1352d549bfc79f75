"""KV events of the direct path: what `KvEvents` says of blocks there, in vLLM's terms for routers.

1. A key is vLLM's own hash of a block with the number of the KV-cache group. Only blocks that these
   hashes name alone are announced: not those of requests with media.
2. A block is there if all ranks have it.
3. A block is announced only when the one before it is: routers drop it otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_events import MEDIUM_STORAGE, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash

from dalsegno.integrations.common.opening import Opened
from dalsegno.integrations.vllm import compat
from dalsegno.integrations.vllm.direct.requests import DirectRequest
from dalsegno.integrations.vllm.events import OWNERSHIP, Form, KvEvents, are_on
from dalsegno.integrations.vllm.metrics import Meter
from dalsegno.integrations.vllm.settings import TierSettings

# How far before a block that was stored others are looked for that were not announced.
MOST_BACK = 1024


@dataclass(frozen=True, slots=True)
class BlockTokens:
    """What routers must know of a block.

    Attributes:
        parent: Key of the block before it; None for the first one.
        tokens: Its tokens.
    """

    parent: bytes | None
    tokens: list[int]


class Announcer:
    """Announces blocks of requests."""

    def __init__(self, settings: TierSettings, config: Any, tokens: int, meter: Meter) -> None:
        """Starts with nothing published.

        Args:
            settings: Those of the connector.
            config: vLLM's `OffloadingConfig`, with one group whose blocks are those of the store.
            tokens: Tokens of a block.
            meter: Counts events.
        """
        (self._group,), self._tokens = compat.groups(config), tokens
        form = Form(
            self._stored, self._removed, _peek, self._groups, parent=lambda block: block.parent
        )
        is_on = are_on(settings, config)
        self._events = KvEvents(settings.kv_events_keys, form, meter) if is_on else None

    def announce(self, opened: Opened | None, state: DirectRequest, first: int, end: int) -> None:
        """Announces blocks of a request that the store has, and those that waited for them.

        Args:
            opened: The store.
            state: The request.
            first: Position of the first block that was loaded or stored.
            end: Position behind the last one.
        """
        events, names = self._events, state.names
        if events is None or state.content is not None or first == end:
            return
        state.stored_end = end = max(end, state.stored_end)
        back = max(0, first - MOST_BACK)
        while first > back and not events.is_known(self._key(names[first - 1])):
            first -= 1
        known, each = state.request.all_token_ids, self._tokens
        blocks, parent = dict[bytes, BlockTokens](), self._key(names[first - 1]) if first else None
        for at in range(first, end):
            key = self._key(names[at])
            if not events.is_known(key):
                blocks[key] = BlockTokens(parent, list(known[at * each : (at + 1) * each]))
            parent = key
        events.announce(opened, blocks)

    def take(self, opened: Opened | None) -> list[Any]:
        """Returns the events of this step; without a store, everything is withdrawn."""
        return [] if self._events is None else self._events.take(opened)

    def withdraw_all(self) -> None:
        """Withdraws everything that is published."""
        if self._events is not None:
            self._events.withdraw_all()

    def is_pending(self) -> bool:
        """Whether a step would emit events."""
        return self._events is not None and self._events.pending()

    def _key(self, name: bytes) -> bytes:
        return compat.join_key(name, self._group)

    def _groups(self, opened: Opened) -> Mapping[str, int]:
        return {one.id: self._group for one in opened.namespaces.values()}

    def _stored(self, blocks: Mapping[bytes, BlockTokens]) -> list[Any]:
        return [
            compat.kv_event(
                BlockStored,
                block_hashes=[_public(key)],
                parent_block_hash=None if block.parent is None else _public(block.parent),
                token_ids=block.tokens,
                block_size=self._tokens,
                lora_id=None,
                lora_name=None,
                medium=MEDIUM_STORAGE,
                group_idx=self._group,
                ownership=OWNERSHIP,
            )
            for key, block in blocks.items()
        ]

    def _removed(self, keys: list[bytes]) -> list[Any]:
        return [
            compat.kv_event(
                BlockRemoved,
                block_hashes=[_public(key) for key in keys],
                medium=MEDIUM_STORAGE,
                group_idx=self._group,
                ownership=OWNERSHIP,
            )
        ]


def _public(key: bytes) -> Any:
    """Returns the block hash of a key as vLLM publishes it."""
    return maybe_convert_block_hash(BlockHash(compat.split_key(key)[0]))


def _peek(opened: Opened, keys: Sequence[bytes]) -> list[tuple[bytes, bool]]:
    """Returns which blocks all ranks have; none counts as used."""
    hashes = [compat.split_key(key)[0] for key in keys]
    there = [True] * len(keys)
    for namespace in opened.namespaces.values():
        there = [one and also for one, also in zip(there, namespace.peek(hashes), strict=True)]
    return list(zip(keys, there, strict=True))
