"""The ten stages: a workload whose expected hit rate changes as it goes.

The SGLang-LSM paper (section 4.1) fills the caches with a warm-up of prompts, then sends as many
prompts in each of ten stages, and calls the share of a stage's prompt tokens that an earlier prompt
had already its *expected hit rate*. It does not say whose tokens are shared; here:

1. A prompt of the warm-up shares nothing.
2. A prompt of a stage is the first ``k`` blocks of one earlier prompt, then blocks that no prompt
   had. ``k`` is the stage's rate times the blocks of a prompt; what rounding leaves is carried to
   the stage's next prompt. So a cache that forgets nothing hits exactly ``k`` blocks of it, and
   the whole stage within half a block of the expected rate.
3. Which earlier prompt is drawn from all of them, the warm-up's included: ``recent`` draws an age
   whose logarithm is uniform, so that each doubling of what a cache remembers is worth something;
   ``uniform`` makes all ages alike, so that a cache hits by its capacity alone.

The same arguments make the same prompts, on every machine.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["EXPECTED", "REUSES", "Dynamic", "Oracle", "Prompt", "Reuse"]

Reuse = Literal["recent", "uniform"]
REUSES: tuple[Reuse, ...] = get_args(Reuse)
# SGLang-LSM, section 4.1.
EXPECTED = (0.2, 0.3, 0.5, 0.7, 0.5, 0.3, 0.1, 0.3, 0.5, 0.7)
HASH_BYTES = 32


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as a store sees it.

    Attributes:
        names: The hashes of its blocks, ``HASH_BYTES`` bytes each, one after the other. Each
            commits to all blocks before it.
        shared_blocks: Leading blocks that an earlier prompt had.
    """

    names: bytes
    shared_blocks: int

    @property
    def chain(self) -> list[bytes]:
        """The hashes of its blocks."""
        return [self.names[at : at + HASH_BYTES] for at in range(0, len(self.names), HASH_BYTES)]


@dataclass(frozen=True)
class Dynamic:
    """The ten stages for prompts of one length.

    Attributes:
        prompt_tokens: Tokens of every prompt, a multiple of ``block_tokens``.
        block_tokens: Tokens of a block.
        requests: Prompts of a stage; the paper has 1,000.
        warmup_prompts: Prompts before the first stage; the paper has 100 million tokens of them.
        reuse: How the earlier prompt is drawn.
        seed: Another seed makes other prompts that share nothing with these.
        expected: The stages' expected hit rates, each at least 0 and below 1.
    """

    prompt_tokens: int
    block_tokens: int
    requests: int
    warmup_prompts: int
    reuse: Reuse = "recent"
    seed: int = 1
    expected: tuple[float, ...] = EXPECTED

    def __post_init__(self) -> None:
        """Checks the attributes.

        Raises:
            ValueError: An attribute does not fit, with what would.
        """
        if self.block_tokens < 1 or self.prompt_tokens % self.block_tokens or not self.blocks:
            raise ValueError(
                f"{self.prompt_tokens} prompt tokens are not whole blocks of {self.block_tokens}"
            )
        if self.requests < 1 or self.warmup_prompts < 1:
            raise ValueError("a stage and the warm-up have one prompt or more")
        if not all(0 <= rate < 1 for rate in self.expected):
            raise ValueError("an expected hit rate is at least 0 and below 1")
        if self.reuse not in REUSES:
            raise ValueError(f"reuse is one of {', '.join(REUSES)}")

    @property
    def blocks(self) -> int:
        """Blocks of a prompt."""
        return self.prompt_tokens // self.block_tokens

    def phases(self) -> Iterator[list[Prompt]]:
        """Yields the prompts of the warm-up, then those of each stage."""
        draw = random.Random(f"{self}")  # noqa: S311 - repeatable, not secret
        seen: list[Prompt] = []
        for rate in (None, *self.expected):
            phase = []
            count = self.warmup_prompts if rate is None else self.requests
            for number in range(1, count + 1):
                shared = 0 if rate is None else self._share(rate, number)
                parent = seen[-self._age(draw, len(seen))] if shared else None
                prompt = self._prompt(len(seen), parent, shared)
                seen.append(prompt)
                phase.append(prompt)
            yield phase

    def _share(self, rate: float, number: int) -> int:
        """Blocks that a stage's prompt ``number``, from 1, shares."""
        exact = rate * self.blocks
        return int(exact * number + 0.5) - int(exact * (number - 1) + 0.5)

    def _age(self, draw: random.Random, seen: int) -> int:
        """How many prompts ago the one that is shared came: 1 to ``seen``."""
        if self.reuse == "uniform":
            return draw.randint(1, seen)
        return min(seen, int((seen + 1) ** draw.random()))

    def _prompt(self, number: int, parent: Prompt | None, shared: int) -> Prompt:
        names = bytearray(parent.names[: shared * HASH_BYTES] if parent else b"")
        name = bytes(names[-HASH_BYTES:])
        for _ in range(shared, self.blocks):
            # The prompt's number represents the tokens that only it has.
            name = hashlib.sha256(b"%b/%d/%d" % (name, self.seed, number)).digest()
            names += name
        return Prompt(bytes(names), shared)


class Oracle:
    """A cache that stores every block and evicts none: an upper bound on hits."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def serve(self, chain: Sequence[bytes]) -> int:
        """Stores a prompt; returns how many of its leading blocks were present."""
        hits = 0
        for name in chain:
            if name not in self._known:
                break
            hits += 1
        self._known.update(chain)
        return hits
