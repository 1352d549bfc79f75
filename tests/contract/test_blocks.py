"""The contract: a get returns the bytes that were put, at any position and after reopening."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.checkout import ROOT
from tests.contract.expect import buffers, expect
from tests.contract.subjects import Box, Subject, chain, content, contents
from tests.dose import dose

import dalsegno

DTYPES = [np.uint8, np.int16, np.float16, np.float32, np.float64, np.complex128]


@given(
    layers=st.integers(1, 6),
    width=st.one_of(st.integers(1, 70), st.integers(500, 1200)),
    blocks=st.integers(1, 9),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1 << 32),
)
@settings(
    max_examples=dose(10, 200),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_arrays_of_any_shape_and_dtype_come_back_exactly(
    subject: Subject,
    tmp_path_factory: pytest.TempPathFactory,
    *,
    layers: int,
    width: int,
    blocks: int,
    dtype: type[np.generic],
    seed: int,
) -> None:
    path = tmp_path_factory.mktemp("shapes")
    noise = np.random.default_rng(seed).bytes(blocks * layers * width * np.dtype(dtype).itemsize)
    given_blocks = np.frombuffer(noise, dtype).reshape(blocks, layers, width)
    slice_bytes = width * np.dtype(dtype).itemsize
    with subject.open(path) as store:
        namespace = store.namespace({}, layers=layers, slice_bytes=slice_bytes)
        assert namespace.put_batch(chain(blocks), list(given_blocks)).stored == blocks
        for _ in range(2):
            out = np.empty_like(given_blocks)
            assert namespace.get_batch(chain(blocks), list(out)) == blocks
            assert out.tobytes() == noise
        out = np.empty_like(given_blocks)
        load = namespace.load(chain(blocks), list(out))
        assert load.wait(60)
        assert (load.result(), load.layer_ready(layers - 1)) == (blocks, True)
        assert out.tobytes() == noise


def test_a_prefix_is_found_from_any_block_on(box: Box) -> None:
    hashes = chain(9)
    with box.namespace() as namespace:
        namespace.put_batch(hashes, contents(hashes, 2000))
        for first in range(10):
            expect(namespace, hashes[first:], hashes)
        expect(namespace, hashes[3:6], hashes)


def test_a_prompt_may_come_in_parts(box: Box) -> None:
    hashes = chain(12)
    with box.namespace() as namespace:
        for first, count in ((0, 3), (3, 1), (4, 5), (9, 3)):
            part = contents(hashes[first : first + count], 2000)
            assert namespace.put_batch(hashes, part, first=first).stored == count
            expect(namespace, hashes, hashes[: first + count])


def test_blocks_after_a_gap_are_found_individually(box: Box) -> None:
    hashes = chain(8)
    stored = {*hashes[:3], *hashes[4:6]}
    with box.namespace() as namespace:
        namespace.put_batch(hashes, contents(hashes[4:6], 2000), first=4)
        namespace.put_batch(hashes, contents(hashes[:3], 2000))
        expect(namespace, hashes, stored)
        expect(namespace, hashes[4:], stored)
        expect(namespace, hashes[3:], stored)
        expect(namespace, hashes[::-1], stored)
        expect(namespace, [hashes[5], hashes[0], hashes[7], hashes[4]], stored)


def test_prompts_share_their_common_prefix(box: Box) -> None:
    trunk = chain(4)
    branches = [trunk + chain(3, name) for name in "bcd"]
    with box.namespace() as namespace:
        for number, branch in enumerate(branches):
            report = namespace.put_batch(branch, contents(branch, 2000))
            assert (report.present, report.stored) == ((4, 3) if number else (0, 7))
            assert report.kept == [True] * 7
        everything = {one for branch in branches for one in branch}
        for branch in branches:
            expect(namespace, branch, everything)
            expect(namespace, branch[3:], everything)


def test_a_second_put_changes_nothing(box: Box) -> None:
    hashes = chain(4)
    with box.namespace() as namespace:
        namespace.put_batch(hashes, contents(hashes, 2000))
        # Other bytes under the same hashes are an error of the caller: the first bytes stay.
        report = namespace.put_batch(hashes, [bytes(2000)] * 4)
        assert (report.stored, report.present, report.kept) == (0, 4, [True] * 4)
        expect(namespace, hashes, hashes)


def test_a_block_given_twice_in_one_put_is_stored_once(box: Box) -> None:
    one, other = chain(2)
    hashes = [one, other, one]
    with box.namespace() as namespace:
        report = namespace.put_batch(hashes, contents(hashes, 2000))
        assert (report.stored, report.failed) == (2, 0)
        expect(namespace, hashes, {one, other})


@pytest.mark.parametrize(
    "foreign",
    [
        ({"model": "other"}, 2, 1000),
        ({"model": "m", "lora": "a"}, 2, 1000),
        ({}, 2, 1000),
        ({"model": "m"}, 1, 2000),
        ({"model": "m"}, 4, 500),
        ({"model": "m"}, 2, 999),
    ],
    ids=str,
)
def test_another_namespace_finds_nothing(
    foreign: tuple[dict[str, str], int, int], box: Box
) -> None:
    hashes = chain(3)
    fields, layers, slice_bytes = foreign
    with box.open() as store:
        own = store.namespace({"model": "m"}, layers=2, slice_bytes=1000)
        other = store.namespace(fields, layers=layers, slice_bytes=slice_bytes)
        own.put_batch(hashes, contents(hashes, own.block_bytes))
        expect(other, hashes, ())
        assert other.remove(hashes) == 0
        assert other.put_batch(hashes[:1], contents(hashes[:1], other.block_bytes)).stored == 1
        assert other.remove() == 1
        expect(own, hashes, hashes)


def test_one_namespace_opened_twice_is_one(box: Box) -> None:
    hashes = chain(3)
    with box.open() as store:
        one = store.namespace({"model": "m", "dtype": "f16"}, layers=2, slice_bytes=1000)
        same = store.namespace({"dtype": "f16", "model": "m"}, layers=2, slice_bytes=1000)
        one.put_batch(hashes, contents(hashes, 2000))
        expect(same, hashes, hashes)


def test_every_block_is_present_after_reopening(box: Box) -> None:
    trunk, more = chain(5), chain(4, "b")
    with box.namespace() as namespace:
        namespace.put_batch(trunk, contents(trunk, 2000))
        namespace.put_batch(trunk[:2] + more, contents(more, 2000), first=2)
    for _ in range(2):
        with box.namespace() as namespace:
            expect(namespace, trunk, {*trunk, *more})
            expect(namespace, trunk[:2] + more, {*trunk, *more})
            assert namespace.put_batch(trunk, contents(trunk, 2000)).present == 5
    with box.namespace() as namespace:
        longer = trunk + chain(2, "c")
        assert namespace.put_batch(longer, contents(longer, 2000)).stored == 2
        expect(namespace, longer, {*longer, *more})


CHILD = """
import os, sys
from pathlib import Path
from tests.contract.subjects import SUBJECTS, chain, contents
subject = next(one for one in SUBJECTS if one.name == sys.argv[1])
store = subject.open(Path(sys.argv[2]))
namespace = store.namespace({"model": "m"}, layers=2, slice_bytes=1000)
report = namespace.put_batch(chain(6), contents(chain(6), 2000))
assert report.stored == 6
os._exit(9)
"""


def test_a_process_that_dies_loses_no_completed_put(filed: Box) -> None:
    command = [sys.executable, "-c", CHILD, filed.subject.name, str(filed.path)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 9
    with filed.namespace() as namespace:
        expect(namespace, chain(6), chain(6))


@pytest.mark.parametrize("slice_bytes", [1, 511, 512, 4095, 4096, 4097, 100_000, 300_000])
def test_blocks_at_the_edges_of_sectors_and_extents(slice_bytes: int, box: Box) -> None:
    hashes = chain(5)
    with box.namespace(layers=3, slice_bytes=slice_bytes) as namespace:
        report = namespace.put_batch(hashes, contents(hashes, namespace.block_bytes))
        assert report.kept == [True] * 5
        expect(namespace, hashes, hashes)
    with box.namespace(layers=3, slice_bytes=slice_bytes) as namespace:
        expect(namespace, hashes, hashes)


def test_a_long_prompt_spans_many_extents(box: Box) -> None:
    hashes = chain(600)
    with box.namespace(layers=4, slice_bytes=1024) as namespace:
        assert namespace.put_batch(hashes, contents(hashes, 4096)).stored == 600
        expect(namespace, hashes, hashes)
    with box.namespace(layers=4, slice_bytes=1024) as namespace:
        expect(namespace, hashes[250:], hashes)


def test_many_short_prompts_are_all_found(box: Box) -> None:
    hashes = [chain(1, str(number))[0] for number in range(300)]
    with box.namespace(layers=1, slice_bytes=64) as namespace:
        for one in hashes:
            assert namespace.put_batch([one], [content(one, 64)]).stored == 1
    with box.namespace(layers=1, slice_bytes=64) as namespace:
        expect(namespace, hashes, hashes)


def by_writer(namespace: dalsegno.Namespace, hashes: list[bytes]) -> int:
    writer = namespace.layer_writer(hashes)
    wanted = hashes[writer.first :]
    assert writer.count == len(wanted)
    size = namespace.slice_bytes
    for layer in reversed(range(namespace.layers)):
        rows = [content(one, namespace.block_bytes)[layer * size :][:size] for one in wanted]
        writer.store_layer(layer, rows)
        assert namespace.contains(wanted) == [False] * len(wanted)
    return writer.commit()


def by_transfer(namespace: dalsegno.Namespace, hashes: list[bytes]) -> int:
    transfer = namespace.submit_put(hashes, contents(hashes, namespace.block_bytes))
    assert transfer.wait(60)
    return transfer.result().stored


def by_layer_transfers(namespace: dalsegno.Namespace, hashes: list[bytes]) -> int:
    writer, size = namespace.layer_writer(hashes), namespace.slice_bytes
    rows = [content(one, namespace.block_bytes) for one in hashes[writer.first :]]
    for layer in range(namespace.layers if rows else 0):
        part = slice(layer * size, (layer + 1) * size)
        transfer = writer.submit_store_layer(layer, [row[part] for row in rows])
        assert transfer.wait(60)
        transfer.result()
    out = buffers(namespace, len(hashes))
    load = namespace.load(hashes, out)
    assert load.wait(60)
    assert load.result() == writer.first
    assert out[: writer.first] == contents(hashes[: writer.first], namespace.block_bytes)
    return writer.commit()


@pytest.mark.parametrize(
    "put", [by_writer, by_transfer, by_layer_transfers], ids=lambda put: str(put.__name__)
)
def test_other_ways_of_putting_store_the_same(
    put: Callable[[dalsegno.Namespace, list[bytes]], int], box: Box
) -> None:
    hashes = chain(6)
    with box.namespace(layers=3, slice_bytes=777) as namespace:
        assert put(namespace, hashes[:4]) == 4
        assert put(namespace, hashes) == 2
        assert put(namespace, hashes) == 0
        expect(namespace, hashes, hashes)
        out = buffers(namespace, 6)
        transfer = namespace.submit_get(hashes, out)
        assert transfer.wait(60)
        assert transfer.result() == [True] * 6
        assert out == contents(hashes, namespace.block_bytes)
    with box.namespace(layers=3, slice_bytes=777) as namespace:
        expect(namespace, hashes, hashes)


def test_a_dropped_writer_leaves_nothing(box: Box) -> None:
    hashes = chain(3)
    with box.namespace() as namespace:
        writer = namespace.layer_writer(hashes)
        writer.store_layer(0, [bytes(1000)] * 3)
        del writer
        expect(namespace, hashes, ())
        assert namespace.put_batch(hashes, contents(hashes, 2000)).stored == 3
    with box.namespace() as namespace:
        expect(namespace, hashes, hashes)
