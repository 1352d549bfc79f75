"""Two stores share blocks through real shared file systems, and outlive their failures."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.far.shared_fs import mounted

import dalsegno
from dalsegno_bench.shared_fs.kinds import KINDS, MORE_KINDS
from dalsegno_bench.shared_fs.mounts import SharedFs, mounts_env
from dalsegno_bench.shared_fs.processes import paused, until

pytestmark = pytest.mark.slow

LAYERS, SLICE_BYTES, COUNT = 4, 65_536, 24
BLOCK_BYTES = LAYERS * SLICE_BYTES
LIMIT_S = 60.0
# A call with a deadline has ended by then, however busy the machine is.
AT_MOST_S = 30.0
# CephFS lets other hosts wait for what a host held that ended, for 60 s.
AFTER_END_S = 150.0


def chain(name: str, count: int = COUNT) -> list[bytes]:
    return [hashlib.sha256(f"{name} {at}".encode()).digest() for at in range(count)]


def block(name: bytes) -> bytes:
    """The bytes that belong to a name, and to no other."""
    return name * (BLOCK_BYTES // len(name))


class Node:
    """A store on a local disk whose far directory is one of the mounts."""

    def __init__(self, path: Path, far: Path, **settings: object) -> None:
        far.mkdir(exist_ok=True)
        base = {"capacity": "64MiB", "dram": 0, "far": str(far), "far_flush_s": 0.2}
        self.store = dalsegno.open(path, **{**base, **settings})
        fields = {"test": "far"}
        self.namespace = self.store.namespace(fields, layers=LAYERS, slice_bytes=SLICE_BYTES)

    def put(self, hashes: list[bytes]) -> None:
        report = self.namespace.put_batch(hashes, [block(one) for one in hashes])
        assert report.stored == len(hashes)

    def get(self, hashes: list[bytes], timeout_s: float = LIMIT_S) -> int:
        """Loads a prefix and compares every byte; returns its blocks."""
        out = [bytearray(BLOCK_BYTES) for _ in hashes]
        hits = self.namespace.get_batch(hashes, out, timeout_s=timeout_s)
        for name, got in zip(hashes[:hits], out, strict=False):
            assert got == block(name), "wrong bytes"
        return hits

    def finds(self, hashes: list[bytes]) -> bool:
        return self.namespace.probe(hashes) == len(hashes)


def published(node: Node) -> int:
    """Returns how many blocks a node has shared."""
    far = node.store.stats()["far"]
    assert far is not None
    return far["published"]["blocks"]


@contextmanager
def nodes(fs: SharedFs, folder: Path, name: str, **settings: object) -> Iterator[tuple[Node, Node]]:
    """Two nodes with empty local disks, and a far directory of their own."""
    with ExitStack() as opened:
        pair = []
        for node, mount in (("a", fs.a), ("b", fs.b)):
            pair.append(Node(folder / node, mount / name, **settings))
            opened.callback(pair[-1].store.close)
            until("the other mount shows the folder", (fs.b / name).is_dir)
        yield pair[0], pair[1]


@pytest.fixture(params=list(KINDS))
def fs(request: pytest.FixtureRequest) -> SharedFs:
    """Each of the file systems."""
    found: SharedFs = request.getfixturevalue(request.param)
    return found


def test_what_one_node_stored_another_one_loads(fs: SharedFs, tmp_path: Path) -> None:
    hashes = chain("share")
    with nodes(fs, tmp_path, "share") as (a, b):
        a.put(hashes)
        until("B finds what A stored", lambda: b.finds(hashes))
        assert b.get(hashes) == COUNT
        assert b.store.stats()["get_far_blocks"] == COUNT
        a.namespace.remove(hashes[5:6])
        until("what A removed is gone on B", lambda: b.namespace.probe(hashes) == 5)
        a.store.close()
        assert b.get(hashes) == 5, "what A stored is there without A"


def test_every_tier_does_what_the_store_needs(fs: SharedFs) -> None:
    root = Path(__file__).parents[2]
    # As in the Makefile: other packages have other features, and would be compiled again.
    command = ["cargo", "test", "--quiet", "--workspace", "--locked", "--test", "all"]
    command += ["--", "conformance::", "collectable::"]
    ran = subprocess.run(
        command,
        cwd=root,
        env={**os.environ, **mounts_env([fs.pair])},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]


@pytest.mark.parametrize("kind", ["gluster_default", *MORE_KINDS])
def test_a_storage_that_stops_costs_misses_within_their_deadline(kind: str, tmp_path: Path) -> None:
    near, far = chain("near"), chain("far")
    with mounted(kind) as fs, nodes(fs, tmp_path, "stop") as (a, b):
        a.put(far)
        b.put(near)
        until("B finds what A stored", lambda: b.finds(far))
        with paused(*fs.storage):
            began = time.monotonic()
            assert b.get(far, timeout_s=0.5) == 0
            assert time.monotonic() - began < AT_MOST_S, "a far read outlived its deadline"
            for number in range(5):
                began = time.monotonic()
                assert b.get(near, timeout_s=30.0) == COUNT, "what is stored here is served"
                b.put(chain(f"while it stops {number}", 4))
                assert time.monotonic() - began < AT_MOST_S
            until("far blocks are not present", lambda: b.namespace.probe(far) == 0)
            assert b.get(near, timeout_s=30.0) == COUNT
        until("they come back", lambda: b.finds(far))
        assert b.get(far) == COUNT
        misses = b.store.stats()["far"]
        assert misses is not None
        assert sum(misses["misses"].values()) > 0, "counted by cause"


@pytest.mark.parametrize("kind", list(MORE_KINDS))
def test_the_end_of_a_host_delays_what_others_find_and_none_of_their_calls(
    kind: str, tmp_path: Path
) -> None:
    near, far, late = chain("near"), chain("far"), chain("late")
    with mounted(kind) as fs, nodes(fs, tmp_path, "end") as (a, b):
        a.put(far)
        b.put(near)
        until("B finds what A stored", lambda: b.finds(far))
        a.put(late)
        until("A has published all", lambda: published(a) == len(far) + len(late))
        fs.clients[0].kill()

        def finds_late() -> bool:
            began = time.monotonic()
            b.get(far, timeout_s=0.5)
            assert b.get(near, timeout_s=30.0) == COUNT, "what is stored here is served"
            assert time.monotonic() - began < AT_MOST_S, "a call outlived its deadline"
            return b.finds(late)

        until("B finds what A published last", finds_late, AFTER_END_S)
        assert b.get(late) == COUNT
        b.put(chain("after"))
        until("B publishes", lambda: published(b) == len(near) + COUNT)


HOST = """
import sys, time
from pathlib import Path
from tests.far.test_store import Node, chain
node = Node(Path(sys.argv[1]), Path(sys.argv[2]))
node.put(chain("killed"))
deadline = time.monotonic() + 60
while node.store.stats()["far"]["published"]["blocks"] < len(chain("killed")):
    assert time.monotonic() < deadline
    time.sleep(0.05)
print("published", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["gluster_default", *MORE_KINDS])
def test_what_a_killed_node_published_stays(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    fs: SharedFs = request.getfixturevalue(kind)
    hashes = chain("killed")
    folder = fs.a / "killed"
    command = [sys.executable, "-c", HOST, str(tmp_path / "a"), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == "published\n"
        host.kill()
    b = Node(tmp_path / "b", fs.b / "killed")
    try:
        until("B finds what A stored", lambda: b.finds(hashes))
        assert b.get(hashes) == COUNT
    finally:
        b.store.close()
