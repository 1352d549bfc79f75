"""Device memory and a stream, through the calls of the CUDA driver alone.

It stands in for an engine: its memory is the KV cache, its stream the one in which layers are
computed. With another library than the driver's it runs on `FakeCuda`, on a machine without a GPU.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

DRIVER = "libcuda.so.1"
Bytes = npt.NDArray[np.uint8]

# Streams do not wait for the default stream.
_NON_BLOCKING = 1


class DriverError(RuntimeError):
    """A call of the driver failed; the message names it and its result."""


class Device:
    """The first GPU, one stream on it, and memory.

    Attributes:
        library: Path of the library that was named; None for the driver's own.
    """

    def __init__(self, library: Path | None = None) -> None:
        """Opens the driver and takes the GPU's primary context, which PyTorch uses too.

        Args:
            library: Another library with the driver's calls.

        Raises:
            DriverError: There is no driver, or no GPU.
        """
        self.library = library
        try:
            self._calls = ctypes.CDLL(str(library or DRIVER))
        except OSError as error:
            raise DriverError(f"the driver cannot be loaded: {error}") from error
        context, self._stream = c_void_p(), c_void_p()
        self._call("cuInit", c_uint(0))
        self._call("cuDevicePrimaryCtxRetain", byref(context), c_int(0))
        self._call("cuCtxSetCurrent", context)
        self._call(
            "cuStreamCreateWithPriority", byref(self._stream), c_uint(_NON_BLOCKING), c_int(0)
        )
        self._memory: list[int] = []

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._calls, name)(*arguments)
        if result:
            raise DriverError(f"{name} returned {result}")

    @property
    def stream(self) -> int:
        """The number of the stream."""
        return self._stream.value or 0

    @property
    def is_fake(self) -> bool:
        """Whether the library is `FakeCuda`."""
        return hasattr(self._calls, "fake_cuda_violations")

    def allocate(self, size: int) -> int:
        """Returns the address of new memory of so many bytes; it is freed by `close`.

        Raises:
            DriverError: There is too little.
        """
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), c_size_t(size))
        self._memory.append(address.value)
        return address.value

    def write(self, address: int, content: Bytes) -> None:
        """Queues a write in the stream; the content must not change before `synchronize`.

        Args:
            address: In the memory of the GPU.
            content: Contiguous bytes.
        """
        arguments = (c_uint64(address), c_void_p(content.ctypes.data), c_size_t(content.nbytes))
        self._call("cuMemcpyHtoDAsync_v2", *arguments, self._stream)

    def read(self, address: int, size: int) -> Bytes:
        """Returns bytes of the GPU's memory, behind everything that the stream has."""
        out = np.empty(size, np.uint8)
        arguments = (c_void_p(out.ctypes.data), c_uint64(address), c_size_t(size), self._stream)
        self._call("cuMemcpyDtoHAsync_v2", *arguments)
        self.synchronize()
        return out

    def synchronize(self) -> None:
        """Waits for everything that the stream has."""
        self._call("cuStreamSynchronize", self._stream)

    def violations(self) -> str:
        """Returns what was done that CUDA forbids, as `FakeCuda` recorded it; empty otherwise."""
        if not self.is_fake:
            return ""
        text = ctypes.create_string_buffer(1 << 16)
        self._calls.fake_cuda_violations(text, c_size_t(len(text)))
        return text.value.decode()

    def close(self) -> None:
        """Frees memory and stream; nothing may use them any more."""
        self.synchronize()
        for address in self._memory:
            self._call("cuMemFree_v2", c_uint64(address))
        self._call("cuStreamDestroy_v2", self._stream)
        self._memory.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
