"""A store's directory as the checks of the routes see it, and the blocks it must return."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.contract.routes import Route, Session, Shape
from tests.contract.subjects import contents

SMALL = Shape()


@dataclass
class Place:
    """A directory, its route, and whether a test damaged it.

    Attributes:
        route: The route.
        path: The path that the store is opened with.
        engine: The engine of the route; empty for a route without one.
        damaged: Whether its files need not be clean in the end.
    """

    route: Route
    path: Path
    engine: str = ""
    damaged: bool = False

    @property
    def directory(self) -> Path:
        """The folder with the store's files."""
        return self.route.directory(self.path)

    def open(
        self,
        shape: Shape = SMALL,
        *,
        identity: str = "a",
        timeout_s: float | None = None,
        **settings: object,
    ) -> Session:
        """Opens a session."""
        return self.route.open(self.path, shape, identity=identity, timeout_s=timeout_s, **settings)


def fill(session: Session, chain: Sequence[bytes], first: int = 0) -> list[bool]:
    """Puts the blocks of a chain from `first` on, each with the bytes derived from its hash."""
    return session.put(chain, contents(chain[first:], session.block_bytes), first)


def right_or_missing(session: Session, chain: Sequence[bytes]) -> list[bool]:
    """Loads blocks and checks the bytes of each hit. Returns which blocks hit."""
    return judged(session, chain, session.get(chain))


def judged(session: Session, chain: Sequence[bytes], found: Sequence[bytes | None]) -> list[bool]:
    """Asserts that each hit has the right bytes. Returns which blocks hit."""
    right = contents(chain, session.block_bytes)
    wrong = [
        at
        for at, (one, other) in enumerate(zip(found, right, strict=True))
        if one is not None and one != other
    ]
    assert not wrong, f"wrong bytes in blocks {wrong}"
    return [one is not None for one in found]


def leading(chain: Sequence[bytes], stored: Collection[bytes]) -> int:
    """How many blocks of a chain come before the first that is not stored."""
    return next((at for at, one in enumerate(chain) if one not in stored), len(chain))


def holds(session: Session, chain: Sequence[bytes], stored: Collection[bytes]) -> None:
    """Asserts that of these blocks exactly those in `stored` are there, with the right bytes."""
    count = leading(chain, stored)
    assert session.probe(chain) == count
    for _ in range(2):
        came = right_or_missing(session, chain)
        assert came[:count] == [True] * count
        assert not any(there and one not in stored for there, one in zip(came, chain, strict=True))
