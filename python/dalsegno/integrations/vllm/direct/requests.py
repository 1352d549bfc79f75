"""What the scheduler's half knows of a request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dalsegno.integrations.common.meeting import Meeting
from dalsegno.integrations.vllm import inputs
from dalsegno.integrations.vllm.direct.step import LoadWay


@dataclass
class Offer:
    """What a request was promised.

    Attributes:
        first: Position of the first promised block in the prompt.
        count: Number of blocks.
        way: When and from where they are loaded.
        timeout_s: Seconds that the load may take.
        wait_s: Seconds for which its step waits for all of its loads, before this one fails.
        layer_s: Seconds that their step computes each layer; 0 if no step waits for reads.
        runs: The tiers of the blocks.
        load_s: Seconds that they take, as predicted.
        saved_s: Seconds of computing that the load saves, as predicted.
        leases: The blocks in their places, by namespace, if they are copied inside the step.
        is_void: Whether they must not be loaded any more.
        meeting: Where the computed front meets them, if they are loaded from the last one on.
    """

    first: int
    count: int
    way: LoadWay
    timeout_s: float
    wait_s: float = 0.0
    layer_s: float = 0.0
    runs: Sequence[tuple[str, int]] = ()
    load_s: float = 0.0
    saved_s: float = 0.0
    leases: Sequence[Any] = ()
    is_void: bool = False
    meeting: Meeting | None = None


@dataclass
class DirectRequest:
    """What is known about a request.

    Attributes:
        request: vLLM's.
        content: Its media; None without.
        names: Names of its blocks, as far as they are known.
        pages: vLLM's blocks, in the order of the prompt.
        offer: What it was promised last.
        next_save: Position of the first block that is neither loaded nor saved.
        stored_end: Position behind the last block that it has loaded or stored.
        counted: Whether its blocks were counted as looked up.
        declined: Whether those were counted that are not worth loading.
        saved_s: What loads of others had saved when it arrived.
        deferred_s: How long it has waited for loads of other requests.
        deferred_at: Since when it waits for one; None if it does not.
        was_refused: Whether a load of it was not begun: it does not try another one.
        was_short: Whether some of its blocks were not in places: they are not leased again.
        retries: How many of its saves were given up and planned again.
        is_stale: Whether some of its blocks may be of weights that were replaced: none is saved.
    """

    request: Any
    content: inputs.Content | None
    names: list[bytes] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    offer: Offer | None = None
    next_save: int = 0
    stored_end: int = 0
    counted: bool = False
    declined: bool = False
    saved_s: float = 0.0
    deferred_s: float = 0.0
    deferred_at: float | None = None
    was_refused: bool = False
    was_short: bool = False
    retries: int = 0
    is_stale: bool = False

    def forget_pages(self) -> None:
        """Notes that vLLM took its blocks, and computes all of it again."""
        self.pages.clear()
        self.next_save, self.is_stale = 0, False
        self.was_refused = self.was_short = False

    def names_of_blocks(self, hashes_per_block: int, tokens_per_block: int) -> list[bytes]:
        """Returns the names of all full blocks.

        Args:
            hashes_per_block: How many of vLLM's hashes a block of the store has.
            tokens_per_block: Tokens of a block of the store.
        """
        each = hashes_per_block
        new = self.request.block_hashes[len(self.names) * each + each - 1 :: each]
        if self.content is None:
            self.names += map(bytes, new)
        else:
            for one in new:
                end = (len(self.names) + 1) * tokens_per_block
                self.names.append(self.content.name(bytes(one), end))
        return self.names

    @property
    def is_computing_prompt(self) -> bool:
        """Whether it has blocks, and computes more than its next token."""
        left: int = self.request.num_tokens - self.request.num_computed_tokens
        return bool(self.pages) and left > 1

    @property
    def may_load(self) -> bool:
        """Whether blocks may be loaded, as the request and its parameters say."""
        # vLLM computes all of a prompt for the log-probabilities of its tokens. After a refusal,
        # trying again and again may take longer than computing.
        if self.was_refused or getattr(self.request, "skip_reading_prefix_cache", False):
            return False
        tiers = self._parameters.get("kv_load_tiers")
        return tiers is None or any(one.get("medium") == "STORAGE" for one in tiers)

    def loadable_tokens(self, computed: int) -> int:
        """Returns the tokens of which blocks may be loaded, all but the last one.

        Args:
            computed: Tokens that vLLM has itself.
        """
        tokens: int = self.request.num_tokens
        most = self._limit("max_load_tokens")
        return tokens if most is None else min(tokens, computed + most + 1)

    def may_defer(self, most_s: float) -> bool:
        """Notes that it waits for a load of another request; whether it may, in all so long."""
        now = time.monotonic()
        if self.deferred_at is not None:
            self.deferred_s += now - self.deferred_at
        self.deferred_at = now if self.deferred_s < most_s else None
        return self.deferred_at is not None

    def savable_tokens(self, computed: int, *, prompt_only: bool) -> int:
        """Returns of how many tokens blocks may be saved.

        Args:
            computed: Tokens that vLLM has computed after a step.
            prompt_only: Whether only blocks of prompts are saved.
        """
        limits = [computed, self.request.num_tokens]
        if prompt_only:
            limits.append(self.request.num_prompt_tokens)
        if (most := self._limit("max_offload_tokens")) is not None:
            limits.append(most)
        fewest: int = min(limits)
        return fewest

    @property
    def _parameters(self) -> dict[str, Any]:
        return getattr(self.request, "kv_transfer_params", None) or {}

    def _limit(self, name: str) -> int | None:
        """Returns a number of tokens that the parameters give."""
        most = self._parameters.get(name)
        return most if type(most) is int and most >= 0 else None
