"""Lets the tests of the Rust core call Mooncake's client: they have no Python interpreter.

Each request is a line of JSON, followed by the bytes of a put; each answer too, followed by the
bytes of a get that succeeded.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
from typing import IO, Any

from dalsegno_bench.mooncake import client_folder


class Pieces:
    """Memory in pieces, as the far tier gives it to the client."""

    def __init__(self, sizes: list[int]) -> None:
        """Allocates pieces of these sizes in bytes."""
        self._memory = mmap.mmap(-1, max(1, sum(sizes)))
        at = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.places: list[tuple[int, int]] = []
        for size in sizes:
            self.places.append((at, size))
            at += size

    @property
    def bytes(self) -> memoryview:
        """All of it."""
        return memoryview(self._memory)


def answer(client: Any, request: dict[str, Any], given: IO[bytes], to: IO[bytes]) -> None:
    """Makes a call, and writes its answer."""
    rest = b""
    match request["call"]:
        case "put":
            pieces = Pieces(request["sizes"])
            total = sum(request["sizes"])
            pieces.bytes[:total] = given.read(total)
            done = {"code": client.put(request["key"], pieces.places)}
        case "get":
            pieces = Pieces(request["sizes"])
            code = client.get(request["key"], request["offset"], pieces.places)
            done = {"code": code}
            rest = bytes(pieces.bytes[: sum(request["sizes"])]) if code == 0 else b""
        case "sizes":
            done = {"code": 0, "sizes": client.sizes(request["keys"])}
        case _:
            done = {"code": client.remove(request["key"])}
    to.write(json.dumps(done).encode() + b"\n" + rest)
    to.flush()


def main() -> None:
    """Answers requests until there are no more."""
    folder = client_folder()
    if folder is not None:
        sys.path.append(str(folder))
    from dalsegno.mooncake_client import MooncakeClient

    # What Mooncake prints goes to stderr, not among the answers.
    to = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    client = MooncakeClient(
        master=sys.argv[1], metadata_server="P2PHANDSHAKE", protocol="tcp", devices="", replicas=1
    )
    while line := sys.stdin.buffer.readline():
        answer(client, json.loads(line), sys.stdin.buffer, to)


if __name__ == "__main__":
    main()
