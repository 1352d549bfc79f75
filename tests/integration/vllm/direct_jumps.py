"""Requests of a small engine (`direct_rig.py`) that jump over blocks which were loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.integration.vllm.direct_pages import TOKENS, Asked

from dalsegno.integrations.common.deciding import Decision

if TYPE_CHECKING:
    from tests.integration.vllm.direct_rig import Rig


class Manager:
    """What of vLLM's `KVCacheManager` both ends need."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def allocate_slots(self, request: Asked, tokens: int, *, delay_cache_blocks: bool) -> Any:
        """Gives a request all blocks up to a token."""
        assert delay_cache_blocks
        assert not request.num_computed_tokens
        needed = max(0, -(-tokens // TOKENS) - len(request.pages))
        if needed > len(self._rig.pages.free):
            return None
        request.pages += self._rig.pages.take(needed)
        return request.pages

    def get_block_ids(self, name: str) -> tuple[list[int]]:
        """Returns all blocks of a request."""
        (request,) = (one for one in self._rig.waiting if one.request_id == name)
        return (request.pages,)


def use_both_ends(rig: Rig, decide: Callable[[int], tuple[int, int]]) -> None:
    """Lets requests compute their front while their back is loaded.

    Args:
        rig: The engine.
        decide: Given how many blocks were found, returns how many should be computed, and the
            blocks of a part; 0 computed ones for another way.
    """
    decider = rig.scheduler._offers.decider
    usual = decider.decide

    def decided(wish: Any) -> Decision:
        front, part = decide(wish.blocks) if wish.both_ends else (0, 1)
        if not 0 < front < wish.blocks:
            return usual(wish)
        return Decision(wish.blocks, load_s=1e-3, front=front, part=part)

    decider.decide = decided  # type: ignore[method-assign]
    rig.scheduler.both_ends.join(Manager(rig))


def jump(rig: Rig) -> int:
    """Lets requests go on behind their backs, as our scheduler does; returns the tokens between."""
    jumped = 0
    for one in rig.scheduler.jumps():
        request = one.state.request
        assert request in rig.running
        assert request.num_computed_tokens < one.tokens < request.num_tokens
        jumped += one.tokens - request.num_computed_tokens
        request.num_computed_tokens = one.tokens
    return jumped
