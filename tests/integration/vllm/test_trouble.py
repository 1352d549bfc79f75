"""`DalsegnoTier` when something goes wrong: exceptions, shutdowns, a store that does not open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.contract import reference_store
from tests.integration.manual_store import ManualStore
from tests.integration.vllm.tiers import (
    HIT,
    MISS,
    ROW_BYTES,
    ROWS,
    Primary,
    Request,
    config,
    counted,
    finished,
    keys,
    open_tier,
)
from tests.outside import another_process

import dalsegno
from dalsegno.integrations.common import opening
from dalsegno.integrations.vllm import transfers
from dalsegno.integrations.vllm.tier import DalsegnoTier
from dalsegno_bench.vllm.rig import parallel_config

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("call", ["contains", "submit_put", "submit_get"])
def test_an_exception_in_a_call_is_a_miss_or_a_failed_job(
    manual: ManualStore, manual_tier: DalsegnoTier, call: str
) -> None:
    asked = Request(manual_tier, "r", keys(3))
    manual.broken = call
    assert asked.lookup(asked.keys[0]) is MISS
    asked.store(1)
    asked.load(2, rows=[3, 4, 5])
    manual.end_all()
    results = {result.job_id: result.success for result in finished(manual_tier, 2)}
    assert results == {1: call == "submit_get", 2: False}
    assert list(manual_tier.get_finished_jobs()) == []
    assert any(name.startswith("errors") for name in counted(manual_tier.get_stats()))
    manual.broken = "stats"
    manual_tier._meter._asked_at = -10.0
    assert manual_tier.get_stats() is None


def test_an_exception_in_a_report_is_a_failed_job(
    manual: ManualStore, manual_tier: DalsegnoTier
) -> None:
    asked = Request(manual_tier, "r", keys(2))
    asked.load(1)
    manual.transfers[0].end(OSError("device"))
    result = finished(manual_tier)[0]
    assert (result.success, result.successful_keys) == (False, None)
    asked.store(2)
    manual.poisoned = True
    manual.transfers[1].end(dalsegno.PoisonedError("sync"))
    assert not finished(manual_tier)[0].success
    # A poisoned store takes nothing more, and is not even asked.
    asked.store(3)
    assert not finished(manual_tier)[0].success
    assert len(manual.transfers) == 2


def test_a_job_whose_second_transfer_cannot_start_waits_for_the_first(
    manual: ManualStore, manual_tier: DalsegnoTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "PART_BYTES", ROW_BYTES)
    monkeypatch.setattr(transfers, "MOST_PARTS", 100)
    manual.most_transfers = 1
    ours = keys(2)
    Request(manual_tier, "r", ours).load(1)
    assert list(manual_tier.get_finished_jobs()) == []
    manual.transfers[0].end([True])
    result = finished(manual_tier)[0]
    assert (result.success, result.successful_keys) == (False, (ours[0],))


def test_shutdown_stops_waiting_for_a_transfer_that_does_not_end(
    manual: ManualStore, manual_tier: DalsegnoTier
) -> None:
    Request(manual_tier, "r", keys(1)).store(1)
    with pytest.raises(RuntimeError, match="do not end"):
        manual_tier.shutdown()
    assert manual.transfers[0].cancelled
    manual.end_all()
    manual_tier._closed = False
    manual_tier.shutdown()


def test_a_reset_stops_waiting_for_a_transfer_that_does_not_end(
    manual: ManualStore, manual_tier: DalsegnoTier
) -> None:
    Request(manual_tier, "r", keys(1)).store(1)
    with pytest.raises(RuntimeError, match="do not end"):
        manual_tier.drain_jobs()
    assert manual.transfers[0].cancelled
    assert list(manual_tier.get_finished_jobs()) == []
    manual.end_all()
    manual_tier.drain_jobs()
    assert [result.job_id for result in finished(manual_tier)] == [1]


def test_no_call_of_vllm_while_it_serves_waits_for_a_transfer(
    manual: ManualStore, manual_tier: DalsegnoTier, primary: Primary
) -> None:
    ours = keys(2)
    primary.fill(ours)
    asked = Request(manual_tier, "r", ours)
    asked.store(1)
    asked.load(2)
    assert asked.lookup(ours[0]) is MISS
    assert list(manual_tier.get_finished_jobs()) == []
    manual_tier.get_stats()
    manual.end_all()
    assert len(finished(manual_tier, 2)) == 2
    assert [transfer.waits for transfer in manual.transfers] == [0, 0]


def test_shutdown_waits_for_stores_and_releases_the_memory(tmp_path: Path) -> None:
    ours = keys(16)
    memory = Primary(ROWS)
    tier = open_tier(tmp_path / "store", memory.view)
    memory.fill(ours)
    Request(tier, "r", ours).store(1)
    tier.shutdown()
    tier.shutdown()
    memory.free()
    again = Primary(ROWS)
    tier = open_tier(tmp_path / "store", again.view)
    assert Request(tier, "n", ours).lookup_all() == [HIT] * 16
    tier.shutdown()
    again.free()


def test_short_hashes_are_refused_and_counted(tier: DalsegnoTier) -> None:
    assert Request(tier, "r").lookup(b"x" * 16 + b"\0\0\0\0") is MISS
    assert counted(tier.get_stats())["errors lookup"] == 1


def test_a_locked_store_is_an_empty_tier_until_it_is_free(
    tmp_path: Path,
    primary: Primary,
    make_tier: Callable[..., DalsegnoTier],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening.Backend.__init__, "__defaults__", (opening.Waits(retry_s=0.05),))
    ours = keys(2)
    with another_process(tmp_path / "store", capacity="64MiB"):
        tier = make_tier()
        asked = Request(tier, "r", ours)
        assert asked.lookup(ours[0]) is MISS
        asked.store(1)
        asked.load(2)
        assert {(r.job_id, r.success) for r in finished(tier, 2)} == {(1, False), (2, False)}
        assert counted(tier.get_stats())["available"] == 0
    assert reference_store.wait_until(lambda: tier._backend.current is not None, 20)
    Request(tier, "s", ours).keep(primary)
    assert Request(tier, "t", ours).lookup(ours[0]) is HIT


def test_each_replica_of_data_parallelism_has_a_store_of_its_own(
    tmp_path: Path, primary: Primary, make_tier: Callable[..., DalsegnoTier]
) -> None:
    for replica in (0, 1):
        replicas = parallel_config(data_parallel_size=2, data_parallel_index=replica)
        tier = make_tier(of=config(parallel=replicas))
        Request(tier, "r", keys(1)).keep(primary)
        assert (tmp_path / "store" / f"dp{replica}" / "store.meta").is_file()


def test_a_directory_that_cannot_be_created_is_an_empty_tier(
    tmp_path: Path, make_tier: Callable[..., DalsegnoTier]
) -> None:
    (tmp_path / "file").touch()
    tier = make_tier(tmp_path / "file" / "store")
    assert Request(tier, "r").lookup(keys(1)[0]) is MISS
    assert counted(tier.get_stats())["available"] == 0


def test_a_wrong_configuration_fails_at_start_and_releases_the_memory(tmp_path: Path) -> None:
    memory = Primary(ROWS)
    with pytest.raises(dalsegno.InvalidError, match="did you mean 'capacity'"):
        open_tier(tmp_path, memory.view, capacty=1)
    with pytest.raises(dalsegno.InvalidError, match="capacity"):
        open_tier(tmp_path / "s", memory.view, capacity=4096)
    memory.free()


@pytest.mark.parametrize("tier", ["reference"], indirect=True)
def test_a_reset_forgets_even_when_the_store_cannot_remove(
    tier: DalsegnoTier, primary: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> int:
        raise dalsegno.FullError("no room")

    monkeypatch.setattr(reference_store.Namespace, "remove", refuse)
    ours = keys(2)
    for number in range(3):
        Request(tier, f"a{number}", ours).keep(primary)
        assert Request(tier, f"b{number}", ours).lookup(ours[0]) is HIT
        tier.drain_jobs()
        assert Request(tier, f"c{number}", ours).lookup(ours[0]) is MISS
