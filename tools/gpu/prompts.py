"""Prompts of random tokens: the same ones for the same seed, in every process."""

from __future__ import annotations

import random

# Low numbers are special tokens of many models.
FIRST_TOKEN = 10


def prompt(n: int, seed: int, vocabulary: int) -> list[int]:
    """Returns the tokens of a prompt.

    Args:
        n: How many.
        seed: Decides which. Prompts of different seeds share no block.
        vocabulary: Tokens that the model knows.
    """
    # Not for cryptography.
    draw = random.Random(f"{n} {seed}")  # noqa: S311
    return [draw.randrange(FIRST_TOKEN, vocabulary) for _ in range(n)]
