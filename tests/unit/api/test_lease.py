"""`Namespace.lease`: blocks that are read in the store's memory."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.unit.stores import chain

import dalsegno

LAYERS, SLICE_BYTES, COUNT = 2, 65536, 8
BLOCK_BYTES = LAYERS * SLICE_BYTES


def filled(
    path: Path, count: int = COUNT, **settings: object
) -> tuple[dalsegno.Store, dalsegno.Namespace, list[bytes], np.ndarray]:
    """A store that was reopened, so that nothing is in DRAM, and what was put into it."""
    settings = {"capacity": "64MiB", "dram": "8MiB", "staging": "16MiB", **settings}
    hashes = chain(count)
    blocks = np.random.default_rng(1).integers(0, 256, (count, BLOCK_BYTES), np.uint8)
    fields = {"model": "lease"}
    with dalsegno.open(path, **settings) as store:
        namespace = store.namespace(fields, layers=LAYERS, slice_bytes=SLICE_BYTES)
        assert namespace.put_batch(hashes, list(blocks)).stored == count
    store = dalsegno.open(path, **settings)
    return store, store.namespace(fields, layers=LAYERS, slice_bytes=SLICE_BYTES), hashes, blocks


def test_a_lease_has_the_bytes_of_leading_blocks(tmp_path: Path) -> None:
    store, namespace, hashes, blocks = filled(tmp_path / "kv")
    for source in ("get_log_blocks", "get_dram_blocks"):
        before = store.stats()[source]
        with namespace.lease([*hashes, b"?" * 32, hashes[0]]) as lease:
            assert len(lease) == COUNT
            assert not lease.truncated
            assert lease.valid_blocks() == COUNT
            for block, view in zip(blocks, lease, strict=True):
                assert view.readonly
                assert view.nbytes == BLOCK_BYTES
                assert np.array_equal(np.frombuffer(view, np.uint8), block)
            assert bytes(lease[-1]) == blocks[-1].tobytes()
        assert store.stats()[source] == before + COUNT
    store.close()


def test_a_lease_of_blocks_in_dram_copies_nothing(tmp_path: Path) -> None:
    store, namespace, hashes, _ = filled(tmp_path / "kv")
    first, second = namespace.lease(hashes), namespace.lease(hashes)

    def addresses(lease: dalsegno.Lease) -> list[int]:
        return [np.frombuffer(view, np.uint8).ctypes.data for view in lease]

    assert addresses(first) == addresses(second)
    assert store.stats()["get_log_blocks"] == COUNT
    store.close()


def test_leased_bytes_stay_while_everything_else_changes(tmp_path: Path) -> None:
    store, namespace, hashes, blocks = filled(tmp_path / "kv")
    with namespace.lease(hashes[:2]) as lease:
        views = list(lease)
        namespace.remove()
        others = chain(60, "other")
        namespace.put_batch(others, [bytes(BLOCK_BYTES)] * 60)
        out = np.empty((60, BLOCK_BYTES), np.uint8)
        assert namespace.get_batch(others, list(out)) == 60
        store.close()
        for view, block in zip(views, blocks, strict=False):
            assert bytes(view) == block.tobytes()


def test_release_refuses_while_a_buffer_is_in_use(tmp_path: Path) -> None:
    store, namespace, hashes, blocks = filled(tmp_path / "kv")
    lease = namespace.lease(hashes)
    array = np.frombuffer(lease[3], np.uint8)
    with pytest.raises(BufferError, match="1 buffers of this lease are still in use"):
        lease.release()
    assert np.array_equal(array, blocks[3])
    del array
    gc.collect()
    lease.release()
    lease.release()
    for use in (lambda: len(lease), lambda: lease[0], lambda: lease.truncated):
        with pytest.raises(dalsegno.InvalidError, match="was released"):
            use()
    assert repr(lease) == "<Lease, released>"
    store.close()


def test_a_with_block_leaves_a_lease_to_its_last_buffer(tmp_path: Path) -> None:
    store, namespace, hashes, blocks = filled(tmp_path / "kv", count=32)
    with namespace.lease(hashes) as lease:
        view = lease[0]
    assert bytes(view) == blocks[0].tobytes()
    # Its share of the memory is in use until then.
    assert namespace.lease(hashes).truncated
    del view
    gc.collect()
    assert len(namespace.lease(hashes)) == 32
    store.close()


def test_leases_hold_at_most_half_of_dram(tmp_path: Path) -> None:
    store, namespace, hashes, _ = filled(tmp_path / "kv", count=48)
    first = namespace.lease(hashes)
    assert len(first) == (4 << 20) // BLOCK_BYTES
    assert first.truncated
    second = namespace.lease(hashes)
    assert len(second) == 0
    assert second.truncated
    assert not namespace.lease([b"?" * 32]).truncated
    first.release()
    assert len(namespace.lease(hashes[:5])) == 5
    out = np.empty((48, BLOCK_BYTES), np.uint8)
    assert namespace.get_batch(hashes, list(out)) == 48
    store.close()


def test_without_dram_a_lease_is_empty_and_says_so(tmp_path: Path) -> None:
    store, namespace, hashes, _ = filled(tmp_path / "kv", dram=0)
    lease = namespace.lease(hashes)
    assert (len(lease), lease.truncated) == (0, True)
    store.close()


def test_an_index_outside_the_lease_says_how_many_blocks_there_are(tmp_path: Path) -> None:
    store, namespace, hashes, _ = filled(tmp_path / "kv")
    lease = namespace.lease(hashes)
    for at in (COUNT, -COUNT - 1, 1 << 40):
        with pytest.raises(IndexError, match=f"block {at} of a lease of {COUNT} blocks"):
            lease[at]
    store.close()


def test_damaged_blocks_are_not_leased(tmp_path: Path) -> None:
    store, _, hashes, blocks = filled(tmp_path / "kv")
    store.close()
    needle = blocks[5].tobytes()[:64]
    for file in (tmp_path / "kv").glob("segment-*"):
        content = file.read_bytes()
        if (at := content.find(needle)) >= 0:
            file.write_bytes(content[:at] + b"\0" + content[at + 1 :])
    settings = {"capacity": "64MiB", "dram": "8MiB", "staging": "16MiB"}
    with dalsegno.open(tmp_path / "kv", **settings) as store:
        fields = {"model": "lease"}
        namespace = store.namespace(fields, layers=LAYERS, slice_bytes=SLICE_BYTES)
        assert len(namespace.lease(hashes)) == 5


def test_a_forked_child_has_no_lease(tmp_path: Path) -> None:
    store, namespace, hashes, blocks = filled(tmp_path / "kv")
    lease = namespace.lease(hashes)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            len(lease)
        except dalsegno.UnavailableError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert bytes(lease[0]) == blocks[0].tobytes()
    del lease
    store.close()


def test_threads_that_lease_and_evict_see_no_other_bytes(tmp_path: Path) -> None:
    store, namespace, hashes, blocks = filled(tmp_path / "kv", count=64)
    wrong: list[int] = []

    def work(seed: int) -> None:
        chance = np.random.default_rng(seed)
        for _ in range(60):
            at = int(chance.integers(0, 60))
            with namespace.lease(hashes[at : at + 4]) as lease:
                for number, view in enumerate(lease, at):
                    if not np.array_equal(np.frombuffer(view, np.uint8), blocks[number]):
                        wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert store.stats()["get_dram_blocks"] > 0
    store.close()
