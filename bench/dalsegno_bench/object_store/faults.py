"""A proxy between a client and an HTTP server that makes faults, deterministic by its seed.

1. Each request meets one fault or none, by the seed and the number of the request: the same client
   that sends the same requests one after another meets the same faults.
2. What a fault does not change is passed on byte for byte, so signatures stay right.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

__all__ = ["FAULTS", "FaultProxy"]

# What may happen to a request.
FAULTS = (
    # The connection ends before the server gets it.
    "drop",
    # The server carries it out, and the connection ends before the response.
    "lost",
    # The connection ends in the middle of the response's body.
    "cut",
    # The response begins late.
    "delay",
    # The body comes very slowly.
    "drip",
    "503",
    "500",
    "409",
    # A success whose body is an error.
    "error-in-200",
    # A range is answered with the whole object.
    "whole",
    # A body with one byte that is another one.
    "flip",
)
_LIMIT = 1 << 16
_DELAY_S = 0.5
_DRIP_BYTES = 16


class FaultProxy:
    """Listens on loopback while it is entered.

    Attributes:
        endpoint: URL to give to the client.
        met: How often each fault happened.
    """

    def __init__(
        self, upstream: str, chances: Mapping[str, float], *, seed: int = 0, address: str = ""
    ) -> None:
        """Keeps what it is to do.

        Args:
            upstream: URL of the server.
            chances: The chance of each fault that happens, 0 to 1.
            seed: Decides which request meets which.
            address: Where it listens; that of the server if not given.
        """
        host, port = upstream.removeprefix("http://").split(":")
        self._upstream = (host, int(port))
        self._address = address or host
        self.chances = dict(chances)
        self._random = random.Random(seed)  # noqa: S311 - faults, no secrets
        self.met: Counter[str] = Counter()
        self.endpoint = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy")
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        """Begins to listen."""
        self._thread.start()
        begun = asyncio.run_coroutine_threadsafe(self._begin(), self._loop)
        port = begun.result(timeout=30)
        self.endpoint = f"http://{self._address}:{port}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends all connections."""
        del kind, error, trace
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(timeout=30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _begin(self) -> int:
        self._server = await asyncio.start_server(self._serve, self._address, 0, limit=_LIMIT)
        return int(self._server.sockets[0].getsockname()[1])

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()

    def _fault(self) -> str | None:
        drawn = self._random.random()
        for fault, chance in self.chances.items():
            if drawn < chance:
                self.met[fault] += 1
                return fault
            drawn -= chance
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._one(reader, writer):
                pass
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Passes on a request; returns whether the connection goes on."""
        head = await reader.readuntil(b"\r\n\r\n")
        fault = self._fault()
        if fault == "drop":
            return False
        if fault == "whole":
            head = _without(head, b"range")
        up_reader, up_writer = await asyncio.open_connection(*self._upstream, limit=_LIMIT)
        try:
            if fault in ("503", "500", "409", "error-in-200"):
                await _discard(reader, _length(head))
                writer.write(_answer(fault))
                await writer.drain()
                return True
            up_writer.write(head)
            await _copy(reader, up_writer, _length(head))
            answer = await up_reader.readuntil(b"\r\n\r\n")
            while answer.startswith(b"HTTP/1.1 100"):
                answer = await up_reader.readuntil(b"\r\n\r\n")
            if fault == "lost":
                return False
            if fault == "delay":
                await asyncio.sleep(_DELAY_S)
            is_head = head.startswith(b"HEAD ")
            return await _respond(fault, is_head, answer, up_reader, writer)
        finally:
            up_writer.close()


async def _respond(
    fault: str | None,
    is_head: bool,  # noqa: FBT001 - a fact of the request
    answer: bytes,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> bool:
    writer.write(answer)
    if is_head or _status(answer) in (204, 304):
        await writer.drain()
        return True
    if b"chunked" in _header(answer, b"transfer-encoding"):
        # The server closes no connection, so chunks are passed on one by one.
        await _copy_chunks(reader, writer)
        return fault != "cut"
    length = _length(answer)
    if fault == "cut":
        await _copy(reader, writer, length // 2)
        return False
    if fault == "drip":
        for _ in range(0, min(length, 20 * _DRIP_BYTES), _DRIP_BYTES):
            writer.write(await reader.readexactly(min(_DRIP_BYTES, length)))
            await writer.drain()
            await asyncio.sleep(0.1)
        return False
    if fault == "flip" and length:
        body = bytearray(await reader.readexactly(length))
        body[length // 2] ^= 0xFF
        writer.write(body)
        await writer.drain()
        return True
    await _copy(reader, writer, length)
    return True


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int) -> None:
    while count:
        piece = await reader.read(min(count, _LIMIT))
        if not piece:
            raise asyncio.IncompleteReadError(b"", count)
        writer.write(piece)
        await writer.drain()
        count -= len(piece)


async def _copy_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        line = await reader.readuntil(b"\r\n")
        writer.write(line)
        size = int(line.split(b";")[0], 16)
        await _copy(reader, writer, size + 2)
        if not size:
            return


async def _discard(reader: asyncio.StreamReader, count: int) -> None:
    while count:
        piece = await reader.read(min(count, _LIMIT))
        if not piece:
            return
        count -= len(piece)


def _header(head: bytes, name: bytes) -> bytes:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip().lower()
    return b""


def _without(head: bytes, name: bytes) -> bytes:
    lines = head.split(b"\r\n")
    kept = [line for line in lines if line.partition(b":")[0].strip().lower() != name]
    return b"\r\n".join(kept)


def _length(head: bytes) -> int:
    return int(_header(head, b"content-length") or 0)


def _status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def _answer(fault: str) -> bytes:
    code = {"503": "SlowDown", "500": "InternalError", "409": "OperationAborted"}.get(
        fault, "InternalError"
    )
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode()
    status = "200" if fault == "error-in-200" else fault
    return b"HTTP/1.1 %s Fault\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)
