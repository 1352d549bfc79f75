"""The baseline of the calls: a directory of blocks behind pyzmq and msgpack.

This is the lean form of what Maru and LMCache do: a REP socket with one thread, messages that are
plain lists, and leases in a table of Python.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from dalsegno_bench.pool.workset import hash_of

__all__ = ["Client", "main"]

PROBE, ACQUIRE, RELEASE = 1, 2, 3
BLOCK_BYTES_SHIFT = 19


class Client:
    """A REQ socket.

    Args:
        path: Path of the server's socket.
    """

    def __init__(self, path: str) -> None:
        import msgpack
        import zmq

        self._codec: Any = msgpack
        self._socket = zmq.Context().socket(zmq.REQ)
        self._socket.connect(f"ipc://{path}")

    def _call(self, *args: object) -> Any:
        self._socket.send(self._codec.packb(args))
        return self._codec.unpackb(self._socket.recv(), use_list=False)

    def probe(self, hashes: Sequence[bytes]) -> int:
        """Returns how many leading blocks are present."""
        return int(self._call(PROBE, hashes))

    def acquire(self, hashes: Sequence[bytes]) -> tuple[int, Sequence[Any]]:
        """Leases the leading blocks; returns the number of the lease, and their places."""
        lease, found = self._call(ACQUIRE, hashes)
        return lease, found

    def release(self, lease: int) -> None:
        """Ends a lease."""
        self._call(RELEASE, lease)


class Directory:
    """The places of blocks, and who holds them.

    Args:
        blocks: How many blocks there are.

    Attributes:
        table: Place of each block by hash; the last number is how many leases hold it.
    """

    def __init__(self, blocks: int) -> None:
        self.table = {
            hash_of(n): [n << BLOCK_BYTES_SHIFT, 2, 1 << BLOCK_BYTES_SHIFT, 0, n, 0]
            for n in range(blocks)
        }
        self._leases: dict[int, list[list[int]]] = {}
        self._last = 0

    def probe(self, hashes: Sequence[bytes]) -> int:
        """Returns how many leading blocks are present."""
        n = 0
        for h in hashes:
            if h not in self.table:
                break
            n += 1
        return n

    def acquire(self, hashes: Sequence[bytes]) -> tuple[int, list[list[int]]]:
        """Leases the leading blocks."""
        found = []
        for h in hashes:
            e = self.table.get(h)
            if e is None:
                break
            e[5] += 1
            found.append(e)
        self._last += 1
        self._leases[self._last] = found
        return self._last, [e[:5] for e in found]

    def release(self, lease: int) -> None:
        """Ends a lease."""
        for e in self._leases.pop(lease):
            e[5] -= 1


def main(path: str, blocks: int) -> None:
    """Serves until the process is killed; prints a line when it is ready.

    Args:
        path: Path of the socket.
        blocks: How many blocks the directory has.
    """
    import msgpack
    import zmq

    directory = Directory(blocks)
    calls: dict[int, Any] = {
        PROBE: directory.probe,
        ACQUIRE: directory.acquire,
        RELEASE: directory.release,
    }
    socket = zmq.Context().socket(zmq.REP)
    socket.bind(f"ipc://{path}")
    print("ready", flush=True)
    while True:
        op, argument = msgpack.unpackb(socket.recv(), use_list=False)
        socket.send(msgpack.packb(calls[op](argument)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
