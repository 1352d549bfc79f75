"""What engines say that they do."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import dalsegno

SLICE_BYTES = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> dalsegno.Store:
    """A store without background work, and without a sync for each put.

    Closing ends after ten seconds, and a busy disk takes seconds for each sync.
    """
    return dalsegno.open(
        tmp_path / "kv", capacity="64MiB", merge_rate=0, scrub_rate=0, durability="none"
    )


def test_the_most_urgent_engine_counts(store: dalsegno.Store) -> None:
    assert store.stats()["schedule"]["phase"] == "unknown"
    store.set_phase(1, "idle")
    store.set_phase(2, "decode", steps=[1.0, 1.01])
    assert store.stats()["schedule"]["phase"] == "decode"
    store.set_phase(3, "prefill", slack_s=0.01)
    shown = store.stats()["schedule"]
    assert (shown["phase"], shown["engines"]) == ("prefill", 3)
    store.set_phase(3, "idle")
    assert store.stats()["schedule"]["phase"] == "decode"


def test_saves_wait_in_prefill_and_reads_do_not(store: dalsegno.Store) -> None:
    namespace = store.namespace({"model": "m"}, layers=1, slice_bytes=SLICE_BYTES)
    block = bytearray(b"x" * SLICE_BYTES)
    assert namespace.put_batch([b"a" * 32], [block]).stored == 1
    store.set_phase(1, "prefill")
    transfer = namespace.submit_put([b"b" * 32], [block], timeout_s=30)
    assert namespace.get_batch([b"a" * 32], [bytearray(SLICE_BYTES)]) == 1
    until = time.monotonic() + 1
    while not store.stats()["schedule"]["save"]["waiting"] and time.monotonic() < until:
        time.sleep(0.001)
    assert store.stats()["schedule"]["save"]["waiting"]
    store.set_phase(1, "idle")
    assert transfer.wait(10)
    assert transfer.result().stored == 1
    shown = store.stats()["schedule"]["save"]
    assert shown["waiting"] == shown["aged"] == 0


def test_a_save_waits_no_longer_than_its_patience(store: dalsegno.Store) -> None:
    namespace = store.namespace({"model": "m"}, layers=1, slice_bytes=SLICE_BYTES)
    store.set_phase(1, "prefill")
    transfer = namespace.submit_put([b"a" * 32], [bytearray(SLICE_BYTES)], timeout_s=30)
    while not transfer.wait(0.5):
        store.set_phase(1, "prefill")
    assert transfer.result().stored == 1
    assert store.stats()["schedule"]["save"]["aged"] >= 1


def test_closing_writes_what_waits(store: dalsegno.Store, tmp_path: Path) -> None:
    namespace = store.namespace({"model": "m"}, layers=1, slice_bytes=SLICE_BYTES)
    store.set_phase(1, "prefill")
    names = [bytes([at]) * 32 for at in range(8)]
    for at in range(8):
        namespace.submit_put(names[: at + 1], [bytearray(SLICE_BYTES)], first=at)
    store.close()
    with dalsegno.open(tmp_path / "kv", capacity="64MiB") as again:
        found = again.namespace({"model": "m"}, layers=1, slice_bytes=SLICE_BYTES)
        assert found.probe(names) == 8


@pytest.mark.parametrize(
    ("phase", "slack_s", "message"),
    [
        ("sleep", 0.0, "phase must be"),
        ("prefill", -1.0, "slack_s must be"),
        ("prefill", float("nan"), "slack_s must be"),
        ("prefill", float("inf"), "slack_s must be"),
    ],
)
def test_what_no_engine_does_is_refused(
    store: dalsegno.Store, phase: str, slack_s: float, message: str
) -> None:
    with pytest.raises(dalsegno.InvalidError, match=message):
        store.set_phase(1, phase, slack_s=slack_s)  # type: ignore[arg-type]
    store.close()
    with pytest.raises(dalsegno.ClosedError):
        store.set_phase(1, "idle")


def test_steps_that_are_no_numbers_change_nothing(store: dalsegno.Store) -> None:
    before = store.stats()["schedule"]["decode_pace_bytes_per_s"]
    store.set_phase(1, "decode", steps=[float("nan"), float("inf"), -1.0, 0.0])
    assert store.stats()["schedule"]["decode_pace_bytes_per_s"] == before
