"""Leases of a served store: read in the pool, bounded by process, and ended in every way."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.subjects import chain, contents
from tests.served import ServerProcess, serving
from tests.unit.serve.blocks import BLOCK_BYTES, COUNT, HASHES, Blocks, opened, wait_until

import dalsegno


def test_leased_bytes_are_those_of_the_blocks_and_cannot_be_written(
    server: ServerProcess, blocks: Blocks
) -> None:
    with blocks.space.lease([*HASHES, b"?" * 32, HASHES[0]]) as lease:
        assert (len(lease), lease.truncated, lease.valid_blocks()) == (COUNT, False, COUNT)
        assert [bytes(view) for view in lease] == contents(HASHES, BLOCK_BYTES)
        assert all(view.readonly for view in lease)
        assert server.tenant()["view_bytes"] > 0
    wait_until(lambda: server.tenant()["leases"] == 0, "the lease ends")


def test_leased_bytes_stay_while_everything_else_changes(
    server: ServerProcess, blocks: Blocks
) -> None:
    with blocks.space.lease(HASHES) as lease:
        blocks.space.remove()
        # Twice the pool.
        others = chain(400, "other")
        for first in range(0, 400, 40):
            part = contents(others[first : first + 40], BLOCK_BYTES)
            assert blocks.space.put_batch(others, part, first=first).failed == 0
        assert lease.valid_blocks() == COUNT
        assert [bytes(view) for view in lease] == contents(HASHES, BLOCK_BYTES)
    wait_until(lambda: server.tenant()["leases"] == 0, "the lease ends")
    blocks.space.remove()
    wait_until(
        lambda: server.tenant()["pool_free_bytes"] == server.tenant()["pool_bytes"], "a free pool"
    )


def test_one_process_leases_at_most_its_share(server: ServerProcess, blocks: Blocks) -> None:
    many = chain(60, "many")
    assert blocks.space.put_batch(many, contents(many, BLOCK_BYTES)).failed == 0
    share = server.tenant()["pool_bytes"] // 8
    with blocks.space.lease(many) as lease, blocks.space.lease(HASHES) as more:
        assert 0 < len(lease) < 60
        assert lease.truncated
        assert (len(more), more.truncated) == (0, True)
        assert share - 2 * BLOCK_BYTES < server.tenant()["view_bytes"] <= share
        # Blocks are copied all the same.
        assert blocks.hits() == COUNT
        with opened(server.socket) as other, other.space.lease(HASHES) as third:
            # It is the same process.
            assert len(third) == 0


def test_the_share_of_leases_is_an_option_of_the_server(tmp_path: Path) -> None:
    many = chain(60, "many")
    with serving(tmp_path / "store", lease_share=0.2) as server, opened(server.socket) as blocks:
        assert blocks.space.put_batch(many, contents(many, BLOCK_BYTES)).failed == 0
        share = server.tenant()["pool_bytes"] // 20
        with blocks.space.lease(many) as lease:
            assert lease.truncated
            assert share - 2 * BLOCK_BYTES < server.tenant()["view_bytes"] <= share


@pytest.mark.parametrize("share", [0.0, -1.0, 0.76, float("nan")])
def test_a_share_that_leaves_too_little_is_refused(tmp_path: Path, share: float) -> None:
    with pytest.raises(dalsegno.InvalidError, match=r"lease_share is .*at most 0\.75"):
        dalsegno.Server(tmp_path / "store", "{}", lease_share=share)


def test_a_lease_ends_although_its_client_was_closed(server: ServerProcess, blocks: Blocks) -> None:
    with opened(server.socket) as second:
        lease = second.space.lease(HASHES)
        assert len(lease) == COUNT
    lease.release()
    # The client sends the release while the server answers other clients.
    wait_until(lambda: server.tenant()["view_bytes"] == 0, "the lease ends")
    assert blocks.hits() == COUNT
