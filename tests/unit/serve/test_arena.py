"""The memory that a client gets: it can read it, and do nothing else."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator

import pytest
from tests.served import ServerProcess
from tests.unit.serve import raw
from tests.unit.serve.blocks import COUNT, Blocks

PUNCH_HOLE, KEEP_SIZE = 2, 1
SEAL_WRITE = 8
MAGIC = b"DALSPOOL"


@pytest.fixture
def arena(server: ServerProcess, blocks: Blocks) -> Iterator[int]:
    """The descriptor that came with the Welcome. Afterwards the pool is as it was."""
    with raw.greeted(server.path) as client:
        [file] = client.descriptors
        before = os.fstat(file).st_size
        yield file
        assert os.fstat(file).st_size == before
        assert os.pread(file, 8, 0) == MAGIC
    assert blocks.hits() == COUNT
    assert server.process.poll() is None


def expect_no_change(file: int) -> None:
    """Nothing that a descriptor offers changes the file."""
    for change in (
        lambda: os.pwrite(file, b"x", 0),
        lambda: os.ftruncate(file, 0),
        lambda: os.ftruncate(file, 1 << 30),
        lambda: mmap.mmap(file, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
        lambda: os.posix_fallocate(file, 0, 1 << 30),
        lambda: fcntl.fcntl(file, raw.ADD_SEALS, SEAL_WRITE),
    ):
        with pytest.raises(OSError) as refused:  # noqa: PT011 - the next line says which
            change()
        allowed = {errno.EPERM, errno.EBADF, errno.EINVAL, errno.EACCES}
        assert refused.value.errno in allowed, refused.value
    libc = ctypes.CDLL(None, use_errno=True)
    size = ctypes.c_long(4096)
    assert libc.fallocate(file, PUNCH_HOLE | KEEP_SIZE, ctypes.c_long(0), size) == -1


def test_the_descriptor_only_reads(arena: int) -> None:
    expect_no_change(arena)


def test_a_descriptor_that_is_opened_again_only_reads(arena: int) -> None:
    path = f"/proc/self/fd/{arena}"
    for flags in (os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_TRUNC, os.O_RDWR | os.O_APPEND):
        try:
            file = os.open(path, flags)
        except OSError as error:
            assert error.errno in {errno.EPERM, errno.EACCES}  # noqa: PT017 - it may be allowed
            continue
        try:
            expect_no_change(file)
        finally:
            os.close(file)


def test_a_mapping_cannot_be_made_writable(arena: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    address = libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, arena, 0)
    assert ctypes.string_at(address, 8) == MAGIC
    assert libc.mprotect(address, 4096, mmap.PROT_READ | mmap.PROT_WRITE) == -1
    assert ctypes.get_errno() == errno.EACCES
