"""A store that a server shares, as tests of the engines use it."""

from __future__ import annotations

import time
from pathlib import Path

from tests.served import LIMIT_S, ServerProcess

SETTINGS = {"dram": "64MiB", "dram_admission": "put", "capacity": "1GiB"}


class SharedStore:
    """A store in a directory that a server shares.

    Attributes:
        path: The directory.
        socket: What a client opens if the server may be away.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start()
        self.socket = self._server.socket

    def start(self) -> None:
        self._server = ServerProcess(self.path, SETTINGS)
        # Clients that found no server try again at least every 250 ms.
        time.sleep(1)

    def wait_for_blocks(self, count: int) -> None:
        """Waits until so many blocks are stored: an engine stores them after its answer."""
        until = time.monotonic() + LIMIT_S
        while (stored := self._server.tenant()["store"]["blocks"]) < count:
            assert time.monotonic() < until, stored
            time.sleep(0.05)

    def kill(self) -> None:
        self._server.kill()
