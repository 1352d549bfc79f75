"""The boundary between Python and the Rust core: type conversion only.

Every call that waits or copies releases the GIL. A buffer is a C-contiguous object with the buffer
protocol (a numpy array, memoryview or bytearray) or a ``torch.Tensor`` of any dtype in CPU memory.
Buffers are used in place, never copied in Python. A buffer that a call fills must be writable; a
tensor that requires grad is not. A block is one buffer, or a sequence of buffers whose lengths sum
to the block's size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, Protocol, Self, TypeAlias, TypeVar, final

from typing_extensions import Buffer

from dalsegno.stats import Located, Stats

class _Tensor(Protocol):
    """The attributes of a ``torch.Tensor`` that identify one."""

    @property
    def device(self) -> Any: ...
    @property
    def requires_grad(self) -> bool: ...
    def data_ptr(self) -> int: ...
    def detach(self) -> Any: ...
    def is_contiguous(self) -> bool: ...

_Memory: TypeAlias = Buffer | _Tensor
_Block: TypeAlias = _Memory | Sequence[_Memory]
_Result_co = TypeVar("_Result_co", covariant=True)

__all__ = [
    "Allocation",
    "ClosedError",
    "CorruptError",
    "CostModel",
    "DalsegnoError",
    "FullError",
    "Gpu",
    "GpuPoint",
    "IncompatibleError",
    "InvalidError",
    "LayerWriter",
    "Lease",
    "Load",
    "LoadChoice",
    "LoadTerms",
    "Namespace",
    "PagedBlocks",
    "PagedMemory",
    "PoisonedError",
    "PutReport",
    "RemovalWatch",
    "Server",
    "Store",
    "Transfer",
    "UnavailableError",
    "__version__",
    "config_keys",
    "far_doctor",
    "far_inspect",
    "far_prune",
    "far_survey",
    "far_verify",
    "info",
    "inspect",
    "is_far_location",
    "list_extents",
    "merge_located",
    "parse_bytes",
    "repair",
    "server_socket",
    "server_trouble",
    "show_events",
    "verify",
    "write_queued",
]
__version__: str

class DalsegnoError(Exception):
    """Base class of all errors of this package."""

class InvalidError(DalsegnoError):
    """The call or a setting is wrong: fix it. Nothing was changed."""

class IncompatibleError(DalsegnoError):
    """The store has a format or layout that this version cannot read."""

class UnavailableError(DalsegnoError):
    """The store cannot be used now: skip it or retry.

    It is locked, read-only or owned by the parent process, or its device fails.
    """

class FullError(DalsegnoError):
    """There is no space left: raise the capacity or free disk space."""

class CorruptError(DalsegnoError):
    """The store's files are damaged beyond use."""

class PoisonedError(DalsegnoError):
    """A sync failed; nothing more is written until the store is reopened."""

class ClosedError(DalsegnoError):
    """The store is closed."""

@final
class PutReport:
    """The outcome of each block of a put, in order."""

    @property
    def kept(self) -> list[bool]:
        """For each block whether the store has it now: kept by this put, or already present."""

    @property
    def stored(self) -> int:
        """Blocks that this put wrote; with durability ``batch`` they are durable."""

    @property
    def pool_only(self) -> int:
        """Blocks that this put keeps in the DRAM pool only."""

    @property
    def present(self) -> int:
        """Blocks that the store already had."""

    @property
    def pending(self) -> int:
        """Blocks that another put was writing at the same time."""

    @property
    def declined(self) -> int:
        """Blocks that the admission policy declined, or for which the pool has no place."""

    @property
    def failed(self) -> int:
        """Blocks that could not be written: no space, timeout, cancelled, device failure."""

    def __repr__(self) -> str: ...

@final
class Transfer(Generic[_Result_co]):
    """A put, a get or the write of one layer, in the background.

    Do not touch its buffers before :meth:`done` returns true. Dropping the object does not stop it.
    """

    def __class_getitem__(cls, key: Any) -> Any: ...
    def done(self) -> bool:
        """Returns whether the transfer has ended, in whatever way. Never waits."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the transfer has ended.

        Args:
            timeout_s: Most seconds to wait; ``None`` waits indefinitely.

        Returns:
            Whether it has ended.

        Raises:
            InvalidError: ``timeout_s`` is negative or not finite.
        """

    def cancel(self) -> None:
        """Cancels the transfer.

        It still ends by itself, soon: wait for :meth:`done` before you reuse the buffers.
        """

    @property
    def throttled(self) -> bool:
        """Whether it was refused because too many transfers were queued.

        A throttled transfer is done and moved nothing.
        """

    def result(self) -> _Result_co:
        """Returns what the blocking call would have returned; may be called repeatedly.

        Returns:
            For :meth:`Namespace.submit_put` a :class:`PutReport`; for the transfers of a get one
            ``bool`` per buffer, whether it holds its block; for
            :meth:`LayerWriter.submit_store_layer` ``None``.

        Raises:
            InvalidError: The transfer has not ended.
            UnavailableError: The write of a layer was throttled; you may submit the layer again.
            DalsegnoError: The error that the blocking call would have raised.
        """

    def on_end(self, callback: Callable[[], object], /) -> None:
        """Calls ``callback`` exactly once when the transfer ends, however it ends.

        If it has ended, the call happens before this method returns. Otherwise a thread of the
        store makes it, with the GIL and no lock of the store held. That thread starts no other
        transfer until the callback returns, so keep it short: set an event, for example. The
        callback must not close the store or wait for another transfer. It finds :meth:`done` true.

        An exception of the callback is logged to the logger ``dalsegno`` and ignored. Callbacks are
        not called in a forked child, nor while the interpreter exits.

        Args:
            callback: Function without arguments.

        Raises:
            InvalidError: Eight callbacks wait for this transfer already.
        """

@final
class CostModel:
    """What is known of an engine and its store: how fast it computes, and how fast each tier loads.

    It learns from measurements, and decides how many leading blocks of a prompt to load. It reads
    no clock and does no I/O.

    Args:
        compute: Seconds that are assumed until steps were measured: of a step, of a token, of a
            pair of tokens, and of a token that is read.
        tiers: For ``dram``, ``log`` and ``far``: seconds before the first byte, and bytes per
            second, until loads were measured.

    Raises:
        InvalidError: A tier is missing, or a number is not positive.
    """

    def __new__(
        cls,
        *,
        compute: tuple[float, float, float, float],
        tiers: Mapping[str, tuple[float, float]],
    ) -> Self: ...
    def note_step(self, tokens: float, pairs: float, read: float, seconds: float) -> None:
        """Learns that a step took so many seconds. Leave out steps that waited for a load.

        Args:
            tokens: New tokens of all requests.
            pairs: Pairs of a new token and one before it in its request: for ``n`` new tokens
                behind ``p`` others ``n * (p + n / 2)``.
            read: Tokens of all requests whose keys and values are read, the new ones included.
            seconds: How long it took.
        """

    def note_load(
        self, tier: str, size: float, seconds: float
    ) -> Literal["nothing", "surprise", "change"]:
        """Learns that a load took so many seconds.

        Args:
            tier: ``dram``, ``log`` or ``far``.
            size: Bytes of the load, and those that were queued for the tier before it.
            seconds: How long it took.

        Returns:
            As :meth:`note_read`.

        Raises:
            InvalidError: There is no such tier.
        """

    def note_read(
        self, tier: str, size: float, seconds: float, *, whole: bool = True
    ) -> Literal["nothing", "surprise", "change"]:
        """Learns that a read took so many seconds for which nobody waited.

        Args:
            tier: ``dram``, ``log`` or ``far``.
            size: Bytes.
            seconds: How long it took.
            whole: Whether it was not given up after that.

        Returns:
            ``nothing`` new, a ``surprise`` that another read has to confirm, or a ``change``.

        Raises:
            InvalidError: There is no such tier.
        """

    def note_early_sample(self, tier: str, size: float) -> None:
        """Learns that a sample of a tier was early.

        If the next read is early and at least four times as large, the tier has become faster.

        Args:
            tier: ``dram``, ``log`` or ``far``.
            size: Bytes.

        Raises:
            InvalidError: There is no such tier.
        """

    def note_late_in_step(self, tier: str) -> None:
        """Learns that a load was given up because its step would have waited too long.

        Until a load or a read of the tier is measured, nothing is worth loading from it.

        Args:
            tier: ``dram``, ``log`` or ``far``.

        Raises:
            InvalidError: There is no such tier.
        """

    def note_given_up(self, tier: str, size: float) -> None:
        """Learns that a load was given up for which its request waited.

        Until one of the tier is measured again, nothing is worth loading from it.

        Args:
            tier: ``dram``, ``log`` or ``far``.
            size: Bytes of the load, and those that were queued for the tier before it.

        Raises:
            InvalidError: There is no such tier.
        """

    def step_s(self, tokens: float, pairs: float, read: float) -> float:
        """Returns the seconds in which a step computes.

        Args:
            tokens: New tokens of all requests.
            pairs: Pairs of a new token and one before it in its request.
            read: Tokens whose keys and values are read, the new ones included.
        """

    def request_s(self, begin: float, end: float, chunk: float) -> float:
        """Returns the seconds in which a request computes its tokens ``begin`` to ``end``.

        Args:
            begin: Tokens before.
            end: Tokens afterwards.
            chunk: Tokens that a step computes at most.
        """

    def load_s(self, tier: str, size: float) -> float:
        """Returns the seconds that most loads of so many bytes do not exceed.

        Args:
            tier: ``dram``, ``log`` or ``far``.
            size: Bytes.

        Raises:
            InvalidError: There is no such tier.
        """

    def guard_s(self, terms: LoadTerms, computed: float, prompt: float) -> float:
        """Returns the seconds by which the first token of a request may come later than without us.

        Args:
            terms: Of the engine.
            computed: Tokens that the engine has already.
            prompt: Tokens of the prompt.
        """

    def choose(
        self,
        terms: LoadTerms,
        runs: Sequence[tuple[str, int]],
        computed: float,
        prompt: float,
        *,
        most_overlapped: int = 0,
        most_copied: int = 0,
        notice_s: float = 0.0,
        backlog_s: float = 0.0,
        waiting: int = 0,
        queued: tuple[float, float, float] = ...,
        load_all: bool = False,
        both_ends: bool = False,
        are_delayed: bool = True,
    ) -> LoadChoice:
        """Chooses how many leading blocks of a prompt to load.

        Args:
            terms: Of the engine.
            runs: Consecutive blocks with their tiers, from the first one that is not computed.
            computed: Tokens that the engine has already.
            prompt: Tokens of the prompt.
            most_overlapped: Leading blocks for which a step may wait, if there are at most so many;
                0 if it must not wait.
            most_copied: Of these, leading blocks that are copied and not read.
            notice_s: Seconds from the end of a load for which no step waits until its request is
                computed.
            backlog_s: Seconds that the engine computes for requests before this one.
            waiting: Requests that wait behind this one; their first tokens count as well.
            queued: Bytes that are queued for ``dram``, ``log`` and ``far``.
            load_all: All blocks are loaded, whatever that costs; only the way is chosen.
            both_ends: Whether blocks can be loaded from the last one on while those before them are
                computed.
            are_delayed: Whether a step that waits delays other requests.

        Raises:
            InvalidError: There is no such tier.
        """

    def explain(self) -> dict[str, Any]:
        """Returns everything that was learned.

        Returns:
            ``compute`` and one entry for each tier, each with ``coefficients`` in seconds,
            ``measured`` (how often), ``drifts`` (how often the work has changed), ``late_s``
            (seconds by which most short work is late, however short), and ``low`` and ``high``
            (factors between what is expected and what most measurements exceed, or do not exceed
            but for ``late_s``).
        """

@final
class LoadTerms:
    """What is the same in all decisions of an engine.

    Args:
        block_bytes: Bytes of a block, on one worker.
        block_tokens: Tokens of a block.
        chunk: Tokens of one request that a step computes at most.
        layers: Layers of the model.
        guard_s: Seconds by which a first token may come later than without us, if a fiftieth of it
            is not more.
        most_wait_s: Seconds for which a step may wait in all, while it computes nothing. One that
            delays nobody and reads may wait ten times as long, if the first step that computes the
            blocks would take as long.
        most_load_s: Seconds after which a load is given up for which no step waits.

    Raises:
        InvalidError: ``chunk`` is not a positive number.
    """

    def __new__(
        cls,
        *,
        block_bytes: float,
        block_tokens: float,
        chunk: float,
        layers: float,
        guard_s: float,
        most_wait_s: float = ...,
        most_load_s: float = ...,
    ) -> Self: ...

@final
class LoadChoice:
    """What to load of a prompt, from :meth:`CostModel.choose`."""

    @property
    def blocks(self) -> int:
        """How many leading blocks; 0 for none."""
    @property
    def overlapped(self) -> bool:
        """Whether a step waits for each layer of them; otherwise the request waits."""
    @property
    def front(self) -> int:
        """How many leading blocks are computed while the others come; 0 in another way.

        As predicted. The others are loaded from the last one on.
        """
    @property
    def part(self) -> int:
        """How many blocks a part has, if they are loaded from the last one on."""
    @property
    def first_token_s(self) -> float:
        """Seconds until the first token, as predicted."""
    @property
    def computed_s(self) -> float:
        """Seconds until the first token if nothing is loaded."""
    @property
    def loaded_s(self) -> float:
        """Seconds until the first token if all blocks are loaded; infinite if it is given up."""
    @property
    def load_s(self) -> float:
        """Seconds that most such loads do not exceed."""
    @property
    def saved_s(self) -> float:
        """Seconds of computing that the blocks save."""
    @property
    def step_s(self) -> float:
        """Seconds that the step behind the blocks computes."""
    @property
    def wait_s(self) -> float:
        """Seconds for which that step may wait in all."""

@final
class Gpu:
    """An NVIDIA GPU, for copies between its memory and that of a store.

    The driver is loaded now; a machine without it raises an error. Copies run on streams of their
    own, in the context that PyTorch uses.

    Args:
        index: Number of the GPU among those that this process sees.
        library: Path of a library to use instead of the driver's.
        piece_bytes: Bytes of the pieces in which memory is registered; ``None`` for 1 GiB.

    Raises:
        UnavailableError: There is no driver, or it does not work; the message says why.
    """

    def __new__(
        cls,
        *,
        index: int = 0,
        library: str | PathLike[str] | None = None,
        piece_bytes: int | None = None,
    ) -> Self: ...
    def point(self, stream: int) -> GpuPoint:
        """Returns the point behind all work that a stream has now.

        Args:
            stream: Number of the stream, as ``torch.cuda.Stream.cuda_stream``; 0 is the default
                one. It must exist.

        Raises:
            UnavailableError: The driver refused.
        """

    def tune(self, piece_bytes: int) -> None:
        """Measures the fastest way to copy pieces of one size, and takes it. Takes about 100 ms.

        Args:
            piece_bytes: Bytes of a contiguous part of a page.
        """

    def facts(self) -> dict[str, Any]:
        """Returns what is known about the GPU, and how copies are made.

        Returns:
            ``name``, ``driver_version`` (12080 is CUDA 12.8), ``multiprocessors``,
            ``kernel_below_bytes`` (smaller pieces are copied by a kernel), ``batched_copies``,
            ``registers`` and ``registers_read_only`` (whether the GPU can register memory),
            ``registered_bytes``, ``registering`` (regions that are being registered),
            ``buffered_bytes`` (copied by the processor, as their memory was not registered),
            ``refusals`` (what this GPU cannot do).
        """

    def __repr__(self) -> str: ...

@final
class GpuPoint:
    """A point in a stream of a GPU, from :meth:`Gpu.point`."""

@final
class PagedMemory:
    """The KV cache of an engine: for each layer a buffer of pages. The engine keeps using it.

    Args:
        layers: One writable buffer per layer, all of the same size.
        pages: Number of pages in each buffer.
        stride: Bytes from the start of a page to the start of the next one.
        parts: Offset in the buffer and size, in bytes, of each contiguous part of page 0, in the
            order in which a slice has them: one part, or keys and values apart.
        pages_per_block: Pages that hold one block of a chain.

    Raises:
        InvalidError: A page is not inside its buffer, or pages overlap.
    """

    def __new__(
        cls,
        layers: Sequence[_Memory],
        *,
        pages: int,
        stride: int,
        parts: Sequence[tuple[int, int]],
        pages_per_block: int = 1,
    ) -> Self: ...
    @property
    def slice_bytes(self) -> int:
        """Bytes of one layer of one block."""

    @staticmethod
    def on_gpu(
        gpu: Gpu,
        layers: Sequence[int],
        buffer_bytes: int,
        *,
        pages: int,
        stride: int,
        parts: Sequence[tuple[int, int]],
        pages_per_block: int = 1,
    ) -> PagedMemory:
        """Describes a KV cache in the memory of a GPU.

        The cache must exist as long as this object, and as loads and stores of its pages.

        Args:
            gpu: The GPU.
            layers: The address of the buffer of each layer, as ``torch.Tensor.data_ptr``.
            buffer_bytes: Bytes of each buffer.
            pages: Number of pages in each buffer.
            stride: Bytes from the start of a page to the start of the next one.
            parts: As for the class.
            pages_per_block: Pages that hold one block of a chain.

        Raises:
            InvalidError: A page is not inside its buffer, or pages overlap.
        """

    def blocks(self, table: Sequence[int], *, after: GpuPoint | None = None) -> PagedBlocks:
        """Returns the pages of some blocks, for one load or one :class:`LayerWriter`.

        They are in use until the load has ended, or until this object is gone. Do not write them
        before.

        Args:
            table: Pages of each block, one block after the other: ``pages_per_block`` numbers each.
            after: The point in the GPU's work up to which it still uses the pages: a load fills
                them after that.

        Raises:
            InvalidError: A page does not exist, is listed twice, or another load uses it.
        """

    def __repr__(self) -> str: ...

@final
class PagedBlocks:
    """Pages of some blocks, from :meth:`PagedMemory.blocks`. ``len()`` is the number of blocks."""

    def __len__(self) -> int: ...
    def __repr__(self) -> str: ...

@final
class Load:
    """A load in the background, from :meth:`Namespace.load` or :meth:`Lease.load`.

    Its layers become ready while it runs, and may be read then. Do not touch its memory otherwise
    before the load has ended. Dropping the object does not stop it.
    """

    def layer_ready(self, layer: int) -> bool:
        """Returns whether a layer of all blocks is at its destination. Never waits.

        Args:
            layer: Index of the layer, from 0.

        Raises:
            InvalidError: There is no such layer.
        """

    def wait_layer(self, layer: int, *, timeout_s: float | None = None) -> bool | None:
        """Waits until a layer of all blocks is at its destination, or cannot come any more.

        Args:
            layer: Index of the layer, from 0.
            timeout_s: Most seconds to wait; ``None`` waits until the load has ended.

        Returns:
            ``True`` if the layer is ready, ``False`` if the load has ended and at least one block
            lacks it, ``None`` if it is still loading.

        Raises:
            InvalidError: There is no such layer, or ``timeout_s`` is negative or not finite.
        """

    def order_layer(
        self, layer: int, stream: int, *, timeout_s: float | None = None
    ) -> bool | None:
        """Lets later work of a stream of the GPU wait for a layer, once its copies are queued.

        Only for loads to pages of a GPU. The GPU waits, not this thread. Whether the blocks were
        right is known when the load has ended.

        Args:
            layer: Index of the layer, from 0.
            stream: Number of the stream, as ``torch.cuda.Stream.cuda_stream``; it must exist.
            timeout_s: Most seconds to wait until the copies are queued; ``None`` waits until the
                load has ended.

        Returns:
            ``True`` if the stream waits or the layer is ready, ``False`` if the load has ended and
            at least one block lacks it, ``None`` if its copies are not queued yet.

        Raises:
            InvalidError: There is no such layer, the load is not to a GPU, or ``timeout_s`` is
                negative or not finite.
            UnavailableError: The driver refused.
        """

    def done(self) -> bool:
        """Returns whether the load has ended, in whatever way. Never waits."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the load has ended.

        Args:
            timeout_s: Most seconds to wait; ``None`` waits indefinitely.

        Returns:
            Whether it has ended.

        Raises:
            InvalidError: ``timeout_s`` is negative or not finite.
        """

    def cancel(self) -> None:
        """Cancels the load.

        It still ends by itself, soon: wait for :meth:`done` before you reuse the memory.
        """

    def withdraw(self) -> bool:
        """Cancels the load.

        Returns:
            Whether its memory may be reused now: it has ended, or it was queued and does not begin
            any more. Otherwise it ends soon, as after :meth:`cancel`.
        """

    @property
    def throttled(self) -> bool:
        """Whether it was refused because too many transfers were queued."""

    def result(self) -> int:
        """Returns how many leading blocks are at their destination; may be called repeatedly.

        The contents of the memory of all other blocks are undefined. If all layers have ended, this
        waits for the little that is left of the load.

        Raises:
            InvalidError: The load is still loading layers.
            ClosedError: The store was closed before the load began.
        """

    def on_end(self, callback: Callable[[], object], /) -> None:
        """Calls ``callback`` exactly once when the load ends; see :meth:`Transfer.on_end`.

        Args:
            callback: Function without arguments.

        Raises:
            InvalidError: Eight callbacks wait for this load already.
        """

@final
class LayerWriter:
    """A put of blocks that come layer by layer; they are invisible until :meth:`commit`."""

    @property
    def first(self) -> int:
        """Position in the chain of the first block to write; the blocks before it are present."""

    @property
    def count(self) -> int:
        """Number of blocks that each call of :meth:`store_layer` takes.

        Zero if nothing needs to be written.
        """

    def store_layer(
        self,
        layer: int,
        blocks: PagedBlocks | Sequence[_Block],
        *,
        after: GpuPoint | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Stores one layer of all blocks. Layers may come in any order, each once.

        The layer was copied when the call returns. A layer that failed may be stored again.

        Args:
            layer: Index of the layer, from 0.
            blocks: One slice per block, ``slice_bytes`` bytes each; or pages of an engine for all
                blocks of the put, from :meth:`PagedMemory.blocks`. Keep them until the last layer
                is stored.
            after: The point in the GPU's work by which the layer is in its pages.
            timeout_s: Seconds after which the layer fails; ``None`` waits.

        Raises:
            InvalidError: The layer, the number of slices or a size is wrong.
            UnavailableError: The time was up before the layer was copied.
        """

    def submit_store_layer(
        self,
        layer: int,
        blocks: PagedBlocks | Sequence[_Block],
        *,
        after: GpuPoint | None = None,
        timeout_s: float | None = None,
    ) -> Transfer[None]:
        """Starts :meth:`store_layer` in the background; never waits.

        The buffers stay in use until the transfer is done. The layers of one put are copied one at
        a time. A transfer that is cancelled may leave its layer missing; store it again.
        """

    def submit_store_blocks(
        self,
        pages: PagedBlocks,
        *,
        after: GpuPoint | None = None,
        timeout_s: float | None = None,
    ) -> Transfer[None]:
        """Starts to store all layers of all blocks, as they are in pages; never waits.

        Like :meth:`submit_store_layer`, once for all layers. No layer may be stored before.

        Args:
            pages: Pages of an engine for all blocks of the put, from :meth:`PagedMemory.blocks`.
            after: The point in the GPU's work by which all layers are in their pages.
            timeout_s: Seconds after which the transfer fails; ``None`` waits.

        Raises:
            InvalidError: The pages have another shape.
        """

    def submit_commit(
        self, *, timeout_s: float | None = None, pool_only: bool = False
    ) -> Transfer[None]:
        """Starts :meth:`commit` in the background; never waits.

        Wait for the transfers of all layers first. The result of the transfer is ``None``. A
        transfer that is throttled leaves everything as it is: commit again.
        """

    def commit(self, *, timeout_s: float | None = None, pool_only: bool = False) -> int:
        """Puts the blocks, as :meth:`Namespace.put_batch` does.

        Wait for the transfers of all layers first.

        Args:
            timeout_s: Seconds after which the commit fails; ``None`` waits.
            pool_only: Whether the blocks are kept in the DRAM pool only:
                see :meth:`Namespace.put_batch`.

        Returns:
            How many blocks are visible then: all but those that were removed since the writer was
            made, that were declined, or that another put is writing.

        Raises:
            InvalidError: A layer is missing.
            UnavailableError: Some blocks could not be stored, or not within ``timeout_s``. What was
                gathered is gone.
        """

@final
class Namespace:
    """Blocks of one identity and shape in a store. Threads may share it."""

    @property
    def id(self) -> str:
        """Hash of all fields and of the shape, 32 hexadecimal digits."""

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
        """The fields that identify the namespace."""

    def put_batch(
        self,
        chain: Sequence[bytes],
        blocks: Sequence[_Block],
        *,
        first: int = 0,
        timeout_s: float | None = None,
        pool_only: bool = False,
    ) -> PutReport:
        """Puts the blocks ``chain[first:first + len(blocks)]``.

        The hashes before ``first`` only help to place the blocks next to their prefix.

        Args:
            chain: Block hashes in prefix order, 32 bytes each; may start at any block of a prompt.
            blocks: One block per hash, ``block_bytes`` bytes each, one layer after the other.
                Without a timeout, memory aligned to the device's sectors (512 or 4096 bytes) is
                written in place; other memory goes through a staging buffer.
            first: Position in ``chain`` of the first block given.
            timeout_s: Seconds from now after which the remaining blocks fail; ``None`` waits.
            pool_only: Whether the blocks are kept in the DRAM pool only, and never written. Then
                they are gone when the pool evicts them or the store is closed. Blocks for which
                the pool has no place are declined.

        Returns:
            The outcome of each block. A full disk, a timeout and a failing device are outcomes, not
            errors.

        Raises:
            InvalidError: A length disagrees with the shape; nothing was written.
            PoisonedError: A sync failed, now or earlier.
            ClosedError: The store is closed.

        Source: docs/formats/log.md; oracle ``tests/contract/reference_store.py``.
        """

    def probe(self, chain: Sequence[bytes]) -> int:
        """Returns how many leading blocks of ``chain`` are present, without reading payload.

        These blocks count as used, with all blocks that they depend on: a load usually follows.

        Args:
            chain: Block hashes in prefix order, 32 bytes each; may start at any block of a prompt.

        Raises:
            ClosedError: The store is closed.
        """

    def contains(self, hashes: Sequence[bytes]) -> list[bool]:
        """Returns for each block whether it is present, wherever it comes in its prompt.

        Present blocks count as used.

        Args:
            hashes: Block hashes, 32 bytes each, in any order.

        Raises:
            ClosedError: The store is closed.
        """

    def peek(self, hashes: Sequence[bytes]) -> list[bool]:
        """Returns the same as :meth:`contains`, but no block counts as used."""

    def locate(self, chain: Sequence[bytes]) -> list[Located]:
        """Returns which tiers would serve the leading present blocks of ``chain``; never waits.

        Args:
            chain: Block hashes in prefix order, 32 bytes each; may start at any block of a prompt.

        Returns:
            Runs in order; :class:`dalsegno.stats.Located` describes each.

        Raises:
            ClosedError: The store is closed.
        """

    def touch(self, chain: Sequence[bytes]) -> int:
        """Marks the blocks of a prompt as used without loading them.

        Call it for blocks that an engine serves from its own memory. Without it they look idle to
        eviction, and a system prompt could be evicted before the blocks that depend on it. Reads no
        payload and never waits for the disk.

        Args:
            chain: Block hashes in prefix order, 32 bytes each; may start at any block of a prompt.

        Returns:
            How many leading blocks are present; these count as used, with all blocks that they
            depend on.

        Raises:
            ClosedError: The store is closed.
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
            out: One writable block per hash, ``block_bytes`` bytes each. Without a timeout, memory
                aligned to the device's sectors is read into directly; other memory is filled by a
                copy.
            timeout_s: Seconds from now after which the remaining blocks count as misses; ``None``
                waits.

        Returns:
            How many leading buffers hold their block. The contents of the others are undefined.

        Raises:
            InvalidError: A length disagrees with the shape; nothing was read.
            ClosedError: The store is closed.

        Source: docs/formats/log.md; oracle ``tests/contract/reference_store.py``.
        """

    def allocate(self, count: int) -> Allocation:
        """Allocates memory for blocks that are written in place and then put.

        With a server, this saves the copy that :meth:`put_batch` makes of the caller's buffers.

        Args:
            count: Number of blocks, at least one.

        Raises:
            InvalidError: ``count`` is 0 or too large.
            UnavailableError: The system cannot provide the memory.
        """

    def lease(self, chain: Sequence[bytes], *, timeout_s: float | None = None) -> Lease:
        """Leases the longest present run of ``chain``, to be read in the store's memory.

        Nothing is copied. Blocks that are only on disk are read into the DRAM tier first, and
        verified. With ``dram`` 0 there is no memory to lease.

        Args:
            chain: Block hashes in prefix order, 32 bytes each; may start at any block of a prompt.
            timeout_s: Seconds from now after which the remaining blocks count as misses; ``None``
                waits.

        Returns:
            The leading blocks. There are fewer than the store has if leases would hold more than
            half of the DRAM tier (:attr:`Lease.truncated`).

        Raises:
            ClosedError: The store is closed.
        """

    def get_each(
        self,
        hashes: Sequence[bytes],
        out: Sequence[_Block],
        *,
        timeout_s: float | None = None,
    ) -> list[bool]:
        """Fills every buffer of ``out`` whose block is present, wherever it comes in its prompt.

        The arguments and errors are those of :meth:`get_batch`.

        Returns:
            For each buffer whether it holds its block. The contents of the others are undefined.
        """

    def layer_writer(
        self,
        chain: Sequence[bytes],
        *,
        first: int = 0,
        count: int | None = None,
        timeout_s: float | None = None,
    ) -> LayerWriter:
        """Starts a put of blocks whose layers come one at a time.

        Leading blocks that are already stored are left out: see :attr:`LayerWriter.first`.
        The layers are gathered in memory; nothing is written before the commit.

        Args:
            chain: Block hashes in prefix order, 32 bytes each; may start at any block of a prompt.
            first: Position in ``chain`` of the first block of the put.
            count: Number of blocks of the put; ``None`` takes all blocks from ``first`` on.
            timeout_s: Seconds after which the lookup of present blocks ends; ``None`` waits.

        Raises:
            InvalidError: The blocks do not fit into one extent; split the put.
            UnavailableError: Writes are suspended, or puts by layer gather a GiB already.
        """

    def submit_put(
        self,
        chain: Sequence[bytes],
        blocks: Sequence[_Block],
        *,
        first: int = 0,
        timeout_s: float | None = None,
        pool_only: bool = False,
    ) -> Transfer[PutReport]:
        """Starts :meth:`put_batch` in the background; never waits.

        The buffers stay in use until the transfer is done. The time in the queue counts towards
        ``timeout_s``. Blocks that are removed before the transfer is done are not put.
        """

    def submit_get(
        self,
        hashes: Sequence[bytes],
        out: Sequence[_Block],
        *,
        each: bool = False,
        timeout_s: float | None = None,
    ) -> Transfer[list[bool]]:
        """Starts :meth:`get_batch`, or :meth:`get_each` if ``each``; never waits.

        The buffers stay in use until the transfer is done. The time in the queue counts towards
        ``timeout_s``.
        """

    def load(
        self,
        chain: Sequence[bytes],
        into: PagedBlocks | Sequence[_Block],
        *,
        timeout_s: float | None = None,
        due_s: float | None = None,
        layer_s: float = 0.0,
    ) -> Load:
        """Starts to load the longest present run of ``chain``; never waits.

        Layers become ready in their order while the load runs: see :meth:`Load.wait_layer`. A
        load into pages whose blocks take more than a quarter of the DRAM tier has no ready layer
        before its last part, and one from a server none before the server has all blocks of a part
        in its pool. If a block is absent, no layer becomes ready.

        Args:
            chain: Block hashes in prefix order, 32 bytes each.
            into: Pages of an engine for all blocks, from :meth:`PagedMemory.blocks`, which needs a
                DRAM tier; or one writable block per hash, ``block_bytes`` bytes each.
            timeout_s: Seconds from now after which the remaining blocks count as misses; ``None``
                waits.
            due_s: Seconds from now after which an engine needs the first layer; ``None`` for as
                soon as possible. Reads go in the order in which they are due. A server reads as
                soon as it can.
            layer_s: Seconds after which it needs each further layer.

        Raises:
            InvalidError: A size disagrees with the shape, there is no DRAM tier, or a time is
                negative or not a number.
            ClosedError: The store is closed.
        """

    def register_pool(self, gpu: Gpu) -> None:
        """Has a GPU register the memory of the DRAM tier, in the background, unless it has.

        Copies between places there and the GPU need no processor then. All of that memory becomes
        resident. A server that was restarted has another one: call this again from time to time.

        Args:
            gpu: The GPU.

        Raises:
            ClosedError: The store is closed.
        """

    def remove(
        self, hashes: Sequence[bytes] | None = None, *, timeout_s: float | None = None
    ) -> int:
        """Removes blocks permanently, on all hosts that share a far directory.

        The blocks disappear immediately. The call returns when the removal is durable and, with
        ``far``, published there.

        Args:
            hashes: Hashes of the blocks, 32 bytes each; ``None`` removes the whole namespace.
            timeout_s: Seconds to wait; ``None`` waits for the disk and the far directory.

        Returns:
            How many of the blocks were present.

        Raises:
            UnavailableError: ``timeout_s`` passed, or the device or the far directory failed. The
                message says whether the removal continues and its blocks are no longer found,
                nothing was removed, it is published later, or it could not be made durable.
            FullError: There is no space to record the removal.
        """

@final
class Allocation:
    """Memory for blocks that a program writes and then puts, from :meth:`Namespace.allocate`.

    ``len(allocation)`` is the number of blocks, and ``allocation[i]`` a writable
    :class:`memoryview` of block ``i``, layer after layer. A server reads the blocks from this
    memory, so that the client copies nothing::

        blocks = namespace.allocate(len(chain))
        for i in range(len(chain)):
            compute_into(np.frombuffer(blocks[i], np.float16))
        blocks.commit(chain)

    It can be filled and committed again and again.
    """

    def commit(
        self,
        chain: Sequence[bytes],
        *,
        first: int = 0,
        timeout_s: float | None = None,
        pool_only: bool = False,
    ) -> PutReport:
        """Puts the blocks ``chain[first:]``, which are the first ones of this memory.

        Nobody may write them until the call returns.

        Args:
            chain: Block hashes in prefix order, 32 bytes each; may start at any block of a prompt.
            first: Position in ``chain`` of the first block.
            timeout_s: Seconds from now after which the remaining blocks fail; ``None`` waits.
            pool_only: Whether the blocks are kept in the DRAM pool only:
                see :meth:`Namespace.put_batch`.

        Returns:
            The outcome of each block, as of :meth:`Namespace.put_batch`.

        Raises:
            InvalidError: There are more hashes than blocks.
            PoisonedError: A sync failed, now or earlier.
            ClosedError: The store is closed.
        """

    def __len__(self) -> int: ...
    def __getitem__(self, at: int, /) -> memoryview: ...

@final
class Lease:
    """Leading blocks of a chain in the store's memory, from :meth:`Namespace.lease`.

    ``len(lease)`` is the number of blocks, and ``lease[i]`` a read-only :class:`memoryview` of
    block ``i``, layer after layer. Every byte was verified. numpy and torch take it as it is::

        with namespace.lease(chain) as lease:
            for block in lease:
                consume(np.frombuffer(block, np.float16))

    The bytes stay as they are, whatever is evicted or removed meanwhile. A lease is a context
    manager. At the end of a ``with`` block it ends when the last buffer of it is gone.
    """

    @property
    def truncated(self) -> bool:
        """Whether the store had further leading blocks, but no memory to lease them.

        All leases together hold at most half of the DRAM tier (the setting ``dram``).
        """

    def valid_blocks(self) -> int:
        """Returns how many leading blocks were not overwritten so far.

        With a store in this process these are all of them. A server may reuse the memory of a
        process that it lost sight of: ask after the last use of a buffer, and count the others as
        misses.
        """

    def load(self, pages: PagedBlocks, *, timeout_s: float | None = None) -> Load:
        """Starts to copy the first blocks into pages of an engine; never waits.

        Layers become ready in their order. Nothing is read from a disk. The blocks stay leased
        until the load has ended, also if the lease is released before.

        Args:
            pages: From :meth:`PagedMemory.blocks`; for at most as many blocks as the lease has.
            timeout_s: Seconds from now after which the remaining blocks count as misses; ``None``
                waits.

        Raises:
            InvalidError: There are pages for more blocks, or a size disagrees with the shape.
            ClosedError: The store is closed.
        """

    def release(self) -> None:
        """Ends the lease.

        Raises:
            BufferError: A buffer of it is still in use; delete it first.
        """

    def __len__(self) -> int: ...
    def __getitem__(self, at: int, /) -> memoryview: ...
    def __iter__(self) -> Iterator[memoryview]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

@final
class RemovalWatch:
    """A subscription to the blocks that leave a store, from :meth:`Store.watch_removals`.

    It ends when it is deleted, and does not keep the store open.
    """

    @property
    def waiting(self) -> int:
        """Number of blocks that wait to be taken; a gap counts as one."""

    def take(self, limit: int) -> tuple[dict[str, list[bytes]], bool]:
        """Takes the blocks that left first.

        Args:
            limit: Most blocks to take.

        Returns:
            The hashes by namespace id, and whether the list is complete. None of these blocks is in
            the store at that moment: a block that was stored again is left out. The list is
            incomplete if the queue was full, a whole namespace was removed, the index lost blocks
            or the store was closed. Other blocks left too then: compare what you know with
            :meth:`Namespace.peek`.
        """

@final
class Server:
    """A store that this process owns and shares with others, over a socket.

    ``dalsegno serve`` runs one. Others open the store by its directory, or as ``unix:`` and the
    path of the socket. A ``lease_share`` of the pool may be leased in place, half by default.
    ``stopped`` is called several times a second while the system provides the memory of the pool;
    if it returns true, the start fails.
    """

    def __new__(
        cls,
        path: str | PathLike[str],
        config_json: str,
        *,
        socket: str | PathLike[str] | None = None,
        pool_file: str | PathLike[str] | None = None,
        tenants: Sequence[tuple[str, AbstractSet[int]]] = ...,
        lease_share: float | None = None,
        stopped: Callable[[], bool] | None = None,
    ) -> Self: ...
    @property
    def socket(self) -> str:
        """Path of the socket."""

    def stats(self) -> dict[str, Any]:
        """Returns all counters and gauges: the server's, and those of each tenant."""

    def close(self) -> None:
        """Ends all connections after the requests under way, then closes the store.

        Closing a closed server does nothing.
        """

@final
class Store:
    """A store: open in this process and in no other, or shared by a server. Threads may share it.

    In a forked child it is closed: every call of it and of its namespaces, writers and transfers
    raises :class:`UnavailableError`, except :meth:`close` and :meth:`limits`.
    """

    def __new__(cls, path: str | PathLike[str], config_json: str) -> Self: ...
    @property
    def id(self) -> str:
        """The store's random id."""

    @property
    def path(self) -> str:
        """The store's directory, or the socket of its server as it was given."""

    @property
    def served(self) -> bool:
        """Whether a server has the store and responds, and this process is one of its clients."""

    @property
    def closed(self) -> bool:
        """Whether the store is closed. In a forked child it always is."""

    def limits(self) -> dict[str, Any]:
        """Returns the bounds derived from the configuration; byte counts end in ``_bytes``."""

    def stats(self) -> Stats:
        """Returns all counters and gauges; :class:`dalsegno.stats.Stats` describes each of them.

        Raises:
            UnavailableError: This is a forked child.
        """

    def set_phase(
        self,
        engine: int,
        phase: Literal["prefill", "decode", "idle"],
        *,
        slack_s: float = 0.0,
        steps: Sequence[float] = [],
    ) -> None:
        """An engine of this process says what it does from now on.

        Reads that engines wait for go first. Saves and upkeep start when they delay none of them:
        in ``"prefill"`` if they take no longer than the slack, in ``"decode"`` at a pace that steps
        allow, otherwise at once. What an engine says holds for five seconds. Never waits: while a
        server is away or busy, nothing is said.

        Args:
            engine: Number of the engine in this process.
            phase: ``"prefill"``, ``"decode"`` or ``"idle"``.
            slack_s: Seconds that the next reads can be late without delaying a step of prefill; 0
                if they are late already.
            steps: How long the steps since the last call took, each over the same step beside no
                write. They set the pace of ``"decode"``; a server takes the last 64.

        Raises:
            InvalidError: The phase is unknown, or the slack is negative or not a number.
            ClosedError: The store is closed.
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
        """Opens the namespace of an identity and a shape.

        Args:
            fields: Everything that must agree before two programs may share bytes: model, weights
                fingerprint, dtype, layout, ranks, LoRA, tenant salt. Any difference makes another
                namespace.
            layers: Layers per block; 1 if blocks are opaque rows.
            slice_bytes: Bytes of one layer of one block.
            codec: Codec of blocks stored from now on: ``"none"`` or ``"zstd"``, which is lossless.
                ``None`` keeps the namespace's codec, ``"none"`` for a new namespace. The codec is
                not part of the identity, and stored blocks stay readable whatever it is. It is
                remembered as long as the namespace has blocks.
            element_bytes: With ``"zstd"``, the bytes of a number: 2 for bf16 and fp16, 4 for fp32,
                1 for fp8.

        Raises:
            UnavailableError: The store could not be marked as one with compressed blocks.
            InvalidError: The codec or ``element_bytes`` is unknown, a field is duplicated or too
                long, a block does not fit into a segment, or there are too many namespaces;
                namespaces without blocks are forgotten when the store is opened.
        """

    def namespaces(self) -> list[Namespace]:
        """Returns the namespaces that had blocks when the store was opened, and those opened since.

        They come in the order of their ids.
        """

    def watch_removals(self, capacity: int = 65536) -> RemovalWatch:
        """Subscribes to the blocks of all namespaces that leave the store.

        Blocks leave when they are evicted, quarantined or removed. A program that publishes the
        contents of the store, such as KV events for a router, takes them periodically.

        Args:
            capacity: Most blocks that may wait to be taken, 48 bytes each; more blocks leave a gap.

        Raises:
            InvalidError: ``capacity`` is 0 or above 16777216.
            ClosedError: The store is closed.
        """

    def close(self) -> None:
        """Waits for transfers in flight and releases the directory.

        It waits at most 10 s, with an on-disk index 20 s. If the disk hangs, the directory stays
        locked until the disk has completed every write. Closing a closed store does nothing.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

def show_events(level: str) -> None:
    """Writes events of the store to standard error.

    It does nothing if the environment variable ``DALSEGNO_LOG`` names a level, which then counts.

    Args:
        level: ``"error"``, ``"warn"``, ``"info"``, ``"debug"`` or ``"trace"``.
    """

def server_socket(directory: str | PathLike[str]) -> Path:
    """Returns the path of the socket of the server that owns a directory.

    It waits at most two seconds.

    Args:
        directory: The directory of a store. Without a server, or if this user may not read which
            socket it made, the default is returned.
    """

def server_trouble(socket: str | PathLike[str]) -> str | None:
    """Returns why nothing can use the server of a socket, or ``None`` if it answers.

    It waits at most a second.

    Args:
        socket: Path of the socket.
    """

def write_queued(stream: int, text: str) -> None:
    """Writes text to standard output or standard error without waiting for its reader.

    A thread writes it. If the reader stops or goes away, text is lost and counted. When the process
    exits, it waits about a second for the reader.

    Args:
        stream: 1 for standard output, 2 for standard error.
        text: Text with its line break; the part behind 4,096 bytes is cut off.

    Raises:
        InvalidError: The stream is another one.
    """

def info(path: str | PathLike[str]) -> dict[str, Any]:
    """Returns facts about a store that no process has open, without reading payload.

    ``index`` is ``None`` unless the index is on disk. Then it has the ``shape``, the ``runs`` of
    each level, and in ``decisions`` the last changes of shape, each with its ``reason``.

    Args:
        path: The store's directory; a leading ``~`` is the home directory.

    Raises:
        InvalidError: There is no store in the directory.
        UnavailableError: A process has the store open, or it cannot be read.
    """

def list_extents(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """Lists the namespaces of a store that no process has open, with their extents.

    Args:
        path: The store's directory; a leading ``~`` is the home directory.

    Returns:
        One entry per namespace; its ``extent_rows`` are in index order.

    Raises:
        InvalidError: There is no store in the directory.
        UnavailableError: A process has the store open, or it cannot be read.
    """

def inspect(path: str | PathLike[str], file: str, offset: int | None = None) -> dict[str, Any]:
    """Decodes a file of a store that no process has open, with the names of its format.

    Args:
        path: The store's directory; a leading ``~`` is the home directory.
        file: Name of a segment, of ``store.meta`` or of a namespace's descriptor.
        offset: In a segment, any byte of the record to decode. Without it the segment's header is
            decoded, and its records are listed.

    Returns:
        ``title``; ``problem``: what is wrong with the header, or an empty text; ``fields``: a list
        of ``{"offset", "name", "hex", "says"}``; ``records`` of a segment: a list of ``{"offset",
        "bytes", "kind", "blocks", "sequence", "problem"}``; ``parts`` of an extent, its slices or
        its compressed units: ``{"offset", "bytes", "name", "crc", "right", "problem", "first"}``.

    Raises:
        InvalidError: There is no such file or record.
    """

def verify(
    path: str | PathLike[str], progress: Callable[[int, int], object] | None = None
) -> dict[str, Any]:
    """Reads and checks every byte of a store that no process has open.

    Args:
        path: The store's directory; a leading ``~`` is the home directory.
        progress: Called as ``progress(done_bytes, total_bytes)``, at least after each file, on any
            thread. Its exceptions are ignored.

    Returns:
        Counts, among them the ``tables`` of an on-disk index, and ``findings``: a list of
        ``{"file", "offset", "what"}``, empty for a healthy store.
    """

def repair(
    path: str | PathLike[str], progress: Callable[[int, int], object] | None = None
) -> dict[str, Any]:
    """Verifies a store that no process has open, drops damaged blocks, and verifies it again.

    A segment with a finding is rewritten: its good blocks are first copied to another segment. If
    there is no space for that, the segment stays as it is. The next open rebuilds a damaged index.

    Args:
        path: The store's directory; a leading ``~`` is the home directory.
        progress: Called during both checks, as in `verify`.

    Returns:
        ``before`` and ``after``: the results of `verify`; ``segments``: how many were rewritten or
        removed; ``dropped_blocks``: blocks that the index found before the repair and not after.

    Raises:
        UnavailableError: The store cannot be written, or a process has it open.
    """

def is_far_location(path: str | PathLike[str]) -> bool:
    """Returns whether a directory is a far location: it has folders of writers, and no store.

    A URL always is one. Nothing is read there, and nothing is written.

    Args:
        path: A directory, where a leading ``~`` is the home directory, or a URL such as
            ``s3://bucket/prefix``.

    Raises:
        UnavailableError: The directory cannot be read.
    """

def far_survey(
    path: str | PathLike[str],
    extents: int | None = None,
    progress: Callable[[int, int], object] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns what a far location holds, while stores may use it. Reads catalogs and no packs.

    Args:
        path: The far location: a URL, or a directory, where a leading ``~`` is the home directory.
        extents: Most extents to list; without it none.
        progress: Called as ``progress(done_objects, total_objects)`` on any thread. Its exceptions
            are ignored.
        options: How what a URL names is reached: as `far_options` of a store.

    Returns:
        ``writers``, each with its folder and ``state``: ``live``, ``silent`` for more than ten
        minutes, ``earlier`` if its store lived longer through a later open, ``dead`` for more than
        a day, or ``unknown``; ``namespaces``; ``extents``; ``faults``: a list of
        ``{"file", "offset", "what"}``.

    Raises:
        InvalidError: The directory is no far location.
        UnavailableError: It cannot be read.
    """

def far_verify(
    path: str | PathLike[str],
    progress: Callable[[int, int], object] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Reads and checks every byte of a far location, while stores may use it.

    Args:
        path: The far location: a URL, or a directory, where a leading ``~`` is the home directory.
        progress: Called as ``progress(done_bytes, total_bytes)``, at least after each object, on
            any thread. Its exceptions are ignored.
        options: How what a URL names is reached: as `far_options` of a store.

    Returns:
        Counts; ``unpublished``: packs without a catalog, a list of ``{"file", "bytes"}``, which are
        no damage; and ``findings``: a list of ``{"file", "offset", "what"}``, empty without damage.
        ``more_findings`` counts those beyond 10,000.

    Raises:
        InvalidError: The directory is no far location.
        UnavailableError: It cannot be read.
    """

def far_inspect(
    path: str | PathLike[str],
    file: str,
    offset: int | None = None,
    *,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Decodes an object of a far location, with the names of its format.

    Args:
        path: The far location: a URL, or a directory, where a leading ``~`` is the home directory.
        file: Folder and name of a catalog, of a pack or of a namespace's description.
        offset: In a pack, any byte of the record to decode. Without it its records are listed.
        options: How what a URL names is reached: as `far_options` of a store.

    Returns:
        As `inspect`.

    Raises:
        InvalidError: There is no such object or record.
    """

def far_prune(
    path: str | PathLike[str],
    writers: Sequence[str],
    *,
    remove: bool = False,
    progress: Callable[[int, int], object] | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Finds the writers of a far location that do not run any more, and removes their objects.

    A writer is dead after a day without a sign of life, unless it has packs and its store gave one
    through a later open. One that gave a sign of life within ten minutes is never removed.

    Args:
        path: The far location: a URL, or a directory, where a leading ``~`` is the home directory.
        writers: First digits of the folders of further writers, which need not be dead.
        remove: Whether to remove them. Otherwise nothing is removed.
        progress: Called as ``progress(done_objects, total_objects)`` on any thread. Its exceptions
            are ignored.
        options: How what a URL names is reached: as `far_options` of a store.

    Returns:
        ``writers``: those that were removed, or would be; ``kept``: how many stay; ``is_removed``.

    Raises:
        InvalidError: The directory is no far location, a name fits no writer, or one that runs.
        UnavailableError: It cannot be read, or an object cannot be removed.
    """

def far_doctor(
    path: str | PathLike[str],
    *,
    other: str | PathLike[str] | None = None,
    seconds: float = 20.0,
    progress: Callable[[int], object] | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Measures a directory as a far location, and finds out whether stores may use it.

    It writes to a folder of its own, at most 2 GiB and a twentieth of the free space, and removes
    it.

    Args:
        path: A directory of a mounted file system; a leading ``~`` is the home directory.
        other: The same directory through another mount.
        seconds: How long it may take, about; 2 to 600.
        progress: Called as ``progress(thousandths)`` on any thread, with the part of the time that
            is over. If it returns true, the examination cleans up and ends.
        options: How what a URL names is reached: as `far_options` of a store.

    Returns:
        ``direct``, ``two_mounts``, ``free_bytes``; ``latency`` in microseconds;
        ``bandwidth`` in bytes per second by ``far_workers``; ``promises``: what stores need, each
        with a ``verdict``, ``holds``, ``slow`` or ``fails``; ``advice``: a list of ``{"severity",
        "what", "action"}``; ``is_safe``; ``written_bytes``, ``left_behind``. ``unreadable``:
        ``{"objects", "more", "is_complete"}`` with objects and folders of stores that cannot be
        read, each with ``file``, ``why`` and ``action``, at most 1,000; how many more there are;
        and whether all were tried in a part of the time.

    Raises:
        InvalidError: The directory holds a store, or an argument is wrong.
        UnavailableError: The directory cannot be written, is nearly full, or ``progress`` ended it.
    """

def merge_located(
    located: Sequence[Sequence[Mapping[str, Any]]], found: int
) -> list[tuple[str, int]]:
    """Returns the tiers of leading blocks: of each block the farthest one among the ranks.

    Args:
        located: What :meth:`Namespace.locate` has answered for each rank.
        found: How many blocks all ranks had. One that an answer does not have has left since, and
            counts as read from the log.

    Returns:
        Tiers, and how many blocks in a row are in each.

    Raises:
        InvalidError: There is no such tier.
    """

def config_keys() -> list[str]:
    """Returns the names of all settings."""

def parse_bytes(text: str) -> int:
    """Parses a byte count such as ``"200GiB"``, ``"1.5 TB"``, ``"32Gi"`` or ``"4096"``.

    Raises:
        InvalidError: The text is not a byte count.
    """
