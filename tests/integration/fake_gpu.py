"""`FakeCuda` for tests in Python: the driver's calls on the CPU, with late copies.

Its device memory faults if the processor touches it, so tests read and write it through a stream,
as an engine does.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from tests.skipping import skip_if_missing

# The text of violations that is read.
TEXT_BYTES = 1 << 16


def library_path() -> Path:
    """Returns the path of the library; skips the test if it was not built."""
    default = Path(__file__).parents[2] / "target" / "debug" / "libfake_cuda.so"
    path = Path(os.environ.get("DALSEGNO_FAKE_CUDA", default))
    missing = f"{path} is missing: run cargo build -p dalsegno-fake-cuda"
    skip_if_missing(None if path.is_file() else missing, "fake-cuda")
    return path


class FakeGpu:
    """The fake, as an engine uses it: one stream, and memory.

    Attributes:
        path: Where the library is.
    """

    def __init__(self, seed: int = 1, delay_us: int = 50) -> None:
        """Forgets what tests before have planted.

        Args:
            seed: Decides how late copies are.
            delay_us: Most microseconds before each operation of a stream.
        """
        self.path = library_path()
        self._library = ctypes.CDLL(str(self.path))
        self._library.fake_cuda_reset(c_uint64(seed), c_uint(delay_us))
        context, self._stream = c_void_p(), c_void_p()
        self._call("cuInit", c_uint(0))
        self._call("cuDevicePrimaryCtxRetain", byref(context), c_int(0))
        self._call("cuCtxSetCurrent", context)
        self._call("cuStreamCreateWithPriority", byref(self._stream), c_uint(1), c_int(0))
        self._memory: list[int] = []

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._library, name)(*arguments)
        assert result == 0, f"{name} returned {result}"

    @property
    def stream(self) -> int:
        """The number of the engine's stream."""
        return self._stream.value or 0

    def fail(self, call: str, after: int, times: int, result: int) -> None:
        """Lets calls of the driver fail, after some that succeed."""
        self._call("fake_cuda_fail", call.encode(), c_uint(after), c_uint(times), c_int(result))

    def fail_later(self, call: str, after: int, times: int, result: int) -> None:
        """Lets the work of calls fail, after the calls have succeeded."""
        name = call.encode()
        self._call("fake_cuda_fail_later", name, c_uint(after), c_uint(times), c_int(result))

    def limit(
        self,
        *,
        version: int = 12080,
        ptx: tuple[int, int] = (8, 2),
        memlock: int | None = None,
        attributes: Mapping[int, int] | None = None,
    ) -> None:
        """Takes something from the driver that a GPU opened later will miss.

        Args:
            version: Of the driver; 12080 is CUDA 12.8.
            ptx: The newest version of PTX that it takes.
            memlock: Most bytes of pinned and registered memory; None for no limit.
            attributes: Attributes of the device that differ, by their numbers.
        """
        self._library.fake_cuda_set_driver_version(c_int(version))
        self._library.fake_cuda_set_ptx(*map(c_uint, ptx))
        if memlock is not None:
            self._library.fake_cuda_set_memlock(c_size_t(memlock))
        for number, value in (attributes or {}).items():
            self._library.fake_cuda_set_attribute(c_int(number), c_int(value))

    def calls(self, name: str) -> int:
        """Returns how often a call was made."""
        count = self._library.fake_cuda_calls
        count.restype, count.argtypes = c_uint64, [c_char_p]
        return int(count(name.encode()))

    def allocate(self, size: int) -> int:
        """Returns the address of new memory, all zeros."""
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), c_size_t(size))
        self._memory.append(address.value)
        self._call("fake_cuda_write", address, bytes(size), c_size_t(size))
        return address.value

    def write(self, address: int, content: bytes) -> None:
        """Queues a write in the engine's stream."""
        arguments = (c_uint64(address), content, c_size_t(len(content)), self._stream)
        self._call("cuMemcpyHtoDAsync_v2", *arguments)

    def read(self, address: int, size: int) -> bytes:
        """Reads memory behind everything that the engine's stream has."""
        out = ctypes.create_string_buffer(size)
        self._call("cuMemcpyDtoHAsync_v2", out, c_uint64(address), c_size_t(size), self._stream)
        self._call("cuStreamSynchronize", self._stream)
        return out.raw

    def violations(self) -> str:
        """Returns what was done that CUDA forbids."""
        text = ctypes.create_string_buffer(TEXT_BYTES)
        listed = self._library.fake_cuda_violations
        listed.restype, listed.argtypes = c_size_t, [POINTER(ctypes.c_char), c_size_t]
        listed(text, TEXT_BYTES)
        return text.value.decode()

    def close(self) -> None:
        """Frees memory and stream; nothing may use them any more."""
        self._call("cuStreamSynchronize", self._stream)
        for address in self._memory:
            self._call("cuMemFree_v2", c_uint64(address))
        self._call("cuStreamDestroy_v2", self._stream)
        assert self.violations() == ""
