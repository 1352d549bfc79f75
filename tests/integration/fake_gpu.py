"""`FakeCuda` for tests in Python: the driver's calls on the CPU, with late copies.

Its device memory faults if the processor touches it, so tests read and write it through a stream,
as an engine does.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from ctypes import c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path

import numpy as np
from tests.checkout import ROOT, load_tool
from tests.skipping import skip_if_missing


def library_path() -> Path:
    """Returns the path of the library; skips the test if it was not built."""
    default = ROOT / "target" / "debug" / "libfake_cuda.so"
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
        self._device = load_tool("gpu/driver").Device(self.path)

    @property
    def stream(self) -> int:
        """The number of the engine's stream."""
        number: int = self._device.stream
        return number

    def fail(self, call: str, after: int, times: int, result: int) -> None:
        """Lets calls of the driver fail, after some that succeed."""
        arguments = (c_uint(after), c_uint(times), c_int(result))
        assert self._library.fake_cuda_fail(call.encode(), *arguments) == 0, call

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

    def lag(self, us: int) -> None:
        """Lets the engine's stream do nothing for some microseconds."""
        assert self._library.fake_cuda_delay(c_void_p(self.stream), c_uint64(us)) == 0

    def allocate(self, size: int) -> int:
        """Returns the address of new memory, all zeros."""
        address: int = self._device.allocate(size)
        arguments = (c_uint64(address), bytes(size), c_size_t(size))
        assert self._library.fake_cuda_write(*arguments) == 0
        return address

    def write(self, address: int, content: bytes) -> None:
        """Queues a write in the engine's stream."""
        self._device.write(address, np.frombuffer(content, np.uint8))

    def read(self, address: int, size: int) -> bytes:
        """Reads memory behind everything that the engine's stream has."""
        return bytes(self._device.read(address, size))

    def close(self) -> None:
        """Frees memory and stream; nothing may use them any more."""
        self._device.close()
        assert self._device.violations() == ""
