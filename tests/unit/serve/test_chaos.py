"""Many clients under eviction, while clients and the server are killed and stopped at random.

Two greedy clients take what they get, nobody reads the log of the server, and a client that is
never stopped measures how late calls with short timeouts end. It prints its figures: the bound on
them is checked with the full dose, on a machine without other work.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import cast

import pytest
from tests.checkout import ROOT
from tests.dose import dose
from tests.served import POOL, SIZES, ServerProcess
from tests.unit.serve.blocks import show, wait_until
from tests.unit.serve.chaos_client import spaces

import dalsegno

CLIENTS, GREEDY = 8, 2
NAMESPACES = dose(50, 4000)
# How much later than a sleeping thread the latest of 1,000 calls may end.
LATE_MS = 50
LENGTH_S = dose(8, 600)
# Most seconds that a client is stopped: leases to copy lapse after two. And the server.
CLIENT_STOP_S, SERVER_STOP_S = 3.0, 0.5
# All blocks together have eight times as many bytes, and three times what the disk may hold.
SETTINGS = {**SIZES, **POOL, "dram": "8MiB"}


class Director:
    """Starts, stops, continues and kills processes.

    Attributes:
        stopped: When each stopped process goes on, by its number.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.dice, self.path, self.end = random.Random(seed), folder / "store", folder / "end"
        self.log = (folder / "errors.txt").open("w+")
        self.stopped: dict[int, float] = {}
        self.counts: Counter[str] = Counter()
        self.server = self.serve()
        with dalsegno.open(self.server.socket) as store:
            namespace = spaces(store)[0].id
        greedy = ["-m", "tests.unit.serve.chaos_greedy", str(self.path), namespace]
        self.greedy = [self.program(*greedy, str(number)) for number in range(GREEDY)]
        watch = [self.server.socket, str(seed), str(NAMESPACES), str(self.end)]
        self.watch = self.program("-m", "tests.unit.serve.chaos_watch", *watch)
        assert self.watch.stdout is not None
        assert self.watch.stdout.readline() == "ready\n", self.errors()
        self.clients = [self.client() for _ in range(CLIENTS)]

    def serve(self) -> ServerProcess:
        return ServerProcess(self.path, SETTINGS, log=True)

    def program(self, *arguments: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [sys.executable, *arguments]
        return subprocess.Popen(
            command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=self.log, text=True
        )

    def client(self) -> subprocess.Popen[str]:
        arguments = [self.server.socket, str(self.dice.randrange(1 << 32)), str(self.end)]
        return self.program("-m", "tests.unit.serve.chaos_client", *arguments)

    def act(self) -> None:
        """Does something to one process."""
        actions = {
            self.kill_client: 6,
            self.stop_client: 8,
            self.stop_server: 2,
            self.kill_server: 1,
            self.close_server: 1,
        }
        [action] = self.dice.choices(list(actions), list(actions.values()))
        action()
        self.counts[action.__name__] += 1
        self.judge()

    def stop(self, pid: int, most_s: float) -> None:
        os.kill(pid, signal.SIGSTOP)
        self.stopped.setdefault(pid, time.monotonic() + self.dice.uniform(0, most_s))

    def continue_due(self, *, all_of_them: bool = False) -> None:
        """Continues the processes whose time has come."""
        for pid, due in list(self.stopped.items()):
            if all_of_them or time.monotonic() >= due:
                del self.stopped[pid]
                os.kill(pid, signal.SIGCONT)

    def kill_client(self) -> None:
        at = self.dice.randrange(CLIENTS)
        victim = self.clients[at]
        assert victim.poll() is None, self.errors()
        victim.kill()
        self.stopped.pop(victim.pid, None)
        victim.communicate()
        self.clients[at] = self.client()

    def stop_client(self) -> None:
        self.stop(self.dice.choice(self.clients).pid, CLIENT_STOP_S)

    def stop_server(self) -> None:
        self.stop(self.server.pid, SERVER_STOP_S)

    def kill_server(self) -> None:
        assert self.server.process.poll() is None, "the server died"
        self.stopped.pop(self.server.pid, None)
        self.server.kill()
        time.sleep(self.dice.choice([0, 0, 0.3]))
        self.server = self.serve()

    def close_server(self) -> None:
        if self.stopped.pop(self.server.pid, None):
            self.server.go_on()
        self.server.close()
        self.server = self.serve()

    def judge(self) -> None:
        """No process may end by itself."""
        assert self.server.process.poll() is None, "the server died"
        others = [*self.clients, *self.greedy, self.watch]
        assert all(process.poll() is None for process in others), self.errors()

    def finish(self) -> Counter[str]:
        """Lets all clients end. Returns what they counted."""
        self.continue_due(all_of_them=True)
        self.end.touch()
        counts: Counter[str] = Counter()
        for client in self.clients:
            out, _ = client.communicate(timeout=600)
            assert client.returncode == 0, self.errors()
            counted = json.loads(out)
            longest_s = max(counts["longest_s"], counted.pop("longest_s"))
            counts.update(counted)
            counts["longest_s"] = longest_s
        for greedy in self.greedy:
            greedy.communicate(timeout=600)
            assert greedy.returncode == 0, self.errors()
        return counts

    def punctuality(self) -> dict[str, float]:
        """How late the calls of the watch ended."""
        out, _ = self.watch.communicate(timeout=600)
        assert self.watch.returncode == 0, self.errors()
        return cast("dict[str, float]", json.loads(out))

    def errors(self) -> str:
        self.log.seek(0)
        return "a client failed:\n" + self.log.read()[-4000:]

    def close(self) -> None:
        """Ends everything, whatever happened."""
        for client in [*self.clients, *self.greedy, self.watch]:
            client.kill()
            client.communicate()
        self.server.kill()
        self.log.close()


def drained(server: ServerProcess) -> bool:
    """Whether no client holds anything, and no block has a place."""
    left = server.tenant()
    return (left["leases"], left["pool_free_bytes"]) == (0, left["pool_bytes"])


@pytest.mark.slow
@pytest.mark.timeout(LENGTH_S + 900)
def test_no_byte_is_wrong_whatever_is_killed_or_stopped(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    show(f"seed {seed}")
    director = Director(tmp_path, seed)
    try:
        until = time.monotonic() + LENGTH_S
        while time.monotonic() < until:
            director.act()
            time.sleep(director.dice.uniform(0.02, 0.3))
            director.continue_due()
        counts = director.finish()
        figures = director.punctuality()
        server = director.server
        wait_until(lambda: server.tenant()["sessions"] == 0, "all clients are forgotten")
        left = server.tenant()
        assert [left[one] for one in ("leases", "copy_bytes", "view_bytes")] == [0, 0, 0]
        assert left["malformed_sessions"] == 0
        with dalsegno.open(server.socket) as store:
            for space in store.namespaces():
                space.remove()
            wait_until(lambda: drained(server), "the pool is free")
        server.close()
    finally:
        director.close()
    assert dalsegno.verify(director.path)["findings"] == []
    show(f"how late calls ended: {json.dumps(figures)}")
    assert figures["calls"] > 0
    assert figures["leased"] > 0
    assert figures["lost_leases"] <= director.counts["close_server"]
    if dose(0, 1):
        assert figures["late_p999_ms"] <= LATE_MS + figures["overslept_p999_ms"]
    show(f"{dict(director.counts)} while the clients of the end counted {dict(counts)}")
