"""Objects that the reference store returns: namespaces, reports, transfers, writers.

See `reference_store.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from tests.contract.reference_transfer import Load, Transfer

from dalsegno._native import InvalidError

if TYPE_CHECKING:
    from tests.contract.reference_store import Store

Block: TypeAlias = Any
HASH_BYTES = 32


def _pieces(block: Block) -> list[memoryview]:
    """Returns a block's buffers as flat views."""
    parts = list(block) if isinstance(block, (list, tuple)) else [block]
    return [memoryview(part).cast("B") for part in parts]


def _read(block: Block) -> bytes:
    """Copies the bytes out of a block."""
    return b"".join(piece.tobytes() for piece in _pieces(block))


def _write(block: Block, data: bytes) -> None:
    """Copies bytes into a block."""
    at = 0
    for piece in _pieces(block):
        piece[:] = data[at : at + len(piece)]
        at += len(piece)


def check(hashes: Sequence[bytes], blocks: Sequence[Block], count: int, size: int) -> None:
    """Checks the arguments that all calls share."""
    if any(len(bytes(one)) != HASH_BYTES for one in hashes):
        raise InvalidError(f"a block hash has {HASH_BYTES} bytes")
    if len(blocks) != count:
        raise InvalidError(f"{count} hashes but {len(blocks)} buffers; give one buffer per block")
    for index, block in enumerate(blocks):
        given = sum(len(piece) for piece in _pieces(block))
        if given != size:
            raise InvalidError(f"buffer {index} has {given} bytes; the layout needs {size}")


@dataclass(frozen=True)
class PutReport:
    """The result of each block of a put."""

    outcomes: tuple[str, ...]

    @property
    def kept(self) -> list[bool]:
        """Whether each block is in the store now."""
        return [outcome in ("stored", "present") for outcome in self.outcomes]

    @property
    def stored(self) -> int:
        """Blocks written by this put."""
        return self.outcomes.count("stored")

    @property
    def present(self) -> int:
        """Blocks that were there already."""
        return self.outcomes.count("present")

    @property
    def pending(self) -> int:
        """Blocks that another put was writing; none here, as puts take turns."""
        return self.outcomes.count("pending")

    @property
    def declined(self) -> int:
        """Blocks that admission declined."""
        return self.outcomes.count("declined")

    @property
    def failed(self) -> int:
        """Blocks that could not be written."""
        return self.outcomes.count("failed")


@dataclass
class Bank:
    """The blocks of one namespace."""

    fields: dict[str, str]
    layers: int
    slice_bytes: int
    blocks: dict[bytes, tuple[bytes, bytes]] = field(default_factory=dict)


class LayerWriter:
    """Blocks that are put layer by layer; invisible until `commit`."""

    def __init__(self, namespace: Namespace, hashes: Sequence[bytes], first: int) -> None:
        """Starts a put of these blocks."""
        self._namespace = namespace
        self._hashes = tuple(hashes)
        self.first = first
        self.count = len(hashes)
        self._layers: dict[int, list[bytes]] = {}

    def store_layer(
        self, layer: int, blocks: Sequence[Block], *, timeout_s: float | None = None
    ) -> None:
        """Writes one layer of all blocks."""
        del timeout_s
        if layer in self._layers or not 0 <= layer < self._namespace.layers:
            raise InvalidError(f"layer {layer} does not exist or was stored already")
        check(self._hashes, blocks, self.count, self._namespace.slice_bytes)
        self._layers[layer] = [_read(block) for block in blocks]

    def submit_store_layer(
        self, layer: int, blocks: Sequence[Block], *, timeout_s: float | None = None
    ) -> Transfer:
        """Starts `store_layer` in the background."""
        store = partial(self.store_layer, layer, blocks, timeout_s=timeout_s)
        return self._namespace.submit("layer", store, None)

    def commit(self, *, timeout_s: float | None = None) -> int:
        """Makes the blocks visible; returns how many."""
        del timeout_s
        if not self.count:
            return 0
        missing = [n for n in range(self._namespace.layers) if n not in self._layers]
        if missing:
            raise InvalidError(f"layers {missing} are missing")
        rows = zip(*(self._layers[n] for n in range(self._namespace.layers)), strict=True)
        blocks = [b"".join(row) for row in rows]
        return self._namespace.put_batch(self._hashes, blocks).stored


class Namespace:
    """Blocks of one identity and shape in a store."""

    def __init__(self, store: Store, name: str, bank: Bank) -> None:
        """Opens it."""
        self._store, self.id, self._bank = store, name, bank
        self.layers, self.slice_bytes = bank.layers, bank.slice_bytes
        self.block_bytes = bank.layers * bank.slice_bytes
        self.fields = dict(bank.fields)

    def put_batch(
        self,
        chain: Sequence[bytes],
        blocks: Sequence[Block],
        *,
        first: int = 0,
        timeout_s: float | None = None,
    ) -> PutReport:
        """Puts blocks `chain[first:first + len(blocks)]`."""
        self._store.check_open()
        hashes = chain[first : first + len(blocks)]
        check(chain, blocks, len(hashes), self.block_bytes)
        if timeout_s is not None and timeout_s <= 0:
            return PutReport(("failed",) * len(blocks))
        outcomes = [self._put(one, block) for one, block in zip(hashes, blocks, strict=True)]
        return PutReport(tuple(outcomes))

    def _put(self, one: bytes, block: Block) -> str:
        data = _read(block)
        with self._store.guard:
            if one in self._bank.blocks:
                return "present"
            if not self._store.has_room(len(data)):
                return "failed"
            self._bank.blocks[one] = (hashlib.sha256(data).digest(), data)
            self._store.count("put_stored_blocks", 1)
            self._store.count("put_bytes", len(data))
        return "stored"

    def _find(self, one: bytes) -> bytes | None:
        """Returns a block's bytes if they are there and right."""
        with self._store.guard:
            entry = self._bank.blocks.get(one)
            if entry is None:
                return None
            if hashlib.sha256(entry[1]).digest() != entry[0]:
                del self._bank.blocks[one]
                self._store.note_removals(self.id, [one])
                self._store.misses["corrupt"] += 1
                return None
        return entry[1]

    def probe(self, chain: Sequence[bytes]) -> int:
        """How many leading blocks of `chain` are present."""
        return [*self.contains(chain), False].index(False)

    def contains(self, hashes: Sequence[bytes]) -> list[bool]:
        """Which of these blocks are present, each for itself."""
        self._store.check_open()
        check(hashes, hashes, len(hashes), HASH_BYTES)
        with self._store.guard:
            return [one in self._bank.blocks for one in hashes]

    peek, touch = contains, probe  # it evicts nothing, so uses do not matter

    def _get(
        self, hashes: Sequence[bytes], out: Sequence[Block], timeout_s: float | None, part: slice
    ) -> list[bool]:
        self._store.check_open()
        size = len(range(*part.indices(self.block_bytes)))
        check(hashes, out, len(hashes), size)
        found = []
        for one, block in zip(hashes, out, strict=True):
            data = None if timeout_s is not None and timeout_s <= 0 else self._find(one)
            if data is not None:
                _write(block, data[part])
            found.append(data is not None)
        self._store.count("get_log_blocks", sum(found))
        self._store.count("get_missed_blocks", len(found) - sum(found))
        self._store.count("get_bytes", sum(found) * size)
        return found

    def get_each(
        self, hashes: Sequence[bytes], out: Sequence[Block], *, timeout_s: float | None = None
    ) -> list[bool]:
        """Fills every buffer of `out` whose block is present."""
        return self._get(hashes, out, timeout_s, slice(None))

    def get_batch(
        self, chain: Sequence[bytes], out: Sequence[Block], *, timeout_s: float | None = None
    ) -> int:
        """Fills `out` with the longest present run of `chain`."""
        return self._leading(chain, out, timeout_s, slice(None))

    def _leading(
        self, chain: Sequence[bytes], out: Sequence[Block], timeout_s: float | None, part: slice
    ) -> int:
        check(chain, out, len(chain), len(range(*part.indices(self.block_bytes))))
        for index in range(len(chain)):
            if not self._get(chain[index : index + 1], out[index : index + 1], timeout_s, part)[0]:
                return index
        return len(chain)

    def layer_writer(
        self,
        chain: Sequence[bytes],
        *,
        first: int = 0,
        count: int | None = None,
        timeout_s: float | None = None,
    ) -> LayerWriter:
        """Starts a put whose layers are given one at a time."""
        del timeout_s
        end = len(chain) if count is None else first + count
        if not 0 <= first <= end <= len(chain):
            raise InvalidError(f"{count} blocks from {first} do not fit {len(chain)} hashes")
        start = first + self.probe(chain[first:end])
        return LayerWriter(self, chain[start:end], start)

    def submit_put(
        self,
        chain: Sequence[bytes],
        blocks: Sequence[Block],
        *,
        first: int = 0,
        timeout_s: float | None = None,
    ) -> Transfer:
        """Starts `put_batch` in the background."""
        check(chain, blocks, len(chain[first : first + len(blocks)]), self.block_bytes)

        def work() -> PutReport:
            return self.put_batch(chain, blocks, first=first, timeout_s=timeout_s)

        return self._store.submit("put", work, PutReport(("failed",) * len(blocks)))

    def submit_get(
        self,
        hashes: Sequence[bytes],
        out: Sequence[Block],
        *,
        each: bool = False,
        timeout_s: float | None = None,
    ) -> Transfer:
        """Starts `get_batch` (`get_each` if `each`) in the background."""
        check(hashes, out, len(hashes), self.block_bytes)

        def work() -> list[bool]:
            if each:
                return self.get_each(hashes, out, timeout_s=timeout_s)
            leading = self.get_batch(hashes, out, timeout_s=timeout_s)
            return [index < leading for index in range(len(hashes))]

        return self._store.submit("get", work, [False] * len(hashes))

    def load(
        self,
        chain: Sequence[bytes],
        into: Sequence[Block],
        *,
        timeout_s: float | None = None,
    ) -> Load:
        """Starts `get_batch` in the background; no layer is ready before its end."""
        check(chain, into, len(chain), self.block_bytes)

        def work() -> int:
            return self.get_batch(chain, into, timeout_s=timeout_s)

        return Load(self._store.submit("get", work, 0), len(chain), self.layers)

    def submit(self, kind: str, work: Callable[[], Any], refused: Any) -> Transfer:
        """Has the store run work."""
        return self._store.submit(kind, work, refused)

    def remove(
        self, hashes: Sequence[bytes] | None = None, *, timeout_s: float | None = None
    ) -> int:
        """Removes blocks permanently; returns how many were present."""
        del timeout_s
        self._store.check_open()
        with self._store.guard:
            wanted = list(self._bank.blocks) if hashes is None else hashes
            gone = [one for one in wanted if self._bank.blocks.pop(one, None) is not None]
            self._store.note_removals(self.id, gone)
            return len(gone)
