"""The tier with the shapes of vLLM 0.28 to 0.33: what each version hands over and takes back."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest

pytest.importorskip("vllm")

from tests.integration.vllm import tiers
from tests.integration.vllm.tiers import ROW_BYTES, Primary, finished, keys
from vllm.v1.kv_offload.base import LookupResult
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager

from dalsegno.integrations.vllm import compat, inputs
from dalsegno.integrations.vllm.tier import DalsegnoTier

pytestmark = pytest.mark.engine
VERSIONS = (28, 29, 30, 31, 32, 33)


class OldContext:
    """A request before 0.31: no positions of keys."""

    def __init__(self, name: str, positions: dict[bytes, int]) -> None:
        del positions
        self.req_id = name
        self.kv_transfer_params = None


class NewContext(OldContext):
    """A request since 0.31."""

    def __init__(self, name: str, positions: dict[bytes, int]) -> None:
        super().__init__(name, positions)
        self.kv_hints = None
        self._offload_key_positions = positions

    def get_offload_key_position(self, key: bytes) -> int | None:
        return self._offload_key_positions.get(key)


def context(version: int, name: str, of: list[bytes]) -> Any:
    """A request of that version."""
    positions = {key: number * tiers.BLOCK_TOKENS for number, key in enumerate(of, 1)}
    return (NewContext if version >= 31 else OldContext)(name, positions)


def config(version: int) -> Any:
    """`OffloadingConfig` of that version."""
    group: dict[str, Any] = {"tokens_per_block": tiers.BLOCK_TOKENS, "layer_names": ("l0",)}
    if version >= 30:
        group["group_id"] = 3
    if version >= 33:
        group["sliding_window_size_in_chunks"] = None
    whole = tiers.config()
    values = {item.name: getattr(whole, item.name) for item in dataclasses.fields(whole)}
    values["groups"] = (SimpleNamespace(**group),)
    values.pop("kv_cache_layout", None)
    if version >= 29:
        values["kv_cache_layout"] = "LBHNC"
    return SimpleNamespace(**values)


def job(
    version: int, number: int, of: list[bytes], rows: list[int], ctx: Any, *, load: bool
) -> Any:
    """`TransferJob` of that version."""
    name, kind = ("chunk_ids", np.int32) if version >= 30 else ("block_ids", np.int64)
    fields: dict[str, Any] = {"job_id": number, "keys": of, name: np.array(rows, dtype=kind)}
    fields |= {"is_promotion": load, "req_context": ctx}
    if version >= 31:
        fields["submit_time"] = 0.0
    return SimpleNamespace(**fields)


def job_result(version: int) -> type:
    """`JobResult` of that version."""
    fields: list[Any] = [("job_id", int), ("success", bool)]
    fields += [("successful_keys", Any, None), ("transfer_time", Any, None)]
    if version >= 31:
        fields.append(("transfer_bytes", Any, None))
    return dataclasses.make_dataclass("JobResult", fields)


def hints(version: int) -> dict[str, Any]:
    """Keywords that a version adds to a load."""
    return {"expedited": True} if version >= 33 else {}


def use_version(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives vLLM's classes the shape of a version."""
    monkeypatch.setattr(compat, "JobResult", job_result(version))
    if version < 31:

        def old_init(self: Any, offloading_spec: Any, primary_kv_view: Any, tier_type: str) -> None:
            self._offloading_spec, self._primary_kv_view = offloading_spec, primary_kv_view
            self.tier_type = tier_type

        monkeypatch.setattr(SecondaryTierManager, "__init__", old_init)


def open_tier(version: int, path: Path, primary: Primary) -> DalsegnoTier:
    """Opens a tier as that version does."""
    extra = {"backpressure_detector": None} if version >= 31 else {}
    return DalsegnoTier(
        offloading_spec=tiers.Spec(config(version)),
        primary_kv_view=primary.view,
        tier_type="DalsegnoTier",
        path=str(path),
        capacity="64MiB",
        identity=tiers.IDENTITY,
        **extra,
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_the_tier_works_with_the_shapes_of_every_version(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_version(version, monkeypatch)
    primary = Primary(16)
    tier = open_tier(version, tmp_path / "store", primary)
    assert tier.tier_type == "DalsegnoTier"
    ours = keys(6, group=3 if version >= 30 else 0)
    first = context(version, "r1", ours)
    tier.on_new_request(first)
    primary.fill(ours)
    tier.submit_store(job(version, 1, ours, list(range(6)), first, load=False))
    stored = finished(tier)[0]
    assert stored.success
    assert hasattr(stored, "transfer_bytes") == (version >= 31)
    second = context(version, "r2", ours)
    tier.on_new_request(second)
    assert [tier.lookup(key, second) for key in ours] == [LookupResult.HIT] * 6
    rows = [15, 14, 13, 12, 11, 10]
    tier.submit_load(job(version, 2, ours, rows, second, load=True), **hints(version))
    loaded = finished(tier)[0]
    assert loaded.success
    assert loaded.successful_keys is None
    assert primary.holds(rows, ours)
    if version >= 31:
        assert loaded.transfer_bytes == 6 * ROW_BYTES
    preempted = SimpleNamespace(new_req_ids=[], preempted_req_ids=["r2"])
    tier.on_schedule_end(preempted)
    tier.on_request_finished(second)
    tier.drain_jobs()
    tier.shutdown()
    primary.free()


def test_the_facts_that_vllm_publishes_are_declared_and_complete(tmp_path: Path) -> None:
    """`vllm:kv_offload_config_info` since 0.33; vLLM reserves the label `tier` for itself."""
    primary = Primary(4)
    tier = open_tier(33, tmp_path / "store", primary)
    declared = DalsegnoTier.config_info_keys({"type": "DalsegnoTier"})
    assert set(tier.config_info()) == set(declared)
    assert all(name.startswith("dalsegno_") for name in declared)
    assert tier.config_info()["dalsegno_path"] == str(tmp_path / "store")
    assert tier.config_info()["dalsegno_capacity_bytes"] == str(64 << 20)
    tier.shutdown()
    primary.free()


def test_every_call_takes_keywords_that_it_does_not_know(tmp_path: Path) -> None:
    """A later vLLM may add one; an engine must not die of it."""
    primary = Primary(4)
    tier = open_tier(33, tmp_path / "store", primary)
    ours, new = keys(2, group=3), {"a_word_of_later": object()}
    asked = context(33, "r", ours)
    tier.on_new_request(asked, **new)
    primary.fill(ours)
    tier.submit_store(job(33, 1, ours, [0, 1], asked, load=False), **new)
    tier.drain_jobs(**new)
    assert [result.success for result in tier.get_finished_jobs(**new)] == [True]
    assert tier.lookup(ours[0], asked, **new) is LookupResult.MISS
    tier.submit_load(job(33, 2, ours, [2, 3], asked, load=True), **new)
    assert [result.success for result in finished(tier)] == [False]
    tier.on_schedule_end(SimpleNamespace(preempted_req_ids=["r"]), **new)
    tier.on_request_finished(asked, **new)
    tier.shutdown()
    primary.free()


@pytest.mark.parametrize(
    ("has_fixed_seed", "set_seed", "warns"),
    [(False, None, True), (False, "0", False), (True, None, False)],
)
def test_random_hashes_of_blocks_are_warned_of(
    monkeypatch: pytest.MonkeyPatch,
    has_fixed_seed: bool,  # noqa: FBT001 - a parameter of pytest
    set_seed: str | None,
    warns: bool,  # noqa: FBT001 - a parameter of pytest
) -> None:
    vllm = SimpleNamespace(**({"resolve_none_hash_seed": id} if has_fixed_seed else {}))
    monkeypatch.setattr(compat, "kv_cache_utils", vllm)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if set_seed is not None:
        monkeypatch.setenv("PYTHONHASHSEED", set_seed)
    lines: list[str] = []
    monkeypatch.setattr(inputs.logger, "warning", lines.append)
    inputs.warn_of_random_hashes()
    assert ["PYTHONHASHSEED" in line for line in lines] == [True] * warns


class TwoThreads:
    """A tier as the manager of 0.33 calls it: by step, and from a thread between the steps."""

    def __init__(self, tier: DalsegnoTier, primary: Primary) -> None:
        self.tier, self.primary = tier, primary
        self.lock, self.results = threading.Lock(), list[Any]()
        self._stop = threading.Event()
        self._server = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._server.join()
        self.tier.shutdown()
        self.primary.free()

    def _serve(self) -> None:
        while not self._stop.wait(0.001):
            with self.lock:
                self.results.extend(self.tier.get_finished_jobs())
                self.tier.on_schedule_end(SimpleNamespace(preempted_req_ids=[]))
                self.tier.get_stats()

    def succeeded(self, number: int) -> bool:
        """Waits until the other thread has received a job."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if found := [one.success for one in self.results if one.job_id == number]:
                return bool(found[0])
            time.sleep(0.001)
        raise AssertionError(f"job {number} was never reported")

    def store_and_load(self, number: int, of: list[Any]) -> Any:
        """Stores a prompt of six blocks; another request, which is returned, loads it."""
        with self.lock:
            self.primary.fill(of)
            first = context(33, f"r{number}", of)
            self.tier.on_new_request(first)
            self.tier.submit_store(job(33, number, of, list(range(6)), first, load=False))
        assert self.succeeded(number)
        rows = list(range(8, 14))
        with self.lock:
            second = context(33, f"r{number + 1}", of)
            self.tier.on_new_request(second)
            assert [self.tier.lookup(key, second) for key in of] == [LookupResult.HIT] * 6
            load = job(33, number + 1, of, rows, second, load=True)
            self.tier.submit_load(load, **hints(33))
        assert self.succeeded(number + 1)
        assert self.primary.holds(rows, of)
        return second


def test_two_threads_share_the_tier_under_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_version(33, monkeypatch)
    primary = Primary(16)
    with TwoThreads(open_tier(33, tmp_path / "store", primary), primary) as two:
        for number in range(8):
            ours = keys(6, prompt=f"p{number}", group=3)
            last = two.store_and_load(2 * number, ours)
        # Around sleep vLLM resets its caches, as the weights may be others afterwards.
        with two.lock:
            two.tier.drain_jobs()
            assert two.tier.lookup(ours[0], last) is LookupResult.MISS
        two.store_and_load(16, ours)
        assert sorted(one.job_id for one in two.results) == list(range(18))


@pytest.mark.parametrize(("version", "group"), [(28, 0), (30, 3)])
def test_a_group_has_the_number_that_its_keys_carry(version: int, group: int) -> None:
    assert list(compat.groups(config(version))) == [group]
    assert compat.split_key(keys(1, group=group)[0])[1] == group


def test_the_region_gets_the_arguments_of_its_version() -> None:
    class Old:
        def __init__(
            self,
            engine_id: str,
            num_blocks: int,
            rank: int | None,
            kv_bytes_per_block: int,
            cpu_page_size: int,
        ) -> None:
            self.values = (engine_id, num_blocks, rank, kv_bytes_per_block, cpu_page_size)

    class New:
        def __init__(
            self,
            engine_id: str,
            num_chunks: int,
            rank: int | None,
            kv_bytes_per_chunk: int,
            cpu_page_size: int,
        ) -> None:
            self.values = (engine_id, num_chunks, rank, kv_bytes_per_chunk, cpu_page_size)

    spec = SimpleNamespace(
        config=SimpleNamespace(engine_id="e"), cpu_page_size_per_worker=64, kv_bytes_per_chunk=4096
    )
    for kind, rows in ((Old, "num_blocks"), (New, "num_chunks")):
        setattr(spec, rows, 7)
        made: Any = kind(**compat.region_arguments(kind, spec, 0))
        assert made.values == ("e", 7, 0, 4096, 64)
