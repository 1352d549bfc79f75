"""The border between Python and the Rust core: conversion only, no logic.

Every call releases the GIL while it works. Buffers are anything with the buffer protocol (numpy
arrays, memoryviews, bytearrays) and ``torch.Tensor`` of any type in the CPU's memory: C-contiguous,
never copied, and writable where the call fills them, which a tensor that requires grad is not. A
block may be given as one buffer or as a sequence of buffers whose lengths sum to its size.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, final

from typing_extensions import Buffer

class _Tensor(Protocol):
    """As much of a ``torch.Tensor`` as tells it from everything else."""

    @property
    def device(self) -> Any: ...
    @property
    def requires_grad(self) -> bool: ...
    def data_ptr(self) -> int: ...
    def detach(self) -> Any: ...
    def is_contiguous(self) -> bool: ...

_Memory: TypeAlias = Buffer | _Tensor
_Block: TypeAlias = _Memory | Sequence[_Memory]

__all__ = [
    "ClosedError",
    "CorruptError",
    "DalsegnoError",
    "FullError",
    "IncompatibleError",
    "InvalidError",
    "LayerWriter",
    "Namespace",
    "PoisonedError",
    "PutReport",
    "RemovalWatch",
    "Store",
    "Transfer",
    "UnavailableError",
    "__version__",
    "config_keys",
    "info",
    "inspect",
    "list_extents",
    "parse_bytes",
    "repair",
    "verify",
]
__version__: str

class DalsegnoError(Exception):
    """Base of all errors of this package."""

class InvalidError(DalsegnoError):
    """The call is wrong: fix it. Nothing was changed."""

class IncompatibleError(DalsegnoError):
    """The store's format or layout is not one that this version reads."""

class UnavailableError(DalsegnoError):
    """The store cannot be used now: skip it or try again.

    It is locked, read-only or of a parent process, or its device is in trouble.
    """

class FullError(DalsegnoError):
    """There is no room: raise the capacity or free the disk."""

class CorruptError(DalsegnoError):
    """The store's files are damaged beyond use."""

class PoisonedError(DalsegnoError):
    """A sync failed, so nothing more is written until the store is opened again."""

class ClosedError(DalsegnoError):
    """The store was closed."""

@final
class PutReport:
    """What became of the blocks of a put, one entry per block in order."""

    @property
    def kept(self) -> list[bool]:
        """Whether each block is in the store now: written by this put, or there already."""

    @property
    def stored(self) -> int:
        """Blocks written by this put; with durability ``batch`` they are durable."""

    @property
    def present(self) -> int:
        """Blocks that were there already."""

    @property
    def pending(self) -> int:
        """Blocks that another put was writing at the same time."""

    @property
    def declined(self) -> int:
        """Blocks that the admission policy declined."""

    @property
    def failed(self) -> int:
        """Blocks that could not be written: no room, timeout, cancelled, device trouble."""

    def __repr__(self) -> str: ...

@final
class Transfer:
    """A put or get under way, or one layer of it.

    Its buffers must not be touched before :meth:`done` says true.
    """

    def done(self) -> bool:
        """Whether it has ended, in whatever way. Never waits."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until it has ended, at most ``timeout_s`` seconds; returns whether it has."""

    def cancel(self) -> None:
        """Calls it off.

        It still ends by itself, soon: wait for :meth:`done` before reusing the buffers.
        """

    @property
    def throttled(self) -> bool:
        """Whether it was refused because too many transfers were waiting.

        Then it is done and moved nothing.
        """

    def put_report(self) -> PutReport:
        """The result of a put.

        Raises:
            InvalidError: It is not done, or not a put.
            DalsegnoError: What the put raised.
        """

    def get_report(self) -> list[bool]:
        """The result of a get: for each buffer whether it holds its block.

        Raises:
            InvalidError: It is not done, or not a get.
            DalsegnoError: What the get raised.
        """

    def layer_report(self) -> None:
        """Returns if a layer was stored.

        Raises:
            InvalidError: It is not done, or not a layer of a put.
            UnavailableError: It was throttled: the layer may be stored again.
            DalsegnoError: What :meth:`LayerWriter.store_layer` raised.
        """

@final
class LayerWriter:
    """Blocks that are put layer by layer; invisible until :meth:`commit`."""

    @property
    def first(self) -> int:
        """Position in the chain of the first block wanted; earlier ones are there already."""

    @property
    def count(self) -> int:
        """How many blocks each call of :meth:`store_layer` takes.

        Zero if nothing needs to be written.
        """

    def store_layer(
        self, layer: int, blocks: Sequence[_Block], *, timeout_s: float | None = None
    ) -> None:
        """Writes one layer of all blocks. Layers may come in any order, each once.

        Args:
            layer: Which layer, from 0.
            blocks: One slice per block, ``slice_bytes`` bytes each.
            timeout_s: Seconds after which the layer, and so the put, fails; ``None`` waits.

        Raises:
            InvalidError: Wrong layer, count or size.
            UnavailableError: The slice could not be written; nothing will become visible.
        """

    def submit_store_layer(
        self, layer: int, blocks: Sequence[_Block], *, timeout_s: float | None = None
    ) -> Transfer:
        """Starts :meth:`store_layer` in the background; never waits.

        The buffers stay in use until it is done. One that is called off gives the put up. Layers of
        one put are written one at a time.
        """

    def commit(self, *, timeout_s: float | None = None) -> int:
        """Makes the blocks visible; returns how many.

        Wait for the transfers of all layers first.

        Raises:
            InvalidError: A layer is missing.
            UnavailableError: The header could not be written, or not within ``timeout_s``; nothing
                is visible.
        """

@final
class Namespace:
    """Blocks of one identity and shape in a store. Threads may share it."""

    @property
    def id(self) -> str:
        """32 hexadecimal digits: the hash of all fields and of the shape."""

    @property
    def layers(self) -> int:
        """Layers per block."""

    @property
    def slice_bytes(self) -> int:
        """Bytes of one layer of one block."""

    @property
    def block_bytes(self) -> int:
        """Bytes of a block: ``layers * slice_bytes``."""

    @property
    def fields(self) -> dict[str, str]:
        """What the namespace stands for."""

    def put_batch(
        self,
        chain: Sequence[bytes],
        blocks: Sequence[_Block],
        *,
        first: int = 0,
        timeout_s: float | None = None,
    ) -> PutReport:
        """Puts blocks ``chain[first:first + len(blocks)]``.

        What comes before ``first`` only helps to place the blocks next to their prefix.

        Args:
            chain: Block hashes in prefix order, 32 bytes each; may start at any block of a prompt.
            blocks: One block per hash, ``block_bytes`` bytes each, layers one after the other.
                Memory aligned as the device asks (512 or 4096 bytes) is written from where it lies
                if there is no timeout; other memory goes through a staging buffer.
            first: Position in ``chain`` of the first block given.
            timeout_s: Seconds from now after which the rest is given up; ``None`` waits.

        Returns:
            What became of each block. A full disk, a timeout or a failing device are no errors.

        Raises:
            InvalidError: A length disagrees with the shape; nothing was written.
            PoisonedError: A sync failed, now or before.
            ClosedError: The store was closed.

        Source: docs/formats/log.md; oracle ``tests/contract/reference_store.py``.
        """

    def probe(self, chain: Sequence[bytes]) -> int:
        """How many leading blocks of ``chain`` are present.

        Reads no payload; ``chain`` may start at any block. What is present counts as used, with all
        that it depends on: a load follows where the answer is yes.
        """

    def contains(self, hashes: Sequence[bytes]) -> list[bool]:
        """Which of these blocks are present, each for itself. They count as used."""

    def peek(self, hashes: Sequence[bytes]) -> list[bool]:
        """Which of these blocks are present, as ``contains``; nothing counts as used."""

    def touch(self, chain: Sequence[bytes]) -> int:
        """Notes that a prompt was used, though none of its blocks is asked for.

        For blocks that an engine serves from its own memory. Without this they look idle to
        eviction, and a system prompt could be evicted under everything that was stored behind it.
        Reads no payload and never waits for the disk.

        Args:
            chain: Block hashes in prefix order, 32 bytes each; may start at any block of a prompt.

        Returns:
            How many leading blocks are present; these count as used, with all they depend on.

        Raises:
            ClosedError: The store was closed.
        """

    def get_batch(
        self,
        chain: Sequence[bytes],
        out: Sequence[_Block],
        *,
        timeout_s: float | None = None,
    ) -> int:
        """Fills ``out`` with the longest present run of ``chain``.

        The call returns when every filled buffer is verified.

        Args:
            chain: Block hashes in prefix order, 32 bytes each; may start at any block of a prompt.
            out: One writable block per hash, ``block_bytes`` bytes each. Memory aligned as the
                device asks is read into directly if there is no timeout; other memory is copied
                into.
            timeout_s: Seconds from now after which the rest counts as a miss; ``None`` waits.

        Returns:
            How many leading buffers hold their block. The contents of the others are undefined.

        Raises:
            InvalidError: A length disagrees with the shape; nothing was read.
            ClosedError: The store was closed.

        Source: docs/formats/log.md; oracle ``tests/contract/reference_store.py``.
        """

    def get_each(
        self,
        hashes: Sequence[bytes],
        out: Sequence[_Block],
        *,
        timeout_s: float | None = None,
    ) -> list[bool]:
        """Fills every buffer of ``out`` whose block is present, wherever it comes in its prompt.

        Arguments and errors as :meth:`get_batch`; returns for each buffer whether it holds its
        block.
        """

    def retrieve_layer(
        self,
        chain: Sequence[bytes],
        layer: int,
        out: Sequence[_Block],
        *,
        timeout_s: float | None = None,
    ) -> int:
        """Fills ``out`` with one layer of the longest present run of ``chain``.

        Each buffer has ``slice_bytes`` bytes. Only that layer is read and verified. Returns and
        raises as :meth:`get_batch`.
        """

    def layer_writer(
        self,
        chain: Sequence[bytes],
        *,
        first: int = 0,
        count: int | None = None,
        timeout_s: float | None = None,
    ) -> LayerWriter:
        """Starts a put of blocks whose layers are given one at a time.

        It takes ``count`` blocks of ``chain`` from position ``first`` on; by default all.
        Leading blocks that are present already are left out: see :attr:`LayerWriter.first`.

        Raises:
            InvalidError: The blocks do not fit into one extent; put them in several parts.
            FullError: There is no room and none could be made.
            UnavailableError: No room was made within ``timeout_s``.
        """

    def submit_put(
        self,
        chain: Sequence[bytes],
        blocks: Sequence[_Block],
        *,
        first: int = 0,
        timeout_s: float | None = None,
    ) -> Transfer:
        """Starts :meth:`put_batch` in the background; never waits.

        The buffers stay in use until it is done.
        """

    def submit_get(
        self,
        hashes: Sequence[bytes],
        out: Sequence[_Block],
        *,
        each: bool = False,
        timeout_s: float | None = None,
    ) -> Transfer:
        """Starts :meth:`get_batch`, or :meth:`get_each` if ``each``; never waits."""

    def submit_retrieve_layer(
        self,
        chain: Sequence[bytes],
        layer: int,
        out: Sequence[_Block],
        *,
        timeout_s: float | None = None,
    ) -> Transfer:
        """Starts :meth:`retrieve_layer` in the background; never waits."""

    def remove(
        self, hashes: Sequence[bytes] | None = None, *, timeout_s: float | None = None
    ) -> int:
        """Removes blocks for good; returns how many were present.

        ``None`` removes all blocks of the namespace. The blocks are gone at once (with an index in
        files: as soon as the disk answers); the call returns when that is durable.

        Raises:
            UnavailableError: It was not durable within ``timeout_s``, or the device failed. The
                blocks are gone until the store is closed, and perhaps for good.
            FullError: There is no room to note it.
        """

@final
class RemovalWatch:
    """A subscription to the blocks that leave a store, from :meth:`Store.watch_removals`.

    It ends when it is deleted, and does not keep the store open.
    """

    @property
    def waiting(self) -> int:
        """How many blocks wait to be taken; a gap counts as one."""

    def take(self, limit: int) -> tuple[dict[str, list[bytes]], bool]:
        """Takes the blocks that left first, at most ``limit``.

        Returns:
            The hashes by the id of their namespace, and whether they are complete. None of these
            blocks is in the store at that moment: one that was stored again is left out. If they
            are not complete, other blocks left too and nothing says which, since the queue was
            full, a whole namespace was removed, the index lost blocks or the store was closed:
            compare what you know with :meth:`Namespace.peek`.
        """

@final
class Store:
    """A store, open in this process and in no other. Threads may share it.

    In a forked child it is closed, and every call but :meth:`close` and :meth:`limits` raises
    :class:`UnavailableError`, those of its namespaces, writers and transfers too.
    """

    def __new__(cls, path: str | PathLike[str], config_json: str) -> Self: ...
    @property
    def id(self) -> str:
        """The store's random name."""

    @property
    def path(self) -> str:
        """Its directory."""

    @property
    def closed(self) -> bool:
        """Whether it was closed. In a forked child it always is."""

    def limits(self) -> dict[str, Any]:
        """The bounds derived from the configuration; byte counts end in ``_bytes``."""

    def stats(self) -> dict[str, Any]:
        """All counters and gauges.

        ``stats()["log"]["misses"]`` counts the blocks lost on the way from the log, by cause.
        ``stats()["index"]`` is ``None`` for an index in memory; of one in files it tells the
        ``shape``, what was ``asked`` of the tables, and in ``decisions`` the last changes of shape,
        each with its ``reason``.
        ``stats()["merging"]`` tells what merging of small extents did (``merges``,
        ``merged_extents``, ``merged_bytes``), how often it stood back because somebody read
        (``deferrals``), what it left for later or gave up, by cause (``skipped_no_room``,
        ``skipped_changed``, ``skipped_damaged``, ``skipped_failed``), and how many lineages have
        small extents that wait (``waiting_lineages``).

        ``stats()["scrubbing"]`` tells what was read and checked in the background: ``rounds`` over
        everything stored, ``extents``, ``bytes``, and how many blocks were bad
        (``damaged_blocks``).

        ``stats()["device"]`` tells whether the disk answers: ``reads`` and ``writes`` are
        ``"working"``, ``"suspended"`` while it hangs or fails, so that calls with a timeout end at
        once instead of waiting for it, or ``"trying"`` when it is asked whether it is back;
        ``read_suspensions`` and ``write_suspensions`` count, ``refused_requests`` and
        ``owed_requests`` tell what was refused meanwhile and what it has not answered yet.

        ``stats()["log"]["codec"]`` tells what the codec did since the store was opened: bytes it
        shrank (``encoded_bytes``) and what they became (``encoded_stored_bytes``), bytes stored
        plain because they would not shrink (``not_shrunk_bytes``), bytes decoded
        (``decoded_bytes``), and the time of both (``encode_ns``, ``decode_ns``).
        """

    def namespace(
        self,
        fields: Mapping[str, str],
        *,
        layers: int,
        slice_bytes: int,
        codec: str | None = None,
        element_bytes: int = 2,
    ) -> Namespace:
        """Opens a namespace: who may share these blocks, and what shape they have.

        Args:
            fields: Everything that must agree before two programs may share bytes: model, weights
                fingerprint, dtype, layout, ranks, LoRA, tenant salt … Any difference makes another
                namespace.
            layers: Layers per block; 1 if blocks are opaque rows.
            slice_bytes: Bytes of one layer of one block.
            codec: How blocks are stored from now on: ``"none"`` as they came, ``"zstd"`` shrunk
                without loss. ``None`` leaves it as it was, which is ``"none"`` for a new
                namespace. It is no part of the identity, and what is stored stays readable
                whatever is said here. It is remembered as long as the namespace has blocks.
            element_bytes: With ``"zstd"``, the width of a number: 2 for bf16 and fp16, 4 for fp32,
                1 for fp8.

        Raises:
            UnavailableError: The store could not be marked as one with coded blocks.
            InvalidError: The codec or the width does not exist, a field is given twice or too
                long, a block does not fit into a segment, or there are too many namespaces; those
                without a block are forgotten when the store is opened.
        """

    def namespaces(self) -> list[Namespace]:
        """Returns the namespaces that are known: those that had blocks when the store was opened.

        Those opened since are there too. They come in the order of their ids.
        """

    def watch_removals(self, capacity: int = 65536) -> RemovalWatch:
        """Starts to note the blocks that leave the store: evicted, quarantined or removed.

        Those of every namespace are noted. A program that publishes what the store holds, such as
        KV events for a router, takes them from time to time.

        Args:
            capacity: Blocks that may wait to be taken, 48 bytes each; what is more leaves a gap.

        Raises:
            InvalidError: ``capacity`` is 0 or above 16777216.
            ClosedError: The store was closed.
        """

    def close(self) -> None:
        """Waits for transfers under way and lets go of the directory.

        Waits ten seconds at most, with an index in files twenty. If the disk hangs the directory
        stays locked until it has answered every write. Calling it again does nothing.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

def info(path: str | PathLike[str]) -> dict[str, Any]:
    """Facts about a store that nobody has open, without reading payload.

    ``index`` is ``None`` unless the index lives in files; then it tells the ``shape``, the ``runs``
    of each level, and in ``decisions`` the last changes of shape, each with its ``reason``.
    """

def list_extents(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """The namespaces of a store that nobody has open, each with its extents in index order."""

def inspect(path: str | PathLike[str], file: str, offset: int | None = None) -> dict[str, Any]:
    """Shows a file of a store that nobody has open, with the names of its format.

    Args:
        path: The store's directory; a leading ``~`` is the home directory.
        file: Name of a segment, of ``store.meta`` or of a namespace's descriptor.
        offset: Of a segment: any byte of the record to show. Without it the segment's header is
            shown, and its records are listed.

    Returns:
        ``title``; ``problem``: what is wrong with the header, or an empty text; ``fields``: a list
        of ``{"offset", "name", "hex", "says"}``; ``records``: of a segment, a list of ``{"offset",
        "bytes", "kind", "blocks", "sequence", "problem"}``; ``parts``: of an extent, its slices, or
        units if it is coded: ``{"offset", "bytes", "name", "crc", "right", "problem", "first"}``.

    Raises:
        InvalidError: There is no such file or record.
    """

def verify(path: str | PathLike[str], progress: object | None = None) -> dict[str, Any]:
    """Reads and checks every byte of a store that nobody has open.

    Args:
        path: The store's directory; a leading ``~`` is the home directory.
        progress: Called as ``progress(done_bytes, total_bytes)``, at the latest after each file.

    Returns:
        Counts, among them the ``tables`` of an index in files, and ``findings``: a list of
        ``{"file", "offset", "what"}``, empty for a healthy store.
    """

def repair(path: str | PathLike[str], progress: object | None = None) -> dict[str, Any]:
    """Checks a store that nobody has open, drops what is bad, keeps the rest, and checks it again.

    A segment with a fault is written anew: its good blocks are copied to another one first. If
    there is no room for that it stays as it is. A damaged index is made again by the next open.

    Args:
        path: The store's directory; a leading ``~`` is the home directory.
        progress: Called as by `verify`, during both checks.

    Returns:
        ``before`` and ``after``: what `verify` returned; ``segments``: how many were written anew
        or removed; ``dropped_blocks``: blocks that could be found before, and cannot now.

    Raises:
        UnavailableError: The store cannot be written, or somebody has it open.
    """

def config_keys() -> list[str]:
    """Names of all settings."""

def parse_bytes(text: str) -> int:
    """Reads a byte count such as ``"200GiB"``, ``"1.5 TB"``, ``"32Gi"`` or ``"4096"``.

    Raises:
        InvalidError: It is none.
    """
