"""A process that nobody stops: it measures how late calls end, and keeps a lease all the time.

It is started as a program with the path of the socket, a seed, the number of its namespaces and a
file. When the file is there it prints its figures and ends. A wrong byte or an exception makes it
exit with 1.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from pathlib import Path

from tests.contract.subjects import chain
from tests.unit.serve.chaos_client import LENGTH, ChaosClient, right

import dalsegno

TIMEOUTS_S = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05]
THREADS = 3
MINE = chain(4, "of the watch")
SLICE_BYTES = 65_536


class Punctual(ChaosClient):
    """A chaos client whose calls all have short timeouts."""

    def __init__(self, store: dalsegno.Store, seed: int) -> None:
        super().__init__(store, seed)
        self.made = {
            space.block_bytes: [bytearray(space.block_bytes) for _ in range(LENGTH)]
            for space in self.spaces
        }
        # The others have no timeout, or do more than one call.
        self.ways = {self.put: 3, self.get: 5, self.get_each: 3, self.lease: 2, self.remove: 1}

    def timeout(self) -> float:
        return self.dice.choice(TIMEOUTS_S)

    def buffers(self, space: dalsegno.Namespace) -> list[bytearray]:
        # Not within the time of the call.
        return self.made[space.block_bytes]


class Calls:
    """The calls of a namespace, each of which is measured."""

    def __init__(self, space: dalsegno.Namespace, late_s: list[float]) -> None:
        self._space, self._late_s = space, late_s

    def __getattr__(self, name: str) -> object:
        found = getattr(self._space, name)
        if not callable(found):
            return found

        def call(*arguments: object, timeout_s: float | None = None) -> object:
            if timeout_s is None:
                return found(*arguments)
            start = time.perf_counter()
            try:
                return found(*arguments, timeout_s=timeout_s)
            finally:
                self._late_s.append(time.perf_counter() - start - timeout_s)

        return call


class Watch:
    """Calls, sleeps and a lease, until the end."""

    def __init__(self, store: dalsegno.Store, seed: int, end: Path) -> None:
        self.store, self.seed, self.end = store, seed, end
        self.late_s: list[float] = []
        self.overslept_s: list[float] = []
        self.leased, self.lost_leases = 0, 0
        self.errors: list[BaseException] = []

    def run(self, work: str, *arguments: object) -> threading.Thread:
        def guarded() -> None:
            try:
                getattr(self, work)(*arguments)
            except BaseException as error:  # noqa: BLE001 - raised by `main`
                self.errors.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        return thread

    def goes_on(self) -> bool:
        return not (self.end.exists() or self.errors)

    def call(self, number: int) -> None:
        client = Punctual(self.store, self.seed + number)
        late_s: list[float] = []
        client.spaces = [Calls(space, late_s) for space in client.spaces]  # type: ignore[misc]
        while self.goes_on():
            client.step()
            if not self.store.served:
                # Misses are quick, and others need the processor.
                time.sleep(0.005)
        client.leases.clear()
        self.late_s += late_s

    def sleep(self) -> None:
        dice, overslept_s = random.Random(self.seed), list[float]()
        while self.goes_on():
            time_s = dice.choice(TIMEOUTS_S)
            start = time.perf_counter()
            time.sleep(time_s)
            overslept_s.append(time.perf_counter() - start - time_s)
        self.overslept_s += overslept_s

    def hold(self, space: dalsegno.Namespace) -> None:
        """Keeps a lease, mostly. A server that closes ends it, and nothing else does."""
        blocks = [right(one, SLICE_BYTES) for one in MINE]
        while self.goes_on():
            space.put_batch(MINE, blocks)
            with space.lease(MINE) as lease:
                held = len(lease)
                until = time.monotonic() + 3
                while held and self.goes_on() and time.monotonic() < until:
                    copies = [bytes(view) for view in lease]
                    valid = lease.valid_blocks()
                    assert copies[:valid] == blocks[:valid], "wrong bytes in a lease"
                    self.leased += 1
                    if valid < held:
                        self.lost_leases += 1
                        break
                    time.sleep(0.05)
            time.sleep(0.05)


def figures(watch: Watch) -> dict[str, float]:
    """p99.9 and the largest, in milliseconds."""

    def p999(values: list[float]) -> float:
        return sorted(values)[int(len(values) * 0.999)] * 1000 if values else 0.0

    return {
        "calls": len(watch.late_s),
        "late_p999_ms": p999(watch.late_s),
        "late_most_ms": max(watch.late_s, default=0) * 1000,
        "overslept_p999_ms": p999(watch.overslept_s),
        "overslept_most_ms": max(watch.overslept_s, default=0) * 1000,
        "leased": watch.leased,
        "lost_leases": watch.lost_leases,
    }


def main(socket: str, seed: str, namespaces: str, end: str) -> None:
    # A thread that wakes up waits for the others of the interpreter at most this long.
    sys.setswitchinterval(0.001)
    with dalsegno.open(socket) as store:
        for number in range(int(namespaces)):
            store.namespace({"number": str(number)}, layers=1, slice_bytes=4096)
        mine = store.namespace({"model": "of the watch"}, layers=1, slice_bytes=SLICE_BYTES)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        watch = Watch(store, int(seed), Path(end))
        threads = [watch.run("call", number) for number in range(THREADS)]
        threads += [watch.run("sleep"), watch.run("hold", mine)]
        for thread in threads:
            thread.join()
        if watch.errors:
            raise watch.errors[0]
    sys.stdout.write(json.dumps(figures(watch)))


if __name__ == "__main__":
    main(*sys.argv[1:])
