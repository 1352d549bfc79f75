"""`DalsegnoTier` when something goes wrong: exceptions, shutdowns, a store that does not open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.contract import reference_store
from tests.integration import tiers
from tests.integration.tiers import ManualStore, Primary, counted, finished, job, keys, request
from vllm.v1.kv_offload.base import LookupResult

import dalsegno
from dalsegno.integrations.vllm import backend, transfers
from dalsegno.integrations.vllm.tier import DalsegnoTier

pytestmark = pytest.mark.engine
HIT, MISS = LookupResult.HIT, LookupResult.MISS


def make(path: Path, primary: Primary, **settings: Any) -> DalsegnoTier:
    return tiers.make_tier(path, primary, **settings)


@pytest.mark.parametrize("call", ["contains", "submit_put", "submit_get"])
def test_an_exception_in_a_call_is_a_miss_or_a_failed_job(
    manual: ManualStore, primary: Primary, tmp_path: Path, call: str
) -> None:
    tier = make(tmp_path, primary)
    ours = keys(3)
    context = request("r", ours)
    manual.broken = call
    assert tier.lookup(ours[0], context) is MISS
    tier.submit_store(job(1, ours, [0, 1, 2], context))
    tier.submit_load(job(2, ours, [3, 4, 5], context, load=True))
    manual.end_all()
    results = {result.job_id: result.success for result in finished(tier, 2)}
    assert results == {1: call == "submit_get", 2: False}
    assert list(tier.get_finished_jobs()) == []
    assert any(name.startswith("errors") for name in counted(tier.get_stats()))
    manual.broken = "stats"
    tier._meter._asked_at = -10.0
    assert tier.get_stats() is None
    manual.broken = ""
    tier.shutdown()


def test_an_exception_in_a_report_is_a_failed_job(
    manual: ManualStore, primary: Primary, tmp_path: Path
) -> None:
    tier = make(tmp_path, primary)
    ours = keys(2)
    context = request("r", ours)
    tier.submit_load(job(1, ours, [0, 1], context, load=True))
    manual.transfers[0].end(OSError("device"))
    result = finished(tier)[0]
    assert (result.success, result.successful_keys) == (False, None)
    tier.submit_store(job(2, ours, [0, 1], context))
    manual.transfers[1].end(dalsegno.PoisonedError("sync"))
    assert not finished(tier)[0].success
    # A poisoned store takes nothing more, and is not even asked.
    tier.submit_store(job(3, ours, [0, 1], context))
    assert not finished(tier)[0].success
    assert len(manual.transfers) == 2
    tier.shutdown()


def test_a_job_whose_second_transfer_cannot_start_waits_for_the_first(
    manual: ManualStore, primary: Primary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "PART_BYTES", tiers.ROW_BYTES)
    monkeypatch.setattr(transfers, "MOST_PARTS", 100)
    tier = make(tmp_path, primary)
    ours = keys(2)
    context = request("r", ours)
    add = manual._add
    started: list[int] = []

    def add_once(*arguments: Any) -> Any:
        if started:
            raise OSError("no more")
        started.append(1)
        return add(*arguments)

    monkeypatch.setattr(manual, "_add", add_once)
    tier.submit_load(job(1, ours, [0, 1], context, load=True))
    assert list(tier.get_finished_jobs()) == []
    manual.transfers[0].end([True])
    result = finished(tier)[0]
    assert (result.success, result.successful_keys) == (False, (ours[0],))
    tier.shutdown()


def test_shutdown_gives_up_on_a_transfer_that_does_not_end(
    manual: ManualStore, primary: Primary, tmp_path: Path
) -> None:
    tier = make(tmp_path, primary)
    ours = keys(1)
    tier.submit_store(job(1, ours, [0], request("r", ours)))
    with pytest.raises(RuntimeError, match="do not end"):
        tier.shutdown()
    assert manual.transfers[0].cancelled
    manual.end_all()
    tier._closed = False
    tier.shutdown()


def test_shutdown_waits_for_stores_and_releases_the_memory(tmp_path: Path) -> None:
    memory = Primary(tiers.ROWS)
    tier = tiers.make_tier(tmp_path / "store", memory)
    ours = keys(20)
    for row, key in enumerate(ours):
        memory.fill(row, key)
    tier.submit_store(job(1, ours, range(20), request("r", ours)))
    tier.shutdown()
    tier.shutdown()
    memory.free()
    again = Primary(tiers.ROWS)
    tier = tiers.make_tier(tmp_path / "store", again)
    assert all(tier.lookup(key, request("n", ours)) is HIT for key in ours)
    tier.shutdown()
    again.free()


def test_short_hashes_are_refused_and_counted(tier: DalsegnoTier) -> None:
    key = b"x" * 16 + b"\0\0\0\0"
    assert tier.lookup(key, request("r")) is MISS
    assert counted(tier.get_stats())["errors lookup"] == 1


def test_a_locked_store_is_an_empty_tier_until_it_is_free(
    tmp_path: Path, primary: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    code = (
        "import dalsegno, sys\n"
        f"store = dalsegno.open({str(path)!r}, capacity='64MiB')\n"
        "print(1, flush=True)\n"
        "sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    owner.stdout.readline()
    monkeypatch.setattr(backend.Backend.__init__, "__defaults__", (0.05,))
    tier = tiers.make_tier(path, primary)
    ours = keys(2)
    assert tier.lookup(ours[0], request("r", ours)) is MISS
    tier.submit_store(job(1, ours, [0, 1], request("r", ours)))
    tier.submit_load(job(2, ours, [0, 1], request("r", ours), load=True))
    assert {(r.job_id, r.success) for r in finished(tier, 2)} == {(1, False), (2, False)}
    assert counted(tier.get_stats())["available"] == 0
    owner.communicate()
    assert reference_store.wait_until(lambda: tier._backend.current is not None, 20)
    tiers.store_all(tier, primary, ours, request("s", ours))
    assert tier.lookup(ours[0], request("t", ours)) is HIT
    tier.shutdown()


def test_each_replica_of_data_parallelism_has_a_store_of_its_own(
    tmp_path: Path, primary: Primary
) -> None:
    parallel = {**vars(tiers.config().parallel), "data_parallel_size": 2}
    ours = keys(1)
    for replica in (0, 1):
        parallel["data_parallel_index"] = replica
        of = tiers.config(parallel=SimpleNamespace(**parallel))
        tier = tiers.make_tier(tmp_path / "store", primary, of)
        tiers.store_all(tier, primary, ours, request("r", ours))
        tier.shutdown()
        assert (tmp_path / "store" / f"dp{replica}" / "store.meta").is_file()


def test_a_directory_that_cannot_be_made_is_an_empty_tier(tmp_path: Path, primary: Primary) -> None:
    (tmp_path / "file").touch()
    tier = tiers.make_tier(tmp_path / "file" / "store", primary)
    assert tier.lookup(keys(1)[0], request("r")) is MISS
    assert counted(tier.get_stats())["available"] == 0
    tier.shutdown()


def test_a_wrong_configuration_fails_at_start_and_releases_the_memory(tmp_path: Path) -> None:
    memory = Primary(tiers.ROWS)
    with pytest.raises(dalsegno.InvalidError, match="did you mean 'capacity'"):
        tiers.make_tier(tmp_path, memory, capacty=1)
    with pytest.raises(dalsegno.InvalidError, match="capacity"):
        tiers.make_tier(tmp_path / "s", memory, capacity=4096)
    memory.free()


def test_a_reset_forgets_even_when_the_store_cannot_remove(
    tmp_path: Path, primary: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    opener = reference_store.Store
    monkeypatch.setattr(backend, "open_store", lambda path, settings: opener(path, "{}"))
    tier = make(tmp_path / "store", primary)
    ours = keys(2)

    def refuse(*_: Any) -> int:
        raise dalsegno.FullError("no room")

    monkeypatch.setattr(reference_store.Namespace, "remove", refuse)
    for number in range(3):
        tiers.store_all(tier, primary, ours, request(f"a{number}", ours))
        assert tier.lookup(ours[0], request(f"b{number}", ours)) is HIT
        tier.drain_jobs()
        assert tier.lookup(ours[0], request(f"c{number}", ours)) is MISS
    tier.shutdown()
