"""A client that speaks the protocol by hand, also wrongly: docs/formats/wire.md."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

MOST_BYTES = 1 << 20
MOST_HASHES = 4096
# How long it waits for the server. A test fails only if the server hangs.
LIMIT_S = 60
ADD_SEALS, SEAL_SHRINK = 1033, 2

WELCOME, DONE, COUNT, FLAGS, LEASED, PUT, FAILED, LOCATED = 0, 1, 2, 3, 6, 7, 10, 11
INVALID, INCOMPATIBLE, UNAVAILABLE = 0, 1, 2


def varint(value: int) -> bytes:
    """An integer as postcard has it."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def read_varint(data: bytes) -> tuple[int, bytes]:
    """An integer, and what comes after it."""
    value = 0
    for at, byte in enumerate(data):
        value |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            return value, data[at + 1 :]
    raise AssertionError("no integer")


def hello(version: int = 1) -> bytes:
    return varint(0) + varint(version)


def look(namespace: bytes, hashes: Sequence[bytes]) -> bytes:
    """A probe."""
    return varint(3) + namespace + varint(0) + b"".join(hashes)


def locate(namespace: bytes, hashes: Sequence[bytes]) -> bytes:
    """Asks from which tiers blocks would be read."""
    return varint(3) + namespace + varint(4) + b"".join(hashes)


def acquire(namespace: bytes, hashes: Sequence[bytes]) -> bytes:
    return varint(4) + namespace + b"\x01" + b"\x00" + b"".join(hashes)


def lease(namespace: bytes, hashes: Sequence[bytes]) -> bytes:
    return varint(5) + namespace + b"\x00" + b"".join(hashes)


def release(leases: Sequence[int]) -> bytes:
    return varint(6) + varint(len(leases)) + b"".join(map(varint, leases))


def register(description: bytes) -> bytes:
    """Makes a namespace known."""
    return varint(1) + varint(len(description)) + description + b"\x00"


def description(name: str) -> bytes:
    """A namespace of one layer with 100 bytes a block: docs/formats/log.md."""
    parts = [b"model", name.encode()]
    fields = b"".join(struct.pack("<I", len(part)) + part for part in parts)
    return b"dalsegno namespace 1\n" + struct.pack("<III", 1, 100, 1) + fields


def watch(capacity: int) -> bytes:
    return varint(11) + varint(capacity)


# Where the blocks of a window start; its ticket comes first.
HEADER_BYTES = 4096
WINDOW = varint(7)
STATS = varint(10)


def put(
    namespace: bytes,
    hashes: Sequence[bytes],
    *,
    offset: int = HEADER_BYTES,
    count: int = 1,
    ticket: int = 0,
    pool_only: bool = False,
) -> bytes:
    """A put of the last `count` blocks of a chain."""
    numbers = map(varint, (len(hashes) - count, count, offset, ticket))
    return varint(8) + namespace + b"".join(numbers) + bytes([0, pool_only]) + b"".join(hashes)


class Raw:
    """A connection."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(str(path / "serve" / "socket"))
        self.held = b""
        self.descriptors: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        for one in self.descriptors:
            os.close(one)

    def send_bytes(self, data: bytes, files: Sequence[int] = ()) -> None:
        """Sends bytes as they are. A server that has ended the connection is no error."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
            sent = self.socket.sendmsg([data], rights if files else [])
            self.socket.sendall(data[sent:])

    def send(self, message: bytes, files: Sequence[int] = ()) -> None:
        """Sends a message in a frame."""
        self.send_bytes(struct.pack("<IB", len(message), len(files)) + message, files)

    def ask(self, message: bytes, files: Sequence[int] = ()) -> tuple[int, bytes]:
        """Sends a message; returns the number of the reply, and its fields and tail."""
        self.send(message, files)
        return self.reply()

    def reply(self) -> tuple[int, bytes]:
        """The next reply."""
        length, count = struct.unpack("<IB", self._take(5))
        number, rest = read_varint(self._take(length))
        assert len(self.descriptors) >= count
        return number, rest

    def failure(self, message: bytes, files: Sequence[int] = ()) -> tuple[int, str]:
        """Sends a message that fails; returns kind and text of the failure."""
        number, rest = self.ask(message, files)
        assert number == FAILED
        return rest[0], read_varint(rest[1:])[1].decode()

    def _take(self, count: int) -> bytes:
        while len(self.held) < count:
            data, files, _, _ = socket.recv_fds(self.socket, 1 << 16, 4)
            self.descriptors += files
            assert data, "the server ended the connection"
            self.held += data
        taken, self.held = self.held[:count], self.held[count:]
        return taken

    def has_ended(self) -> bool:
        """Waits for the server to end the connection. `False` if it sends something instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


@contextmanager
def greeted(path: Path) -> Iterator[Raw]:
    """A connection after its hello."""
    with Raw(path) as raw:
        number, _ = raw.ask(hello())
        assert number == WELCOME
        yield raw


@contextmanager
def memory_file(size: int, *, sealed: bool = True) -> Iterator[int]:
    """The descriptor of memory that may be a window."""
    file = os.memfd_create("window", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    try:
        os.ftruncate(file, size)
        if sealed:
            fcntl.fcntl(file, ADD_SEALS, SEAL_SHRINK)
        yield file
    finally:
        os.close(file)
