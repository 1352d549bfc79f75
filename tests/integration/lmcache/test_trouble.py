"""What LMCache gets from our adapter when something is wrong: misses, never an exception."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("lmcache")

from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class
from lmcache.v1.distributed.l2_adapters.factory import create_l2_adapter_from_registry
from tests.contract import reference_store
from tests.integration.lmcache.objects import OBJECT_BYTES, Driver, filled, keys, memory
from tests.outside import another_process, flip, segment_of

import dalsegno
from dalsegno.integrations.common import opening
from dalsegno.integrations.lmcache import adapter as module

if TYPE_CHECKING:
    from tests.integration.manual_store import ManualStore

pytestmark = pytest.mark.engine

Make = Callable[..., module.DalsegnoL2Adapter]


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the adapter warns of; LMCache's loggers hand nothing on to that of pytest."""
    lines: list[str] = []
    keep = logging.Handler(logging.WARNING)
    monkeypatch.setattr(keep, "emit", lambda record: lines.append(record.getMessage()))
    monkeypatch.setattr(module.logger, "handlers", [keep])
    return lines


def through_lmcache(given: dict[str, Any]) -> Any:
    """Makes the adapter as LMCache does from what `--l2-adapter` gives."""
    parsed = get_l2_adapter_config_class("plugin").from_dict(
        {
            "type": "plugin",
            "module_path": "dalsegno.integrations.lmcache",
            "class_name": "DalsegnoL2Adapter",
            "adapter_params": given,
        }
    )
    return create_l2_adapter_from_registry(parsed)


def cannot_close(adapter: module.DalsegnoL2Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closes an adapter whose transfers are in flight, with a short limit for this call alone.

    The fixture closes it again, and the threads of a busy machine need the usual limit for that.
    """
    with monkeypatch.context() as patch:
        patch.setattr(module, "SHUTDOWN_S", 0.1)
        with pytest.raises(RuntimeError, match="stays in use"):
            adapter.close()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"pth": "/x"}, "unknown key 'pth' in adapter_params; did you mean 'path'"),
        ({"path": ""}, 'needs "path"'),
        ({"capacity": "2 Gb/s"}, "capacity is '2 Gb/s'"),
        ({"load_timeout_s": 0}, "load_timeout_s is 0"),
        ({"max_load_tasks": 1.5}, "max_load_tasks is 1.5"),
        ({"max_store_bytes": -1}, "max_store_bytes is -1"),
        ({"codec": "lz4"}, 'codec is \'lz4\'; it must be "none" or "zstd"'),
        ({"store": {"io_deph": 3}}, "io_depth"),
        ({"model": "/x", "weights_fingerprint": "y"}, 'needs either "model"'),
        ({"weights_fingerprint": ""}, 'needs either "model"'),
    ],
)
def test_a_wrong_setting_stops_the_server_and_is_named(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    sizes = {"capacity": "64MiB", "weights_fingerprint": "w"}
    given = {"path": str(tmp_path / "store"), **sizes, **change}
    with pytest.raises(dalsegno.InvalidError, match=says):
        through_lmcache(given)


def test_a_model_without_weights_stops_the_server(tmp_path: Path) -> None:
    with pytest.raises(dalsegno.IncompatibleError, match="no weight file"):
        through_lmcache({"path": str(tmp_path / "store"), "model": str(tmp_path)})


def test_lmcache_makes_the_adapter_from_one_line(tmp_path: Path) -> None:
    ours = keys(2)
    made = through_lmcache(
        {"weights_fingerprint": "w", "path": str(tmp_path / "store"), "capacity": "64MiB"}
    )
    assert Driver(made).store(ours, filled(ours)).is_successful()
    assert made.supports_global_eviction
    made.close()


def test_a_store_of_another_process_is_a_miss_until_it_is_free(
    tmp_path: Path, make_adapter: Make, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening.Backend.__init__, "__defaults__", (opening.Waits(retry_s=0.05),))
    ours = keys(3)
    with another_process(tmp_path / "store", capacity="64MiB") as (process, _):
        driver = Driver(make_adapter())
        assert driver.lookup(ours) == [False] * 3
        assert not driver.store(ours, filled(ours)).is_successful()
        assert driver.load(ours, [memory() for _ in ours]) == [False] * 3
        driver.adapter.delete(ours)
        assert driver.adapter.get_usage().total_bytes_used == 0
        status = driver.adapter.report_status()
        assert (status["is_healthy"], status["store_open"]) == (True, False)
        for said in (status["problem"], "\n".join(warnings)):
            assert f"pid {process.pid}" in said
        assert any("LMCache runs on without it" in line for line in warnings)
    assert reference_store.wait_until(lambda: driver.adapter.report_status()["store_open"], 20)
    assert driver.store(ours, filled(ours)).is_successful()
    assert driver.holds(ours) == [True] * 3
    assert driver.adapter.report_status()["problem"] == ""


def test_a_directory_that_cannot_be_created_is_a_miss(tmp_path: Path, make_adapter: Make) -> None:
    (tmp_path / "file").write_text("")
    driver = Driver(make_adapter(tmp_path / "file" / "store"))
    assert driver.lookup(keys(1)) == [False]
    assert driver.adapter.report_status()["problem"] != ""


def test_damaged_bytes_are_a_miss(tmp_path: Path, make_adapter: Make) -> None:
    ours, driver = keys(6), Driver(make_adapter())
    for one in ours:
        driver.store([one], filled([one]))
    driver.adapter.close()
    (row,) = dalsegno.list_extents(str(tmp_path / "store"))
    extent = row["extent_rows"][2]
    flip(segment_of(tmp_path / "store", extent), extent["offset"] + extent["bytes"] - 100)
    driver = Driver(make_adapter())
    came = driver.holds(ours)
    assert came.count(False) == 1
    assert driver.adapter.report_status()["counters"]["load_failed_objects"] == 1


def test_an_object_removed_between_lookup_and_load_is_a_miss(make_adapter: Make) -> None:
    ours, driver = keys(4), Driver(make_adapter())
    driver.store(ours, filled(ours))
    number = driver.adapter.submit_lookup_and_lock_task(ours, {})
    assert driver.adapter.query_lookup_and_lock_result(number).popcount() == 4
    driver.adapter.delete(ours[2:])
    assert driver.holds(ours) == [True, True, False, False]


def test_a_full_store_evicts_old_objects(make_adapter: Make) -> None:
    driver = Driver(make_adapter(capacity="16MiB", store={"segment": "1MiB"}))
    for number in range(120):
        ours = keys(64, f"prompt {number}")
        assert driver.store(ours, filled(ours)).is_successful()
    assert driver.holds(ours) == [True] * 64
    assert driver.holds(keys(64, "prompt 0")) == [False] * 64


def test_a_task_over_a_bound_is_refused_immediately(
    manual: ManualStore, make_adapter: Make
) -> None:
    driver = Driver(make_adapter(max_load_tasks=1, max_store_tasks=1))
    adapter, (one, two) = driver.adapter, keys(2)
    held = adapter.submit_store_task([one], filled([one]))
    assert not driver.store([two], filled([two])).is_successful()
    manual.end_all()
    assert driver.stored(held).is_successful()
    held = adapter.submit_load_task([one], [memory()])
    assert driver.load([one], [memory()]) == [False]
    manual.end_all()
    assert driver.loaded(held, 1) == [True]
    assert adapter.report_status()["counters"]["throttled_objects"] == 2


def test_a_store_task_over_the_rest_of_the_bound_is_refused(
    manual: ManualStore, make_adapter: Make
) -> None:
    driver, ours, more = Driver(make_adapter(max_store_bytes=3 * OBJECT_BYTES)), keys(2), keys(4)
    number = driver.adapter.submit_store_task(ours, filled(ours))
    # What is under way already does not count again once it is there.
    for refused in (more, keys(2, "b"), keys(9, "c")):
        assert not driver.store(refused, filled(refused)).is_successful()
    manual.end_all()
    assert driver.stored(number).is_successful()
    number = driver.adapter.submit_store_task(more, filled(more))
    manual.end_all()
    assert driver.stored(number).is_successful()
    assert driver.adapter.report_status()["counters"]["throttled_objects"] == 4 + 2 + 9


def test_bytes_of_a_store_task_are_released_before_lmcache_gets_its_result(
    make_adapter: Make,
) -> None:
    driver = Driver(make_adapter(max_store_bytes=3 * OBJECT_BYTES))
    for number in range(30):
        more = keys(3, f"more {number}")
        assert driver.store(more, filled(more)).is_successful()


def test_regression_a_store_task_larger_than_the_bound_is_stored(make_adapter: Make) -> None:
    """It was refused although nothing else was under way, so it could never be stored."""
    driver = Driver(make_adapter(max_store_bytes=3 * OBJECT_BYTES))
    for count in (4, 10, 64):
        ours = keys(count, f"{count}")
        result = driver.store(ours, filled(ours))
        assert (result.is_successful(), result.bytes_transferred()) == (True, count * OBJECT_BYTES)
        assert driver.holds(ours) == [True] * count
    assert driver.adapter.report_status()["counters"]["throttled_objects"] == 0


def test_a_large_store_task_is_written_in_parts_within_the_bound(
    manual: ManualStore, make_adapter: Make
) -> None:
    driver, ours = Driver(make_adapter(max_store_bytes=3 * OBJECT_BYTES)), keys(8)
    number = driver.adapter.submit_store_task(ours, filled(ours))
    for parts in (1, 2, 3):
        assert reference_store.wait_until(lambda: len(manual.transfers) == parts, 20)  # noqa: B023
        # Whatever else comes meanwhile is over the bound.
        assert not driver.store(keys(1, "b"), filled(keys(1, "b"))).is_successful()
        assert sum(one.count for one in manual.transfers if not one.done()) <= 3
        assert len(manual.transfers) == parts
        manual.end_all()
    assert driver.stored(number).is_successful()
    assert [one.count for one in manual.transfers] == [3, 3, 2]
    # Each part follows the object before it, so the whole is one chain.
    assert [first for _, first in manual.puts] == [0, 1, 1]
    assert [chain[0] for chain, _ in manual.puts[1:]] == [chain[-1] for chain, _ in manual.puts[:2]]
    assert driver.lookup(ours) == [True] * 8


def test_an_object_larger_than_the_bound_is_refused(make_adapter: Make) -> None:
    driver, ours = Driver(make_adapter(max_store_bytes=OBJECT_BYTES - 1)), keys(2)
    assert not driver.store(ours, filled(ours)).is_successful()
    assert driver.adapter.report_status()["counters"]["throttled_objects"] == 2


@pytest.mark.parametrize("end", ["closed", "late", "refused"])
def test_parts_that_were_never_started_fail_the_task(
    manual: ManualStore, make_adapter: Make, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    timeout_s = 0.3 if end == "late" else 60
    driver = Driver(make_adapter(max_store_bytes=3 * OBJECT_BYTES, store_timeout_s=timeout_s))
    ours = keys(8)
    number = driver.adapter.submit_store_task(ours, filled(ours))
    if end == "closed":
        cannot_close(driver.adapter, monkeypatch)
    elif end == "late":
        time.sleep(2 * timeout_s)
    else:
        manual.broken = "submit_put"
    manual.end_all()
    assert not driver.stored(number).is_successful()
    assert len(manual.transfers) == 1
    manual.broken = ""
    assert driver.adapter.report_status()["counters"]["store_failed_objects"] == 5
    if end != "closed":
        # Nothing of it is in the way of the next.
        number = driver.adapter.submit_store_task(ours[:3], filled(ours[:3]))
        assert driver.stored(number).is_successful()


@pytest.mark.parametrize("call", ["contains", "submit_put", "submit_get"])
def test_a_call_of_the_store_that_raises_is_a_miss(
    manual: ManualStore, make_adapter: Make, warnings: list[str], call: str
) -> None:
    driver, ours = Driver(make_adapter(weights_fingerprint="w")), keys(2)
    number = driver.adapter.submit_store_task(ours, filled(ours))
    manual.end_all()
    assert driver.stored(number).is_successful()
    manual.broken = call
    for _ in range(3):
        driver.lookup(ours)
        number = driver.adapter.submit_store_task(keys(1, "b"), filled(keys(1, "b")))
        manual.end_all()
        stored = driver.stored(number).is_successful()
        number = driver.adapter.submit_load_task(ours, [memory(), memory()])
        manual.end_all()
        loaded = driver.loaded(number, 2)
        driver.adapter.delete(keys(1, "c"))
    assert stored == (call == "submit_get")
    assert loaded == [call != "submit_get"] * 2
    assert driver.adapter.report_status()["counters"]["errors"] >= 3
    assert 1 <= sum("is broken" in line for line in warnings) <= 3
    manual.broken = ""


def test_a_wrong_call_is_a_failed_task(make_adapter: Make) -> None:
    driver, ours = Driver(make_adapter()), keys(2)
    assert not driver.store(ours, filled(ours)[:1]).is_successful()
    assert driver.load(ours, filled(ours)[:1]) == [False, False]
    assert not driver.store(ours, [object(), object()]).is_successful()


def test_a_listener_that_raises_does_not_lose_the_task(make_adapter: Make) -> None:
    driver, ours = Driver(make_adapter()), keys(2)

    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    driver.adapter.register_listener(Broken())
    assert driver.store(ours, filled(ours)).is_successful()
    assert driver.holds(ours) == [True, True]


def test_a_transfer_past_its_deadline_is_cancelled(
    manual: ManualStore, make_adapter: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dalsegno.integrations.common.batch.GRACE_S", 0.05)
    driver, ours = Driver(make_adapter(load_timeout_s=0.1)), keys(1)
    number = driver.adapter.submit_store_task(ours, filled(ours))
    manual.end_all()
    assert driver.stored(number).is_successful()
    number = driver.adapter.submit_load_task(ours, [memory()])
    transfer = manual.transfers[-1]
    assert reference_store.wait_until(lambda: transfer.cancelled, 20)
    # Its memory is in use until the store says otherwise.
    assert driver.adapter.query_load_result(number) is None
    transfer.end([False])
    assert driver.loaded(number, 1) == [False]


def test_closing_waits_for_transfers_and_refuses_while_memory_is_in_use(
    manual: ManualStore, make_adapter: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, ours = make_adapter(), keys(1)
    adapter.submit_store_task(ours, filled(ours))
    began = time.monotonic()
    cannot_close(adapter, monkeypatch)
    assert manual.transfers[0].cancelled
    assert time.monotonic() - began < 20
    manual.end_all()
    adapter.close()


def test_after_a_failed_sync_nothing_is_written_and_lookups_work(
    manual: ManualStore, make_adapter: Make
) -> None:
    driver, ours = Driver(make_adapter()), keys(2)
    number = driver.adapter.submit_store_task(ours[:1], filled(ours[:1]))
    manual.end_all()
    assert driver.stored(number).is_successful()
    number = driver.adapter.submit_store_task(ours[1:], filled(ours[1:]))
    manual.poisoned = True
    manual.transfers[-1].end(dalsegno.PoisonedError("a sync failed"))
    assert not driver.stored(number).is_successful()
    puts = len(manual.puts)
    assert not driver.store(ours[1:], filled(ours[1:])).is_successful()
    assert len(manual.puts) == puts
    assert driver.lookup(ours) == [True, False]


def test_the_number_of_object_sizes_is_bounded(
    make_adapter: Make, monkeypatch: pytest.MonkeyPatch, warnings: list[str]
) -> None:
    monkeypatch.setattr("dalsegno.integrations.lmcache.spaces.MOST_SPACES", 4)
    driver, ours = Driver(make_adapter()), keys(6)
    for number, one in enumerate(ours):
        kept = driver.store([one], [memory((number + 1, 8), "float32")]).is_successful()
        assert kept == (number < 4)
    assert driver.lookup(ours) == [True] * 4 + [False] * 2
    assert any("objects of 4 kinds already" in line for line in warnings)
