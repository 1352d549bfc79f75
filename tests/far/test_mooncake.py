"""Stores share blocks through a real Mooncake cluster, also one that fails.

These tests take part only with `--far-all`.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.checkout import ROOT
from tests.far.nodes import COUNT, Node, chain, check_conformance, pair
from tests.skipping import skip_if_missing

import dalsegno
from dalsegno_bench.mooncake import MASTER_PORT, Mooncake, client_folder, missing, running
from dalsegno_bench.shared_fs.processes import paused, until

pytestmark = pytest.mark.slow

BRIDGE = ROOT / "tests" / "far" / "mooncake_bridge.py"
# A get with a deadline has ended by then, however busy the machine is.
AT_MOST_S = 30.0
# Mooncake's client would keep them waiting for a minute.
LONGEST_PAUSE_S = 5.0


@pytest.fixture
def mooncake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mooncake]:
    """A cluster of two nodes, whose client this process can import."""
    skip_if_missing(missing(), "shared-fs")
    monkeypatch.setattr(sys, "path", [*sys.path, str(client_folder())])
    with running(2) as cluster:
        yield cluster


def nodes(
    cluster: Mooncake, folder: Path, **settings: object
) -> AbstractContextManager[tuple[Node, Node]]:
    """Two hosts with empty local disks."""
    return pair(folder, cluster.url("kv"), **reached(cluster), **settings)


def reached(cluster: Mooncake) -> dict[str, Any]:
    return {"far_options": {"catalogs": str(cluster.folder)}}


def share(a: Node, b: Node, hashes: list[bytes]) -> None:
    """Stores blocks on one host, and waits until the other one finds them."""
    a.put(hashes)
    until("B finds what A stored", lambda: b.finds(hashes))


def test_a_cluster_does_what_every_tier_must(mooncake: Mooncake) -> None:
    client = f"{sys.executable} {BRIDGE} {mooncake.address}:{MASTER_PORT}"
    check_conformance({"DALSEGNO_FAR_MOONCAKE": client})


def test_what_one_host_stored_another_one_loads(mooncake: Mooncake, tmp_path: Path) -> None:
    hashes = chain("share")
    with nodes(mooncake, tmp_path) as (a, b):
        share(a, b, hashes)
        assert b.get(hashes) == COUNT
        assert b.store.stats()["get_far_blocks"] == COUNT
        a.namespace.remove(hashes[5:6])
        until("what A removed is gone on B", lambda: b.namespace.probe(hashes) == 5)
        a.store.close()
        assert b.get(hashes) == 5, "what A stored is there without A"
    options = reached(mooncake)["far_options"]
    report = dalsegno.far_verify(mooncake.url("kv"), options=options)
    assert report["findings"] == []
    assert report["packs"] > 0
    found = dalsegno.far_survey(mooncake.url("kv"), options=options)
    assert sum(row["blocks"] for row in found["writers"]) == COUNT - 1


def test_a_master_that_hangs_or_dies_costs_misses_and_no_local_hit(
    mooncake: Mooncake, tmp_path: Path
) -> None:
    near, far, later = chain("near"), chain("far"), chain("later")
    with nodes(mooncake, tmp_path) as (a, b):
        share(a, b, far)
        b.put(near)

        def local_hits_are_served() -> None:
            began = time.monotonic()
            assert b.get(far, timeout_s=2.0) <= COUNT
            assert b.get(near) == COUNT
            assert time.monotonic() - began < AT_MOST_S

        with paused(mooncake.master):
            local_hits_are_served()
            a.put(later)
        until("reads work again", lambda: b.get(far, timeout_s=5.0) == COUNT)
        mooncake.master.kill()
        local_hits_are_served()
        assert a.get(later) == COUNT
        a.put(chain("dead"))


@contextmanager
def beating() -> Iterator[list[float]]:
    """Notes the time in a thread of Python, again and again."""
    beats, is_over = [time.monotonic()], threading.Event()

    def beat() -> None:
        while not is_over.wait(0.02):
            beats.append(time.monotonic())

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield beats
    finally:
        is_over.set()
        thread.join()


def test_no_thread_of_python_waits_for_a_master_that_hangs(
    mooncake: Mooncake, tmp_path: Path
) -> None:
    hashes = chain("near")
    # One store connects before the master hangs, and is closed while it does; the other one tries.
    connected = Node(tmp_path / "a", mooncake.url("kv"), **reached(mooncake))
    connected.put(hashes)
    until("a block is published", lambda: connected.published() > 0)
    with beating() as beats:
        with paused(mooncake.master):
            node = Node(tmp_path / "b", mooncake.url("kv"), **reached(mooncake))
            connected.store.close()
            node.put(hashes)
            assert node.get(hashes) == COUNT
            # Longer than a process may take that tries to connect.
            time.sleep(15)
            assert node.get(hashes) == COUNT
        node.store.close()
    pauses = [later - earlier for earlier, later in itertools.pairwise(beats)]
    assert max(pauses) < LONGEST_PAUSE_S


def test_packs_that_the_cluster_lost_are_misses_and_are_published_again(
    mooncake: Mooncake, tmp_path: Path
) -> None:
    hashes = chain("lost")
    with nodes(mooncake, tmp_path) as (a, b):
        share(a, b, hashes)
        remove_all(mooncake)
        assert b.get(hashes) == 0, "evicted packs are misses"
        far = b.store.stats()["far"]
        assert far is not None
        assert far["misses"]["recycled"] > 0

        def is_found_again() -> bool:
            # A has the blocks in its log; they are offered when they are put again.
            a.put_again(hashes)
            time.sleep(1)
            return b.finds(hashes)

        until("what was lost is published again", is_found_again, limit_s=90.0)
        assert b.get(hashes) == COUNT


def remove_all(cluster: Mooncake) -> None:
    """Removes all objects of a cluster, as its eviction does."""
    script = (
        "import sys; from mooncake.store import MooncakeDistributedStore as Store\n"
        "store = Store()\n"
        "master = sys.argv[1]\n"
        "host = master.partition(':')[0]\n"
        "assert store.setup(host, 'P2PHANDSHAKE', 0, 16 << 20, 'tcp', '', master) == 0\n"
        "assert store.remove_all(True) > 0\n"
    )
    folder = client_folder()
    assert folder is not None
    where = {**os.environ, "PYTHONPATH": str(folder), "MC_TCP_BIND_ADDRESS": cluster.address}
    command = [sys.executable, "-c", script, f"{cluster.address}:{MASTER_PORT}"]
    subprocess.run(command, env=where, check=True, timeout=60, capture_output=True)


def test_a_cluster_that_is_not_there_costs_nothing(tmp_path: Path) -> None:
    skip_if_missing(missing(), "shared-fs")
    catalogs = tmp_path / "catalogs"
    catalogs.mkdir()
    hashes = chain("alone")
    options = {"catalogs": str(catalogs)}
    node = Node(tmp_path / "kv", "mooncake://127.0.0.1:9/kv", far_options=options)
    try:
        node.put(hashes)
        began = time.monotonic()
        assert node.get(hashes) == COUNT
        assert time.monotonic() - began < AT_MOST_S
        far = node.store.stats()["far"]
        assert far is not None
        assert far["reads"] == "suspended"
    finally:
        node.store.close()
