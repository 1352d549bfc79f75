"""The store of an engine whose disk hangs or fails, while it is opened or later."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.stores import chain

import dalsegno
from dalsegno.integrations.common import opening
from dalsegno.integrations.common.opening import Backend, Waits
from dalsegno_bench.machine.faulty import Faulty

pytestmark = pytest.mark.timeout(600)
BLOCK = 8192
SETTINGS = {
    "capacity": "64MiB",
    "segment": "1MiB",
    "staging": "16MiB",
    "dram": 0,
    "durability": "batch",
}
# The program that plays the disk is compiled where it is needed first.
SOON_S = 30.0


def prepare() -> Callable[[Any, Mapping[str, str]], dict[str, Any]]:
    def namespaces(store: Any, epoch: Mapping[str, str]) -> dict[str, Any]:
        fields = {"model": "m", **epoch}
        return {"kv": store.namespace(fields, layers=1, slice_bytes=BLOCK)}

    return namespaces


def backend(path: Path, retry_s: float = 0.1, **options: Any) -> Backend:
    settings = {**SETTINGS, **options.pop("settings", {})}
    logger = logging.getLogger("tests.opening")
    waits = Waits(retry_s, **options)
    return Backend(str(path), settings, prepare, "the engine", logger, waits)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def space(of: Backend) -> Any:
    assert of.current is not None
    return of.current.namespaces["kv"]


def test_an_engine_starts_even_if_its_disk_hangs(
    disk: Faulty, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    disk.send("add all hang")
    began = time.monotonic()
    ours = backend(disk.path / "store", open_s=0.5)
    assert time.monotonic() - began < SOON_S / 3
    assert ours.current is None
    assert "still being opened" in ours.problem
    assert "the engine runs on without it until it is open" in caplog.text
    disk.send("clear")
    until(lambda: ours.current)
    assert ours.problem == ""
    until(lambda: "from now on" in caplog.text)
    assert space(ours).put_batch(chain(2), [bytes(BLOCK)] * 2).stored == 2
    ours.close()


def test_an_engine_exits_even_if_its_disk_hangs_while_the_store_opens(disk: Faulty) -> None:
    disk.send("add all hang")
    ours = backend(disk.path / "store", open_s=0.1)
    began = time.monotonic()
    ours.close()
    assert time.monotonic() - began < SOON_S
    disk.send("clear")
    time.sleep(0.2)
    assert ours.current is None, "nobody opens it any more"


@pytest.mark.parametrize("index", ["memory", "lsm"])
def test_an_engine_exits_even_if_its_disk_hangs(disk: Faulty, index: str) -> None:
    ours = backend(disk.path / "store", settings={"index": index})
    blocks = [bytes([number]) * BLOCK for number in range(4)]
    assert space(ours).put_batch(chain(4), blocks).stored == 4
    disk.send("add all hang")
    # On a thread of its own: no signal ends who waits for such a disk.
    closing = threading.Thread(target=ours.close, daemon=True)
    closing.start()
    closing.join(2 * SOON_S)
    waits = closing.is_alive()
    disk.send("clear")
    assert not waits, "not even for the file that says whose the directory is"
    again = backend(disk.path / "store", settings={"index": index})
    until(lambda: again.current)
    assert space(again).get_each(chain(4), [bytearray(BLOCK) for _ in blocks]) == [True] * 4
    again.close()


@pytest.mark.parametrize("io_engine", ["auto", "psync"])
def test_a_directory_stays_locked_while_its_last_owner_may_still_write(
    disk: Faulty, io_engine: str
) -> None:
    settings = {"io_engine": io_engine}
    ours = backend(disk.path / "store", settings=settings)
    blocks = [bytes([number]) * BLOCK for number in range(4)]
    assert space(ours).put_batch(chain(2), blocks[:2]).stored == 2
    disk.send("add write hang file=segment-")
    assert space(ours).put_batch(chain(4), blocks, timeout_s=2).stored == 0
    assert ours.current is not None
    assert ours.current.store.stats()["device"]["owed_requests"] > 0
    ours.close()
    again = backend(disk.path / "store", settings=settings)
    refused = again.problem
    disk.send("clear")
    assert "is in use by pid" in refused
    assert "its I/O is still in flight" in refused
    until(lambda: again.current)
    assert all(space(again).put_batch(chain(4), blocks).kept)
    out = [bytearray(BLOCK) for _ in blocks]
    assert space(again).get_each(chain(4), out) == [True] * 4
    assert out == blocks
    again.close()


def test_a_permanent_error_is_raised_immediately(tmp_path: Path) -> None:
    with pytest.raises(dalsegno.InvalidError, match="capacity"):
        backend(tmp_path / "store", settings={"capacity": "1KiB"})


@pytest.mark.parametrize("index", ["memory", "lsm"])
def test_a_store_whose_sync_failed_serves_reads_and_is_soon_reopened(
    disk: Faulty, index: str
) -> None:
    ours = backend(disk.path / "store", retry_s=3.0, settings={"index": index})
    blocks = [bytes([name]) * BLOCK for name in range(4)]
    assert space(ours).put_batch(chain(2), blocks[:2]).stored == 2
    disk.send("add sync error=EIO file=segment-")
    with pytest.raises(dalsegno.PoisonedError):
        space(ours).put_batch(chain(4), blocks)
    poisoned = ours.current
    assert poisoned is not None
    ours.report_poisoned()
    ours.report_poisoned()
    assert poisoned.poisoned
    out = [bytearray(BLOCK) for _ in range(2)]
    assert poisoned.namespaces["kv"].get_batch(chain(2), out) == 2
    assert out == blocks[:2]
    disk.send("clear")
    until(lambda: ours.current not in (None, poisoned))
    assert ours.current is not None
    assert not ours.current.poisoned
    assert all(space(ours).put_batch(chain(4), blocks).kept)
    out = [bytearray(BLOCK) for _ in range(4)]
    assert space(ours).get_batch(chain(4), out) == 4
    assert out == blocks
    ours.close()


def test_reopening_backs_off_while_syncs_keep_failing(disk: Faulty) -> None:
    ours = backend(disk.path / "store")
    assert space(ours).put_batch(chain(2), [bytes(BLOCK)] * 2).stored == 2
    disk.send("add sync error=EIO file=segment-")
    pauses = []
    for turn in range(3):
        poisoned = ours.current
        assert poisoned is not None
        with pytest.raises(dalsegno.PoisonedError):
            space(ours).put_batch(chain(1, f"turn {turn}"), [bytes(BLOCK)])
        began = time.monotonic()
        ours.report_poisoned()
        until(lambda: ours.current is not poisoned)  # noqa: B023 - called at once
        pauses.append(time.monotonic() - began)
        until(lambda: ours.current)
    assert all(pause >= 0.1 * 2**turn for turn, pause in enumerate(pauses))
    ours.close()


def test_a_permanent_error_that_is_found_late_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()

    def slowly(path: str, settings: Mapping[str, Any]) -> Any:
        assert go_on.wait(SOON_S)
        raise dalsegno.IncompatibleError(f"{path} is of another version, {len(settings)}")

    monkeypatch.setattr(opening, "open_store", slowly)
    ours = backend(tmp_path / "store", open_s=0.05)
    go_on.set()
    until(lambda: "gives up" in caplog.text)
    assert ours.current is None
    assert "another version" in ours.problem
    ours.close()


def test_a_renewal_during_a_reopen_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = backend(tmp_path / "store")
    ours.renew()
    assert space(ours).put_batch(chain(2), [bytes(BLOCK)] * 2).stored == 2
    go_on, usual = threading.Event(), opening.open_store

    def slowly(path: str, settings: Mapping[str, Any]) -> Any:
        assert go_on.wait(SOON_S)
        return usual(path, settings)

    monkeypatch.setattr(opening, "open_store", slowly)
    reopening = threading.Thread(target=ours._reopen, args=(0.0,))
    reopening.start()
    until(lambda: ours.current is None)
    ours.renew()
    go_on.set()
    reopening.join()
    assert space(ours).probe(chain(2)) == 0, "these are of the weights before"
    ours.close()


class Lazy(dict[str, Any]):
    """Namespaces that are opened when they are used, as those of SGLang are."""

    def __init__(self, store: Any, epoch: Mapping[str, str]) -> None:
        super().__init__()
        self.store, self.fields = store, {"model": "m", **epoch}

    def __missing__(self, name: str) -> Any:
        fields = {**self.fields, "pool": name}
        self[name] = self.store.namespace(fields, layers=1, slice_bytes=BLOCK)
        return self[name]


def test_a_renewal_reaches_blocks_that_were_put_before_a_reopen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.prepare", lambda: Lazy)
    ours = backend(tmp_path / "store")
    ours.renew()
    assert space(ours).put_batch(chain(2), [bytes(BLOCK)] * 2).stored == 2
    ours._reopen(0.0)
    ours.renew()
    assert space(ours).probe(chain(2)) == 0, "these are of the weights before"
    assert space(ours).put_batch(chain(2), [bytes(BLOCK)] * 2).stored == 2
    ours.close()


def test_namespaces_that_were_left_with_puts_under_way_are_emptied_later(tmp_path: Path) -> None:
    ours, left = backend(tmp_path / "store"), list[Any]()
    ours.renew()
    for _ in range(3):
        left.append(space(ours))
        ours.leave()
        ours.renew()
        # They come after the removal.
        assert left[-1].put_batch(chain(2), [bytes(BLOCK)] * 2).stored == 2
        assert space(ours).probe(chain(2)) == 0
    ours.renew()
    assert [one.probe(chain(2)) for one in left] == [0] * len(left)
    ours.leave()
    ours.close()
    with dalsegno.open(tmp_path / "store", **SETTINGS) as store:
        assert store.stats()["blocks"] == 0


def test_a_store_that_cannot_move_to_new_namespaces_is_reopened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = threading.Event()

    def refusing(store: Any, epoch: Mapping[str, str]) -> Lazy:
        if broken.is_set():
            raise dalsegno.DalsegnoError("there are too many namespaces")
        return Lazy(store, epoch)

    waits = Waits(retry_s=0.5)
    logger = logging.getLogger("tests.opening")
    place = str(tmp_path / "store")
    ours = Backend(place, SETTINGS, lambda: refusing, "the engine", logger, waits)
    assert space(ours).put_batch(chain(2), [bytes(BLOCK)] * 2).stored == 2
    broken.set()
    ours.renew()
    assert ours.current is None
    assert "too many namespaces" in ours.problem
    assert "the engine runs on without it" in caplog.text
    broken.clear()
    until(lambda: ours.current)
    assert ours.problem == ""
    assert space(ours).probe(chain(2)) == 0, "these are of the weights before"
    ours.close()


def test_the_reason_for_a_missing_store_is_logged_before_the_engine_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result: list[str] = []

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            time.sleep(0.3)
            result.append(record.getMessage())

    def refusing(path: str, settings: Mapping[str, Any]) -> Any:
        raise dalsegno.DalsegnoError(f"{path} is in use, {len(settings)}")

    monkeypatch.setattr(opening, "open_store", refusing)
    handler = Slow(logging.WARNING)
    logging.getLogger("tests.opening").addHandler(handler)
    try:
        ours = backend(tmp_path / "store", retry_s=SOON_S)
        assert len(result) == 1
        assert "is in use" in result[0]
        assert "is in use" in ours.problem
        ours.close()
    finally:
        logging.getLogger("tests.opening").removeHandler(handler)
