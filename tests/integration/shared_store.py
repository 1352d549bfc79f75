"""`dalsegno serve` in a process of its own, as tests of the engines use it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import dalsegno

WAIT_S = 60.0


class SharedStore:
    """A store in a directory that a server shares.

    Attributes:
        path: The directory.
        socket: What a client opens if the server may be away.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.socket = path, f"unix:{path / 'serve' / 'socket'}"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "dalsegno.cli", "serve", str(self.path)]
        command += ["--pool", "64MiB", "--capacity", "1GiB"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        with dalsegno.open(self.socket) as store:
            until = time.monotonic() + WAIT_S
            while not store.served:
                assert time.monotonic() < until, "the server does not start"
                time.sleep(0.05)
        # Clients that found no server try again at least every 250 ms.
        time.sleep(1)

    def wait_for_blocks(self, count: int) -> None:
        """Waits until so many blocks are stored: an engine stores them after its answer."""
        with dalsegno.open(self.socket) as store:
            until = time.monotonic() + WAIT_S
            while store.stats()["blocks"] < count:
                assert time.monotonic() < until, store.stats()["blocks"]
                time.sleep(0.05)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
