"""A forked child of a client gets an error for every call, and the parent goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.checkout import ROOT
from tests.contract.subjects import chain, contents
from tests.served import ServerProcess
from tests.unit.forks import in_child
from tests.unit.serve.blocks import (
    BLOCK_BYTES,
    COUNT,
    HASHES,
    LIMIT_S,
    Blocks,
    wait_until,
)

import dalsegno

# Python warns of every fork beside threads; what that does to us is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


def calls(blocks: Blocks, lease: dalsegno.Lease) -> dict[str, Callable[[], Any]]:
    store, space = blocks.store, blocks.space
    one, out = HASHES[:1], [bytearray(BLOCK_BYTES)]
    new, bytes_ = chain(1, "new"), contents(chain(1, "new"), BLOCK_BYTES)
    return {
        "stats": store.stats,
        "watch_removals": store.watch_removals,
        "namespace": lambda: store.namespace({}, layers=1, slice_bytes=8),
        "namespaces": store.namespaces,
        "put_batch": lambda: space.put_batch(new, bytes_),
        "probe": lambda: space.probe(one),
        "touch": lambda: space.touch(one),
        "contains": lambda: space.contains(one),
        "peek": lambda: space.peek(one),
        "get_batch": lambda: space.get_batch(one, out),
        "get_batch in time": lambda: space.get_batch(one, out, timeout_s=1.0),
        "get_each": lambda: space.get_each(one, out),
        "layer_writer": lambda: space.layer_writer(new),
        "lease": lambda: space.lease(one),
        "submit_put": lambda: space.submit_put(new, bytes_).result(),
        "submit_get": lambda: space.submit_get(one, out).result(),
        "load": lambda: space.load(one, out).result(),
        "remove": lambda: space.remove(one),
        "remove all": space.remove,
        "valid_blocks": lease.valid_blocks,
        "length of a lease": lambda: len(lease),
    }


def test_a_forked_child_is_refused_and_the_parent_goes_on(
    server: ServerProcess, blocks: Blocks
) -> None:
    parent = os.getpid()
    lease = blocks.space.lease(HASHES)
    watch = blocks.store.watch_removals()

    def child() -> None:
        for name, call in calls(blocks, lease).items():
            with pytest.raises(dalsegno.UnavailableError) as raised:
                pytest.fail(f"{name} in a forked child returned {call()}")
            assert f"opened by process {parent} " in str(raised.value), (name, raised.value)
        assert (watch.waiting, watch.take(1)) == (0, ({}, False))
        assert not blocks.store.served
        assert blocks.store.closed
        blocks.store.close()

    for _ in range(3):
        in_child(child)
        assert blocks.hits() == COUNT
    # No child ended a lease or a subscription of the parent.
    assert lease.valid_blocks() == COUNT
    assert server.tenant()["leases"] >= 1
    assert blocks.space.remove(HASHES[3:]) == 1
    assert watch.take(1) == ({blocks.space.id: HASHES[3:]}, True)
    lease.release()
    wait_until(lambda: server.tenant()["leases"] == 0, "the lease ends")


def test_a_forked_child_opens_no_client_of_its_own(server: ServerProcess, blocks: Blocks) -> None:
    """As with a store in the process: the threads of the parent may have held any lock."""

    def child() -> None:
        with pytest.raises(dalsegno.UnavailableError, match="fork before you open a store"):
            dalsegno.open(server.path)

    in_child(child)
    assert blocks.hits() == COUNT


ENDS = """
import gc, os, sys, warnings
from tests.unit.serve.blocks import COUNT, HASHES, opened
warnings.simplefilter("ignore", DeprecationWarning)
with opened(sys.argv[1]) as blocks:
    lease, watch = blocks.space.lease(HASHES), blocks.store.watch_removals()
    child = os.fork()
    if child == 0:
        gc.collect()
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lease.valid_blocks() == blocks.hits() == COUNT
    assert blocks.space.remove(HASHES[3:]) == 1
    assert watch.take(1) == ({blocks.space.id: HASHES[3:]}, True)
"""


def test_a_forked_child_that_ends_normally_ends_nothing_of_its_parent(
    server: ServerProcess, blocks: Blocks
) -> None:
    command = [sys.executable, "-c", ENDS, server.socket]
    subprocess.run(command, cwd=ROOT, check=True, timeout=LIMIT_S)
    assert server.tenant()["malformed_sessions"] == 0
