"""Recorded requests in Mooncake's format, as chains of blocks.

A line of a trace is a JSON object: ``input_length`` is the number of prompt tokens, ``hash_ids``
has one number per block of the prompt. Other members are ignored.

1. A block is its path from the front. The same number behind two prefixes makes two blocks, as in a
   store, where a name commits to everything before it.
2. Blocks are numbered in order of first occurrence, so a parent comes before its children.
"""

from __future__ import annotations

import gzip
import json
import lzma
import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Trace", "parse", "read_trace"]

NO_PARENT = -1


@dataclass(frozen=True)
class Trace:
    """The requests of a trace.

    Attributes:
        block_tokens: Tokens of a block.
        input_tokens: Prompt tokens of each request.
        requests: The blocks of each request in order, as numbers from 0.
        parents: For each block the block before it, ``NO_PARENT`` at the front of a prompt.
    """

    block_tokens: int
    input_tokens: list[int]
    requests: list[array[int]]
    parents: array[int]

    @property
    def blocks(self) -> int:
        """Number of distinct blocks."""
        return len(self.parents)

    def hit_tokens(self, request: int, leading_blocks: int) -> int:
        """Prompt tokens that the leading blocks of a request cover; its last block may be short."""
        return min(leading_blocks * self.block_tokens, self.input_tokens[request])


def parse(lines: Iterable[str], block_tokens: int | None = None) -> Trace:
    """Reads a trace.

    Args:
        lines: Its lines.
        block_tokens: Tokens of a block; ``None`` infers the power of two that fits the prompt with
            the most blocks.

    Raises:
        ValueError: A line is not of this format, or no request has a block.
    """
    edges: dict[tuple[int, int], int] = {}
    parents = array("i")
    input_tokens: list[int] = []
    requests: list[array[int]] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            tokens, ids = int(row["input_length"]), [int(one) for one in row["hash_ids"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"line {number} is no request in Mooncake's format, which has input_length and"
                f" hash_ids: {error!r}"
            ) from error
        chain, at = array("i"), NO_PARENT
        for one in ids:
            block = edges.setdefault((at, one), len(parents))
            if block == len(parents):
                parents.append(at)
            chain.append(block)
            at = block
        input_tokens.append(tokens)
        requests.append(chain)
    if not parents:
        raise ValueError("the trace has no request with a block")
    return Trace(block_tokens or _infer(input_tokens, requests), input_tokens, requests, parents)


def read_trace(path: Path, block_tokens: int | None = None) -> Trace:
    """Reads a trace from a file, which may be compressed.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is damaged or not in Mooncake's format.
    """
    opener: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            return parse(lines, block_tokens)
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise ValueError(f"{path} is no trace: {error}") from error


def _infer(input_tokens: list[int], requests: list[array[int]]) -> int:
    """Tokens of a block, from the longest prompt: at most one of its many blocks is short."""
    longest, tokens = max(zip(map(len, requests), input_tokens, strict=True))
    return 1 << round(math.log2(max(1, tokens / longest)))
