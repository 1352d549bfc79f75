"""Two stores share blocks through real shared file systems, and outlive their failures."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.far.nodes import COUNT, Node, chain, check_conformance
from tests.far.shared_fs import mounted

from dalsegno_bench.shared_fs.kinds import KINDS, MORE_KINDS
from dalsegno_bench.shared_fs.mounts import SharedFs, mounts_env
from dalsegno_bench.shared_fs.processes import paused, until

pytestmark = pytest.mark.slow

# A call with a deadline has ended by then, however busy the machine is.
AT_MOST_S = 30.0
# CephFS lets other hosts wait for what a host held that ended, for 60 s.
AFTER_END_S = 150.0


def node_on(path: Path, far: Path, **settings: object) -> Node:
    """Returns a node with a far directory, which is made if needed."""
    far.mkdir(exist_ok=True)
    return Node(path, str(far), **settings)


@contextmanager
def nodes(fs: SharedFs, folder: Path, name: str, **settings: object) -> Iterator[tuple[Node, Node]]:
    """Two nodes with empty local disks, and a far directory of their own."""
    with ExitStack() as opened:
        pair = []
        for node, mount in (("a", fs.a), ("b", fs.b)):
            pair.append(node_on(folder / node, mount / name, **settings))
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
    check_conformance(mounts_env([fs.pair]), "conformance::", "collectable::")


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
        until("A has published all", lambda: a.published() == len(far) + len(late))
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
        until("B publishes", lambda: b.published() == len(near) + COUNT)


HOST = """
import sys, time
from pathlib import Path
from tests.far.test_store import chain, node_on
node = node_on(Path(sys.argv[1]), Path(sys.argv[2]))
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
    b = node_on(tmp_path / "b", fs.b / "killed")
    try:
        until("B finds what A stored", lambda: b.finds(hashes))
        assert b.get(hashes) == COUNT
    finally:
        b.store.close()
