"""Ways to a store: straight, or through an engine's integration. One small class each.

The checks of `test_routes_*.py` know nothing but these two classes. Who adds a tier, an I/O engine
or an integration writes one module beside this one with a `Route` and a `Session`, and names it in
`ROUTES`; every check then runs on it.

A check never sees an engine's words: a block is `block_bytes` bytes under a 32-byte hash. A route
turns that into pages, chunks or rows, moves them through the engine's own memory, and reads them
back from there.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# Engine -> its module beside this one. The engine's package decides whether it can run here.
ROUTES = {"": "straight", "vllm": "vllm_tier", "sglang": "sglang_backend", "lmcache": "lmcache_l2"}
# Bytes of a number, by the name of its dtype.
WIDTHS = {"float8_e4m3fn": 1, "uint8": 1, "bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class Shape:
    """What a block is made of.

    Attributes:
        layers: Layers of the model.
        tokens: Tokens of a block.
        heads: KV heads.
        head_dim: Numbers of a head.
        dtype: Name of the KV cache's dtype as torch has it, such as `bfloat16`.
    """

    layers: int = 2
    tokens: int = 4
    heads: int = 2
    head_dim: int = 16
    dtype: str = "bfloat16"

    @property
    def slice_bytes(self) -> int:
        """Bytes of one layer of a block: keys and values."""
        return 2 * self.tokens * self.heads * self.head_dim * WIDTHS[self.dtype]


class Session(ABC):
    """A store that is open on one route.

    Attributes:
        block_bytes: Size of a block here; a route may add padding to what a `Shape` says.
    """

    block_bytes: int

    @abstractmethod
    def put(self, chain: Sequence[bytes], blocks: Sequence[bytes], first: int = 0) -> list[bool]:
        """Puts blocks `chain[first:first + len(blocks)]`, waits, and tells which are kept."""

    @abstractmethod
    def probe(self, chain: Sequence[bytes]) -> int:
        """How many leading blocks the engine would be told are there."""

    @abstractmethod
    def get(self, chain: Sequence[bytes]) -> list[bytes | None]:
        """What the engine's memory holds of each block after a load, None where it was a miss.

        An engine that needs a whole run takes what comes before the first miss; what a route tells
        of blocks behind it must be right all the same.
        """

    @abstractmethod
    def interrupted_get(self, chain: Sequence[bytes]) -> list[bytes | None]:
        """As `get`, but called off at once in the engine's way; returns when memory is at rest.

        Where an engine interrupts only by resetting its caches, everything is forgotten as well,
        as `clear` does.
        """

    def scribble(self) -> Callable[[], bool] | None:
        """Overwrites the memory that the loads so far went to.

        Returns:
            What tells whether that memory is still as it was overwritten, so that whatever lands
            late is seen; None where a route cannot say. Nothing may be loaded in between.
        """
        return None

    @abstractmethod
    def clear(self) -> None:
        """Forgets every block of this session's identity, in the engine's way."""

    @abstractmethod
    def counters(self) -> dict[str, Any]:
        """The store's own counters, as `dalsegno.Store.stats` has them; empty without a store."""

    def failed_blocks(self) -> int:
        """How many blocks of puts the integration itself counts as failed."""
        return 0

    @abstractmethod
    def close(self) -> None:
        """Ends the session in the engine's way; the directory is free afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Route(ABC):
    """One way to a store, with fixed settings.

    Attributes:
        name: As it stands in the name of a test.
        threads: Who may call a session at once: `any`, or `one per direction` where an engine has
            one thread that puts and one that gets.
        dtypes: The dtypes that the engine can have.
        variant: Whether another route of the engine differs in nothing that matters to a check
            which starts the engine once more, in a process of its own: that one is enough.
    """

    name: str
    threads: str = "any"
    dtypes: Sequence[str] = tuple(WIDTHS)
    variant: bool = False

    def directory(self, path: Path) -> Path:
        """Where the files of a store lie that was opened at `path`."""
        return path

    @abstractmethod
    def open(
        self,
        path: Path,
        shape: Shape,
        *,
        identity: str = "a",
        timeout_s: float | None = None,
        **settings: object,
    ) -> Session:
        """Opens the store of a directory.

        Args:
            path: The directory.
            shape: What blocks are.
            identity: Stands for a model's weights; sessions of different ones share no block.
            timeout_s: The integration's own deadline for loads and stores; None is its default.
            **settings: Further settings of the store, such as `capacity`.

        Raises:
            dalsegno.UnavailableError: Another process owns the directory. An integration that runs
                on without a store then returns a session for which everything is a miss.
        """


def routes(engine: str) -> list[Route]:
    """Returns the routes of an engine; those without one for an empty name."""
    module = importlib.import_module(f"tests.contract.routes.{ROUTES[engine]}")
    found: list[Route] = module.ROUTES
    return found
