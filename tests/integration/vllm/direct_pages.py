"""What a small engine (`direct_rig.py`) has of vLLM's scheduler: requests and blocks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_events import BlockRemoved
from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash
from vllm.v1.request import RequestStatus

# Tokens and bytes of one of vLLM's blocks, in one layer.
TOKENS, PAGE = 4, 4096


def prefix_name(tokens: Sequence[int]) -> bytes:
    """vLLM's hash of a block that ends with these tokens."""
    return hashlib.sha256(repr(list(tokens)).encode()).digest()


def right_bytes(name: bytes, layer: int, rank: int) -> torch.Tensor:
    """What one layer of a block has on a rank."""
    halves = [hashlib.sha256(name + bytes([layer, rank, half])).digest() for half in (0, 1)]
    whole = b"".join(seed * (PAGE // 2 // len(seed)) for seed in halves)
    return torch.frombuffer(bytearray(whole), dtype=torch.uint8)


@dataclass
class Asked:
    """A request as vLLM's scheduler has it."""

    request_id: str
    tokens: list[int]
    num_prompt_tokens: int
    most_tokens: int
    num_computed_tokens: int = 0
    kv_transfer_params: dict[str, Any] | None = None
    pages: list[int] = field(default_factory=list)
    was_preempted: bool = False
    # Tokens of the next step.
    scheduled: int = 0
    status: RequestStatus = RequestStatus.WAITING

    @property
    def all_token_ids(self) -> list[int]:
        return self.tokens

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def block_hashes(self) -> list[bytes]:
        ends = range(TOKENS, len(self.tokens) + 1, TOKENS)
        return [prefix_name(self.tokens[:end]) for end in ends]


class Pages:
    """vLLM's blocks: which are free, which are shared, and which prefix each has."""

    def __init__(self, count: int) -> None:
        self.free = list(range(count))
        self.users: Counter[int] = Counter()
        self.cached: dict[bytes, int] = {}

    def cached_prefix(self, request: Asked) -> list[int]:
        """The blocks with the longest prefix of a request, without its last token."""
        found = []
        for name in request.block_hashes[: (request.num_tokens - 1) // TOKENS]:
            if name not in self.cached:
                break
            found.append(self.cached[name])
        return found

    def share(self, pages: Sequence[int]) -> None:
        for page in pages:
            self.users[page] += 1
            if page in self.free:
                self.free.remove(page)

    def take(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        self.users.update(taken)
        self.forget(taken)
        return taken

    def forget(self, pages: Collection[int]) -> None:
        self.cached = {name: page for name, page in self.cached.items() if page not in pages}

    def give_back(self, pages: Sequence[int]) -> None:
        for page in reversed(pages):
            self.users[page] -= 1
            if not self.users[page]:
                del self.users[page]
                self.free.append(page)


class Caches:
    """The KV cache of each rank, and what a model computes into it.

    A block is noise if one that it depends on does not have its right bytes on some rank.

    Attributes:
        ranks: By rank: layer -> blocks.
        weights: Number of the model's weights: others give other bytes.
    """

    def __init__(self, names: Sequence[str], ranks: int, pages: int) -> None:
        # Keys and values apart, as vLLM has them on the CPU.
        shape = (2, pages, PAGE // 2)
        self.ranks = [
            {name: torch.zeros(shape, dtype=torch.uint8) for name in names} for _ in range(ranks)
        ]
        self.weights, self._names = 0, names

    def right(self, name: bytes, layer: int, rank: int) -> torch.Tensor:
        """What one layer of a block must have on a rank."""
        return right_bytes(name + bytes([self.weights]), layer, rank)

    def compute(self, request: Asked, count: int, layer: int) -> bool:
        """Computes a layer of the last tokens of a request; returns whether it is right."""
        end, is_right = request.num_computed_tokens, True
        begin = end - count
        for at in range(-(-end // TOKENS)):
            first, last = at * TOKENS, min(end, (at + 1) * TOKENS)
            known = min(begin, last)
            if known > first:
                is_right &= self._has(request.pages[at], request.tokens[:known], layer)
            if last > begin:
                self._write(request.pages[at], request.tokens[:last], layer, is_right=is_right)
        return is_right

    def _has(self, page: int, tokens: Sequence[int], layer: int) -> bool:
        """Whether a block is right on all ranks."""
        name, key = prefix_name(tokens), self._names[layer]
        return all(
            torch.equal(cache[key][:, page].flatten(), self.right(name, layer, rank))
            for rank, cache in enumerate(self.ranks)
        )

    def _write(self, page: int, tokens: Sequence[int], layer: int, *, is_right: bool) -> None:
        name = prefix_name(tokens) if is_right else b"noise"
        for rank, cache in enumerate(self.ranks):
            cache[self._names[layer]][:, page] = self.right(name, layer, rank).view(2, -1)


class Router:
    """What a router learns from KV events.

    Attributes:
        blocks: The tokens of each block that it counts on, from the start of the prompt.
    """

    def __init__(self) -> None:
        self.blocks: dict[Any, list[int]] = {}
        self._known: dict[Any, list[int]] = {None: []}

    def follow(self, events: Sequence[Any]) -> None:
        for event in events:
            assert (event.medium, event.group_idx) == ("STORAGE", 0)
            if isinstance(event, BlockRemoved):
                for name in event.block_hashes:
                    del self.blocks[name]
                continue
            assert event.block_size == len(event.token_ids)
            (name,) = event.block_hashes
            assert name not in self.blocks, "announced twice"
            tokens = [*self._known[event.parent_block_hash], *event.token_ids]
            assert name == public_name(tokens)
            self.blocks[name] = self._known[name] = tokens


def public_name(tokens: Sequence[int]) -> Any:
    """A block's hash as vLLM publishes it."""
    return maybe_convert_block_hash(BlockHash(prefix_name(tokens)))


def take_back(
    remote: Iterable[Asked], requests: Iterable[Asked], tokens: dict[str, int], invalid: set[int]
) -> set[str]:
    """Takes back what was computed from blocks that were not loaded, as vLLM does.

    Only the first of several requests with such a block computes it again, and the block stays in
    vLLM's own cache.

    Args:
        remote: Requests that wait for loads.
        requests: Those that were computed.
        tokens: How many tokens of each were computed.
        invalid: The blocks.

    Returns:
        The names of the computed requests with such blocks.
    """
    for one in remote:
        bad = next((at for at, page in enumerate(one.pages) if page in invalid), None)
        if bad is not None:
            one.num_computed_tokens = min(one.num_computed_tokens, bad * TOKENS)
    marked, taken = set[int](), set[str]()
    for one in requests:
        before = one.num_computed_tokens - tokens[one.request_id]
        of_load = [at for at in range(-(-before // TOKENS)) if one.pages[at] in invalid]
        own = [at for at in of_load if one.pages[at] not in marked]
        marked |= {one.pages[at] for at in own}
        if of_load:
            taken.add(one.request_id)
            one.num_computed_tokens = own[0] * TOKENS if own else before
    return taken


def engine_config(chunk: int, parallel: Any) -> SimpleNamespace:
    """Returns what the scheduler's half looks at in vLLM's configuration.

    Args:
        chunk: Tokens that a step computes at most.
        parallel: How many ranks there are.
    """
    return SimpleNamespace(
        model_config=SimpleNamespace(is_encoder_decoder=False, dtype=torch.float32),
        cache_config=SimpleNamespace(enable_prefix_caching=True),
        kv_transfer_config=SimpleNamespace(kv_load_failure_policy="recompute"),
        scheduler_config=SimpleNamespace(async_scheduling=False, max_num_batched_tokens=chunk),
        parallel_config=parallel,
    )


def scheduler_output(
    new: list[Any], cached: list[Any], tokens: dict[str, int], preempted: set[str]
) -> SimpleNamespace:
    """Returns a `SchedulerOutput`."""
    return SimpleNamespace(
        num_scheduled_tokens=tokens,
        preempted_req_ids=preempted,
        scheduled_new_reqs=[
            SimpleNamespace(req_id=one.request_id, block_ids=(given,)) for one, given, _ in new
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[one.request_id for one, *_ in cached],
            new_block_ids=[(given,) if given else None for _, given, _ in cached],
            resumed_req_ids={one.request_id for one, _, is_first in cached if is_first},
        ),
    )


def write_if(scheduler: Any, writes: Callable[[], bool]) -> None:
    """Lets blocks be written to the disk only if a function says so."""
    keeping = SimpleNamespace(writes=lambda _: writes(), has_declined=True)
    scheduler._keeping = scheduler._planner._keeping = keeping
