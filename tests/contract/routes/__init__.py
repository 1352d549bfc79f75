"""Ways to a store: directly, or through an engine's integration. One small class each.

The checks of `test_routes_*.py` know nothing but these two classes. To add a tier, an I/O engine or
an integration, write one module next to this one with a `Route` and a `Session`, and name it in
`ROUTES`: every check then runs on it.

A check never sees an engine's terms: a block is `block_bytes` bytes under a 32-byte hash. A route
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

# Engine -> its module in this package. The engine's package decides whether it can run here.
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
        """Puts blocks `chain[first:first + len(blocks)]`, waits, and returns which are kept."""

    @abstractmethod
    def probe(self, chain: Sequence[bytes]) -> int:
        """How many leading blocks the route reports to the engine as present."""

    @abstractmethod
    def get(self, chain: Sequence[bytes]) -> list[bytes | None]:
        """What the engine's memory holds of each block after a load, None where it was a miss.

        An engine that needs a whole run uses the blocks before the first miss. The blocks that a
        route returns after the first miss must be right too.
        """

    @abstractmethod
    def interrupted_get(self, chain: Sequence[bytes]) -> list[bytes | None]:
        """As `get`, but cancelled immediately in the engine's way; returns when no byte can arrive.

        An engine that interrupts loads only by resetting its caches forgets all blocks too, as
        `clear` does.
        """

    def scribble(self) -> Callable[[], bool] | None:
        """Overwrites the memory that the loads so far went to.

        Returns:
            A function that reports whether that memory still has the overwritten bytes, so that a
            late arrival is detected. None if a route cannot check. Load nothing in between.
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
        name: Its name in the name of a test.
        threads: Which threads may call a session concurrently: `any`, or `one per direction` if the
            engine has one thread that puts and one that gets.
        dtypes: The dtypes that the engine can have.
        variant: Whether another route of the engine differs in nothing that matters to a check
            which starts the engine once more, in a process of its own: that one is enough.
    """

    name: str
    threads: str = "any"
    dtypes: Sequence[str] = tuple(WIDTHS)
    variant: bool = False

    def directory(self, path: Path) -> Path:
        """The folder with the files of a store that was opened at `path`."""
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
            identity: Represents a model's weights; sessions of different ones share no block.
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
