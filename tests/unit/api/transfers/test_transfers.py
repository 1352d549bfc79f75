"""Transfers in the background, time limits, puts by layer, and Python threads beside the store."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest
from tests.unit.stores import chain

import dalsegno

MIB = 1 << 20
NOISE = os.urandom(MIB)


def fill(namespace: dalsegno.Namespace, count: int) -> list[bytes]:
    blocks = [NOISE[index:] + NOISE[:index] for index in range(count)]
    assert namespace.put_batch(chain(count), blocks).stored == count
    return blocks


def buffers(count: int) -> list[bytearray]:
    return [bytearray(MIB) for _ in range(count)]


# Transfers.


def test_a_put_in_the_background_ends_and_reports(namespace: dalsegno.Namespace) -> None:
    blocks = [os.urandom(MIB) for _ in range(3)]
    transfer = namespace.submit_put(chain(4), blocks, first=1)
    assert transfer.wait()
    assert transfer.done()
    assert not transfer.throttled
    report = transfer.result()
    assert (report.kept, report.stored, report.failed) == ([True] * 3, 3, 0)
    assert transfer.result().stored == 3
    assert isinstance(report, dalsegno.PutReport)
    assert namespace.contains(chain(4)) == [False, True, True, True]


def test_a_get_in_the_background_ends_and_reports(namespace: dalsegno.Namespace) -> None:
    blocks = fill(namespace, 3)
    wanted = [*chain(2), *chain(1, "missing"), chain(3)[2]]
    for each, expected in ((False, [True, True, False]), (True, [True, True, False, True])):
        out = buffers(4)
        transfer = namespace.submit_get(wanted, out, each=each)
        assert transfer.wait(60)
        report = transfer.result()
        assert report[: len(expected)] == expected
        assert transfer.result() == report
        assert out[:2] == blocks[:2]
        assert not report[3] or out[3] == blocks[2]
        assert all(type(one) is bool for one in report)


def test_result_raises_what_the_blocking_call_raises(namespace: dalsegno.Namespace) -> None:
    transfer = namespace.submit_put(chain(1), [bytes(7)])
    assert transfer.wait(60)
    with pytest.raises(dalsegno.InvalidError, match="7 bytes"):
        transfer.result()


def test_result_before_the_end_is_invalid_and_waiting_is_bounded(
    namespace: dalsegno.Namespace,
) -> None:
    transfer = namespace.submit_put(chain(200), [bytes(MIB)] * 200)
    if not transfer.wait(0):
        with pytest.raises(dalsegno.InvalidError, match="not ended"):
            transfer.result()
    started = time.monotonic()
    transfer.wait(0.001)
    assert time.monotonic() - started < 30
    assert transfer.wait()
    assert transfer.result().stored == 200


def test_a_full_queue_throttles_and_moves_nothing(
    namespace: dalsegno.Namespace, store: dalsegno.Store
) -> None:
    # One is at work, one may wait: of ten that come at once some are refused.
    blocks = [bytes(MIB)] * 16
    transfers = [namespace.submit_put(chain(16, f"{n}."), blocks) for n in range(10)]
    refused = [transfer.throttled for transfer in transfers]
    assert any(refused)
    assert not refused[0]
    for number, transfer in enumerate(transfers):
        assert not refused[number] or transfer.done()
        assert transfer.wait(60)
        report = transfer.result()
        assert report.kept == [not refused[number]] * 16
        assert namespace.probe(chain(16, f"{number}.")) == (0 if refused[number] else 16)
    assert store.stats()["throttled_transfers"] == sum(refused)
    # Room again.
    assert namespace.submit_get(chain(1), buffers(1)).throttled is False


def test_a_throttled_get_reports_misses(namespace: dalsegno.Namespace) -> None:
    fill(namespace, 32)
    out = [buffers(32) for _ in range(8)]
    gets = [namespace.submit_get(chain(32), one) for one in out]
    throttled = [get for get in gets if get.throttled]
    assert throttled
    assert all(get.result() == [False] * 32 for get in throttled)
    for get in gets:
        assert get.wait(60)


def test_regression_a_full_queue_of_puts_throttles_no_get(namespace: dalsegno.Namespace) -> None:
    blocks = fill(namespace, 1)
    puts = [namespace.submit_put(chain(32, f"{n}."), [bytes(MIB)] * 32) for n in range(8)]
    out = buffers(1)
    get = namespace.submit_get(chain(1), out)
    assert any(put.throttled for put in puts)
    assert not get.throttled
    for transfer in (*puts, get):
        assert transfer.wait(60)
    assert get.result() == [True]
    assert out == blocks


@pytest.mark.parametrize("delay_s", [0, 0.001, 0.01])
def test_a_cancelled_get_ends_soon_and_reports_only_blocks_it_filled(
    delay_s: float, namespace: dalsegno.Namespace
) -> None:
    blocks, out = fill(namespace, 64), buffers(64)
    transfer = namespace.submit_get(chain(64), out)
    time.sleep(delay_s)
    transfer.cancel()
    assert transfer.wait(60)
    report = transfer.result()
    after = [bytes(one) for one in out]
    assert [after[i] == blocks[i] for i in range(64) if report[i]] == [True] * sum(report)
    time.sleep(0.02)
    assert after == out


@pytest.mark.parametrize("delay_s", [0, 0.001, 0.01])
def test_a_cancelled_put_ends_soon_and_reports_only_blocks_it_stored(
    delay_s: float, namespace: dalsegno.Namespace
) -> None:
    transfer = namespace.submit_put(chain(64), [bytes(MIB)] * 64)
    time.sleep(delay_s)
    transfer.cancel()
    assert transfer.wait(60)
    assert namespace.contains(chain(64)) == transfer.result().kept


# Time limits.


@pytest.mark.parametrize("timeout_s", [0, 0.0, 1e-9])
def test_a_timeout_of_zero_is_a_miss_and_never_an_error(
    timeout_s: float, namespace: dalsegno.Namespace, store: dalsegno.Store
) -> None:
    fill(namespace, 2)
    assert namespace.get_batch(chain(2), buffers(2), timeout_s=timeout_s) == 0
    assert namespace.get_each(chain(2), buffers(2), timeout_s=timeout_s) == [False, False]
    load = namespace.load(chain(2), buffers(2), timeout_s=timeout_s)
    assert load.wait_layer(0, timeout_s=60) is False
    assert load.wait(60)
    assert load.result() == 0
    report = namespace.put_batch(chain(2, "b"), [bytes(MIB)] * 2, timeout_s=timeout_s)
    assert (report.kept, report.failed) == ([False, False], 2)
    for transfer in (
        namespace.submit_get(chain(2), buffers(2), timeout_s=timeout_s),
        namespace.submit_put(chain(2, "b"), [bytes(MIB)] * 2, timeout_s=timeout_s),
    ):
        assert transfer.wait(60)
    assert namespace.probe(chain(2, "b")) == 0
    assert store.stats()["log"]["misses"]["deadline"] >= 6
    # The store is well all the same, and what failed can be put again.
    assert namespace.get_batch(chain(2), buffers(2), timeout_s=60) == 2
    assert namespace.put_batch(chain(2, "b"), [bytes(MIB)] * 2, timeout_s=60).stored == 2


@pytest.mark.parametrize("timeout_s", [0.0005, 0.002, 0.008])
def test_a_short_timeout_yields_right_blocks_or_misses(
    timeout_s: float, namespace: dalsegno.Namespace
) -> None:
    blocks, out = fill(namespace, 64), buffers(64)
    started = time.monotonic()
    found = namespace.get_batch(chain(64), out, timeout_s=timeout_s)
    assert time.monotonic() - started < timeout_s + 30
    assert out[:found] == blocks[:found]
    after = [bytes(one) for one in out]
    time.sleep(0.02)
    assert after == out


@pytest.mark.parametrize("timeout_s", [-1, float("nan")])
def test_a_timeout_that_is_negative_or_nan_is_invalid(
    timeout_s: float, namespace: dalsegno.Namespace
) -> None:
    with pytest.raises(dalsegno.InvalidError, match="timeout_s"):
        namespace.get_batch(chain(1), buffers(1), timeout_s=timeout_s)
    with pytest.raises(dalsegno.InvalidError, match="timeout_s"):
        namespace.submit_get(chain(1), buffers(1)).wait(timeout_s)


def test_a_very_long_timeout_is_accepted(namespace: dalsegno.Namespace) -> None:
    blocks, out = fill(namespace, 1), buffers(1)
    assert namespace.get_batch(chain(1), out, timeout_s=1e18) == 1
    assert out == blocks
    assert namespace.submit_get(chain(1), out).wait(1e18)


# Layer by layer.


def test_layers_become_blocks_at_commit(namespace: dalsegno.Namespace) -> None:
    halves = [[os.urandom(MIB // 2) for _ in range(3)] for _ in range(2)]
    writer = namespace.layer_writer(chain(3))
    assert (writer.first, writer.count) == (0, 3)
    for layer in (1, 0):
        writer.store_layer(layer, halves[layer], timeout_s=60 if layer else None)
        assert namespace.probe(chain(3)) == 0
    assert writer.commit() == 3
    out = buffers(3)
    assert namespace.get_batch(chain(3), out) == 3
    assert out == [a + b for a, b in zip(*halves, strict=True)]


def test_a_writer_skips_stored_blocks(namespace: dalsegno.Namespace) -> None:
    fill(namespace, 2)
    writer = namespace.layer_writer(chain(4), first=1, count=2)
    assert (writer.first, writer.count) == (2, 1)
    for layer in range(2):
        writer.store_layer(layer, [bytes(MIB // 2)])
    assert writer.commit() == 1
    assert namespace.contains(chain(4)) == [True, True, True, False]
    done = namespace.layer_writer(chain(3))
    assert (done.first, done.count, done.commit()) == (3, 0, 0)


def test_wrong_layers_are_invalid_and_change_nothing(namespace: dalsegno.Namespace) -> None:
    half = bytes(MIB // 2)
    writer = namespace.layer_writer(chain(2))
    writer.store_layer(0, [half, half])
    for layer, blocks in ((0, [half] * 2), (2, [half] * 2), (1, [half]), (1, [half, half[1:]])):
        with pytest.raises(dalsegno.InvalidError):
            writer.store_layer(layer, blocks)
    writer.store_layer(1, [half, half])
    assert writer.commit() == 2
    with pytest.raises(dalsegno.InvalidError, match="already"):
        writer.commit()


def test_a_writer_with_bad_arguments_is_invalid(namespace: dalsegno.Namespace) -> None:
    for first, count in ((0, 4), (3, 1), (4, None), (1, 3)):
        with pytest.raises(dalsegno.InvalidError):
            namespace.layer_writer(chain(3), first=first, count=count)
    with pytest.raises(dalsegno.InvalidError, match="one extent"):
        namespace.layer_writer(chain(1000))


def test_regression_a_commit_that_misses_a_layer_changes_nothing(
    namespace: dalsegno.Namespace,
) -> None:
    half = bytes(MIB // 2)
    writer = namespace.layer_writer(chain(1))
    writer.store_layer(0, [half])
    with pytest.raises(dalsegno.InvalidError, match="layer 1"):
        writer.commit()
    assert namespace.probe(chain(1)) == 0
    writer.store_layer(1, [half])
    assert writer.commit() == 1


def test_layers_are_stored_and_loaded_in_the_background(namespace: dalsegno.Namespace) -> None:
    halves = [[os.urandom(MIB // 2) for _ in range(3)] for _ in range(2)]
    writer = namespace.layer_writer(chain(3), timeout_s=60)
    for layer in range(2):
        transfer = writer.submit_store_layer(layer, halves[layer], timeout_s=60 if layer else None)
        assert transfer.wait(60)
        assert transfer.done()
        results: list[object] = [transfer.result(), transfer.result()]
        assert results == [None, None]
    commit = writer.submit_commit(timeout_s=60)
    assert commit.wait(60)
    committed: object = commit.result()
    assert committed is None
    out = buffers(4)
    load = namespace.load([*chain(3), *chain(1, "no")], out)
    assert load.wait_layer(1, timeout_s=60) is False, "the last block lacks it"
    assert (load.wait(60), load.result()) == (True, 3)
    assert out[:3] == [b"".join(pair) for pair in zip(*halves, strict=True)]
    with pytest.raises(dalsegno.InvalidError, match="layer 2 does not exist"):
        load.layer_ready(2)


def test_a_layer_that_fails_in_the_background_reports_its_error_and_may_be_stored_again(
    namespace: dalsegno.Namespace,
) -> None:
    half = bytes(MIB // 2)
    writer = namespace.layer_writer(chain(1))
    for layer, error in ((2, dalsegno.InvalidError), (0, dalsegno.UnavailableError)):
        transfer = writer.submit_store_layer(layer, [half], timeout_s=0)
        assert transfer.wait(60)
        with pytest.raises(error):
            transfer.result()
    writer.store_layer(1, [half])
    with pytest.raises(dalsegno.InvalidError, match="layer 0"):
        writer.commit()
    writer.store_layer(0, [half])
    assert writer.commit() == 1


def test_a_throttled_layer_can_be_stored_again(namespace: dalsegno.Namespace) -> None:
    half, count = bytes(MIB // 2), 16
    writer = namespace.layer_writer(chain(1, "new"))
    blocks = [bytes(MIB)] * count
    busy = [namespace.submit_put(chain(count, f"{n}."), blocks) for n in range(8)]
    transfer = writer.submit_store_layer(0, [half])
    assert all(put.wait(60) for put in busy)
    assert transfer.wait(60)
    if transfer.throttled:
        with pytest.raises(dalsegno.UnavailableError, match="again"):
            transfer.result()
        writer.store_layer(0, [half])
    writer.store_layer(1, [half])
    assert writer.commit() == 1


def test_a_layer_that_times_out_may_be_stored_again(namespace: dalsegno.Namespace) -> None:
    half = bytes(MIB // 2)
    writer = namespace.layer_writer(chain(1))
    with pytest.raises(dalsegno.UnavailableError):
        writer.store_layer(0, [half], timeout_s=0)
    writer.store_layer(1, [half])
    with pytest.raises(dalsegno.InvalidError, match="layer 0"):
        writer.commit()
    writer.store_layer(0, [half])
    assert writer.commit() == 1


# Threads of Python.


def test_other_threads_run_while_the_store_works(namespace: dalsegno.Namespace) -> None:
    count, ticks, stop = 128, 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stop.is_set():
            ticks += 1

    out = buffers(count)
    thread = threading.Thread(target=tick)
    thread.start()
    try:
        calls: list[Callable[[], int]] = [
            lambda: namespace.put_batch(chain(count), [bytes(MIB)] * count).stored,
            lambda: namespace.get_batch(chain(count), out),
            lambda: namespace.get_batch(chain(count), out, timeout_s=60),
        ]
        for call in calls:
            before = ticks
            assert call() == count
            assert ticks - before > 100
    finally:
        stop.set()
        thread.join()


def test_threads_share_a_store(namespace: dalsegno.Namespace) -> None:
    blocks = fill(namespace, 8)
    wrong: list[int] = []

    def read(number: int) -> None:
        for _ in range(5):
            out = buffers(8)
            if namespace.get_batch(chain(8), out) != 8 or out != blocks:
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
