"""`Transfer.on_end`: a function that the store calls when a transfer ends."""

from __future__ import annotations

import threading

import pytest
from tests.unit.stores import chain

import dalsegno

MIB = 1 << 20


def test_on_end_calls_back_once_on_another_thread_when_the_result_is_there(
    namespace: dalsegno.Namespace,
) -> None:
    calls: list[tuple[int, bool, int]] = []
    called = threading.Event()
    transfer = namespace.submit_put(chain(100), [bytes(MIB)] * 100)

    def callback() -> None:
        calls.append((threading.get_ident(), transfer.done(), transfer.result().stored))
        called.set()

    transfer.on_end(callback)
    assert called.wait(60)
    assert [call[1:] for call in calls] == [(True, 100)]
    # The put may have ended before `on_end`, which then calls from here.
    assert transfer.wait(0)
    transfer.on_end(callback)
    assert calls[1] == (threading.get_ident(), True, 100)
    assert len(calls) == 2


def test_on_end_calls_back_for_transfers_that_fail_or_are_throttled_or_cancelled(
    namespace: dalsegno.Namespace,
) -> None:
    transfers = [namespace.submit_put(chain(1), [bytes(7)])]
    transfers += [namespace.submit_put(chain(20, f"{n}."), [bytes(MIB)] * 20) for n in range(12)]
    ended = threading.Semaphore(0)
    for transfer in transfers:
        transfer.on_end(ended.release)
        transfer.cancel()
    for _ in transfers:
        assert ended.acquire(timeout=60)
    assert not ended.acquire(blocking=False)
    assert any(transfer.throttled for transfer in transfers)


def test_an_exception_of_a_callback_is_logged_and_ignored(
    namespace: dalsegno.Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    transfer = namespace.submit_put(chain(1), [bytes(MIB)])
    assert transfer.wait(60)

    def callback() -> None:
        raise KeyError("mine")

    transfer.on_end(callback)
    assert transfer.result().stored == 1
    [record] = caplog.records
    assert (record.name, record.levelname) == ("dalsegno", "ERROR")
    assert "on_end" in record.getMessage()
    assert record.exc_info
    assert isinstance(record.exc_info[1], KeyError)


def test_on_end_wants_a_function(namespace: dalsegno.Namespace) -> None:
    transfer = namespace.submit_put(chain(1), [bytes(MIB)])
    with pytest.raises(TypeError, match="function"):
        transfer.on_end(7)  # type: ignore[arg-type]
    assert transfer.wait(60)


def test_a_dropped_transfer_still_calls_back(namespace: dalsegno.Namespace) -> None:
    called = threading.Event()
    namespace.submit_put(chain(50), [bytes(MIB)] * 50).on_end(called.set)
    assert called.wait(60)
