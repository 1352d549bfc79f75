"""Memory for blocks that a program writes in place: with a store of its own, and with a server."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dalsegno

LAYERS, SLICE = 2, 5000
SIZE = LAYERS * SLICE


def chain(count: int) -> list[bytes]:
    return [hashlib.sha256(bytes([number])).digest() for number in range(count)]


@pytest.fixture(params=["here", "served"])
def namespace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dalsegno.Namespace]:
    """A namespace of a store in this process, and of a server's."""
    path, settings = tmp_path / "store", {"capacity": "64MiB", "dram": "16MiB"}
    server = dalsegno.Server(path, json.dumps(settings)) if request.param == "served" else None
    with dalsegno.open(path, **settings) as store:
        assert store.served == (server is not None)
        yield store.namespace({"model": "m"}, layers=LAYERS, slice_bytes=SLICE)
    if server is not None:
        server.close()


def loaded(namespace: dalsegno.Namespace, hashes: list[bytes]) -> list[bytes]:
    out = [bytearray(SIZE) for _ in hashes]
    hits = namespace.get_batch(hashes, out)
    return [bytes(block) for block in out[:hits]]


def test_what_is_written_in_place_is_stored(namespace: dalsegno.Namespace) -> None:
    blocks = namespace.allocate(3)
    assert len(blocks) == 3
    for number in range(3):
        np.frombuffer(blocks[number], np.uint8)[:] = number + 1
    assert blocks.commit(chain(3)).stored == 3
    assert loaded(namespace, chain(3)) == [bytes([number]) * SIZE for number in (1, 2, 3)]


def test_memory_is_committed_again_and_in_part(namespace: dalsegno.Namespace) -> None:
    blocks = namespace.allocate(2)
    blocks[0][:], blocks[1][:] = bytes([1]) * SIZE, bytes([2]) * SIZE
    assert blocks.commit(chain(2)).stored == 2
    blocks[-2][:] = bytes([3]) * SIZE
    report = blocks.commit(chain(3), first=2)
    assert (report.stored, report.kept) == (1, [True])
    assert loaded(namespace, chain(3)) == [bytes([number]) * SIZE for number in (1, 2, 3)]


def test_buffers_outlive_the_allocation(namespace: dalsegno.Namespace) -> None:
    block = namespace.allocate(1)[0]
    block[:] = bytes([7]) * SIZE
    assert bytes(block) == bytes([7]) * SIZE


def test_wrong_numbers_are_refused(namespace: dalsegno.Namespace) -> None:
    with pytest.raises(dalsegno.InvalidError, match="0 blocks cannot be allocated"):
        namespace.allocate(0)
    with pytest.raises(dalsegno.DalsegnoError, match="blocks"):
        namespace.allocate(1 << 60)
    with pytest.raises(dalsegno.UnavailableError, match="no memory for"):
        namespace.allocate(1 << 32)
    blocks = namespace.allocate(2)
    with pytest.raises(dalsegno.InvalidError, match="there is memory for 2 blocks"):
        blocks.commit(chain(3))
    with pytest.raises(IndexError, match="of an allocation of 2 blocks"):
        blocks[2]
    assert loaded(namespace, chain(3)) == []


def test_a_commit_that_was_given_up_stores_nothing_that_is_written_later(tmp_path: Path) -> None:
    path = tmp_path / "store"
    command = [sys.executable, "-m", "dalsegno.cli", "serve", str(path), "--pool", "1MiB"]
    with subprocess.Popen([*command, "--capacity", "64MiB"], stdout=subprocess.DEVNULL) as server:
        with dalsegno.open(f"unix:{path / 'serve' / 'socket'}") as store:
            while not store.served:
                time.sleep(0.01)
            namespace = store.namespace({"model": "m"}, layers=LAYERS, slice_bytes=SIZE // LAYERS)
            blocks = namespace.allocate(1)
            blocks[0][:] = bytes([1]) * SIZE
            server.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)
            assert blocks.commit(chain(1), timeout_s=0.05).failed == 1
            blocks[0][:] = bytes([2]) * SIZE
            server.send_signal(signal.SIGCONT)
            while blocks.commit(chain(2), first=1).failed:
                time.sleep(0.01)
            # Both requests were handled by now, the first one late.
            assert namespace.contains(chain(2)) == [False, True]
        server.terminate()
