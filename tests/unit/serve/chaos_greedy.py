"""A process that takes of a server whatever it gets, and gives nothing back.

It is started as a program with the path of a store, the number of a namespace and a seed. It opens
connections, leases blocks, copies none of them, watches removals, sends halves of messages and
reads few answers. It ends with its standard input.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.unit.serve import raw
from tests.unit.serve.chaos_client import PROMPTS, prompt

CONNECTIONS = 40
# Without it this process would only compete for the processor.
PAUSE_S = 0.02


class Greedy:
    """A client that is never content."""

    def __init__(self, path: Path, namespace: bytes, seed: int) -> None:
        self.path, self.namespace, self.dice = path, namespace, random.Random(seed)
        self.held: list[raw.Raw] = []
        self.stuck: list[raw.Raw] = []
        self.ways: list[Callable[[raw.Raw], object]] = [
            lambda line: line.ask(raw.lease(self.namespace, self.hashes())),
            lambda line: line.ask(raw.acquire(self.namespace, self.hashes())),
            lambda line: line.send(raw.acquire(self.namespace, self.hashes())),
            lambda line: line.ask(raw.varint(11) + raw.varint(1 << 18)),
            lambda line: line.ask(raw.STATS),
            self.begin_a_message,
        ]

    def begin_a_message(self, line: raw.Raw) -> None:
        """Nothing can be sent on this connection afterwards."""
        self.held.remove(line)
        line.send_bytes(bytes([100, 0, 0]))
        self.stuck.append(line)

    def hashes(self) -> list[bytes]:
        return prompt(self.dice.randrange(PROMPTS))

    def step(self) -> None:
        """Opens a connection, or asks for more on one of those that it has."""
        if len(self.held) < CONNECTIONS:
            line = raw.Raw(self.path)
            line.socket.settimeout(0.5)
            self.held.append(line)
            line.ask(raw.hello())
        self.dice.choice(self.ways)(self.dice.choice(self.held))

    def drop_one(self) -> None:
        """Gives up a connection that does not work any more."""
        for lines in (self.held, self.stuck):
            if lines:
                lines.pop(self.dice.randrange(len(lines))).__exit__()


def main(path: str, namespace: str, seed: str) -> None:
    greedy = Greedy(Path(path), bytes.fromhex(namespace), int(seed))
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    while not ended.is_set():
        # Refused, closed, slow, or away: it goes on.
        try:
            greedy.step()
        except (OSError, AssertionError):
            with contextlib.suppress(OSError):
                greedy.drop_one()
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
