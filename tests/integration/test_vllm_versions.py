"""The tier with the shapes of vLLM 0.28 to 0.33: what each version hands over and takes back."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")

from tests.integration import tiers
from tests.integration.tiers import ROW_BYTES, Primary, finished, keys
from vllm.v1.kv_offload.base import LookupResult
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager

from dalsegno.integrations.vllm import compat
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
    if version < 29:
        del values["kv_cache_layout"]
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


def use_version(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives vLLM's classes the shape of a version."""
    monkeypatch.setattr(compat, "JobResult", job_result(version))
    if version < 31:

        def old_init(self: Any, offloading_spec: Any, primary_kv_view: Any, tier_type: str) -> None:
            self._offloading_spec, self._primary_kv_view = offloading_spec, primary_kv_view
            self.tier_type = tier_type

        monkeypatch.setattr(SecondaryTierManager, "__init__", old_init)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_tier_works_with_the_shapes_of_every_version(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_version(version, monkeypatch)
    primary = Primary(16)
    extra = {"backpressure_detector": None} if version >= 31 else {}
    tier = DalsegnoTier(
        offloading_spec=tiers.Spec(config(version)),
        primary_kv_view=primary.view,
        tier_type="DalsegnoTier",
        path=str(tmp_path / "store"),
        capacity="64MiB",
        identity=tiers.IDENTITY,
        **extra,
    )
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
    tier.submit_load(job(version, 2, ours, rows, second, load=True))
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
