"""`DalsegnoHiCache` without a tree: its oldest interface, trouble, identity, metrics, plugin."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang")

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from tests.contract.subjects import chain
from tests.integration.sglang.backend_rig import (
    GEOMETRY,
    Backends,
    config,
    indices,
    keys,
    noise,
    pages,
)
from tests.outside import another_process

from dalsegno import InvalidError
from dalsegno.integrations.sglang import identity, plugin
from dalsegno.integrations.sglang.pools import Memory, PoolPages
from dalsegno.integrations.sglang.spaces import block_hash
from dalsegno_bench.sglang.rig import Rig

pytestmark = pytest.mark.engine


# The three interfaces.


def test_the_oldest_interface_moves_tensors(make: Backends) -> None:
    backend = make()
    values = [torch.randn(64, dtype=torch.float32).to(torch.bfloat16) for _ in range(3)]
    assert backend.get(keys(1)[0], torch.empty_like(values[0])) is None
    assert backend.batch_set(keys(3), values)
    out = [torch.empty_like(one) for one in values]
    assert [one is not None for one in backend.batch_get(keys(4), [*out, out[0].clone()])] == [
        True,
        True,
        True,
        False,
    ]
    assert all(torch.equal(one, other) for one, other in zip(out, values, strict=True))
    assert backend.exists(keys(3)[2])
    assert not backend.exists(keys(4)[3])
    # A page of another size under the same key is another page.
    assert backend.get(keys(1)[0], torch.empty(32, dtype=torch.bfloat16)) is None
    assert backend.set("a key of no hash", values[0])
    assert torch.equal(backend.get("a key of no hash", out[1]), values[0])


def test_pages_go_out_of_and_into_the_host_pool_in_place(make: Backends, host: Rig) -> None:
    backend, before = make(), noise(host, 6)
    assert backend.batch_set_v1(keys(6), indices(6)) == [True] * 6
    assert backend.batch_exists(keys(8)) == 6
    assert backend.batch_exists(keys(8)[3:]) == 3
    assert backend.batch_get_v1(keys(8), indices(8, first=20)) == [True] * 6 + [False] * 2
    assert pages(host, 6, first=20) == before
    # A hint that is wrong, as SGLang's is when it reads, changes nothing.
    wrong = HiCacheStorageExtraInfo(prefix_keys=keys(3, "other"))
    assert backend.batch_get_v1(keys(6)[2:], indices(4, first=30), wrong) == [True] * 4
    assert pages(host, 4, first=30) == before[2:]


def test_a_failing_pool_does_not_affect_the_others(make: Backends, host: Rig) -> None:
    backend = make()
    noise(host, 2)
    good = PoolTransfer(PoolName.KV, host_indices=indices(2), keys=keys(2))
    unknown = PoolTransfer(PoolName.MAMBA, host_indices=indices(2), keys=keys(2))
    short = PoolTransfer(PoolName.KV, host_indices=indices(1), keys=keys(2))
    assert backend.batch_set_v2([unknown]) == {PoolName.MAMBA: [False, False]}
    assert backend.batch_set_v2([short]) == {PoolName.KV: [False, False]}
    assert backend.batch_set_v2([good]) == {PoolName.KV: [True, True]}
    assert backend.batch_get_v2([good, unknown]) == {
        PoolName.KV: [True, True],
        PoolName.MAMBA: [False, False],
    }
    assert backend.counts()["errors batch_set_v2"] == 2


def test_a_missing_window_limits_the_hit(make: Backends, host: Rig) -> None:
    backend = make()
    backend.register_mem_host_pool_v2(host.host, PoolName.SWA)
    noise(host, 6)
    assert backend.batch_set_v1(keys(6), indices(6)) == [True] * 6
    window = PoolTransfer(
        PoolName.SWA,
        host_indices=indices(2),
        keys=keys(6)[2:4],
        hit_policy=PoolHitPolicy.TRAILING_PAGES,
    )
    assert backend.batch_exists_v2(keys(8), [window]).kv_hit_pages == 0
    assert backend.batch_set_v2([window]) == {PoolName.SWA: [True, True]}
    found = backend.batch_exists_v2(keys(8), [window])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (4, [4])
    assert found.extra_pool_hit_pages == {PoolName.KV: 6, PoolName.SWA: 4}


# Trouble.


def test_no_call_raises_for_any_argument(make: Backends) -> None:
    backend = make()
    nonsense: Any = object()
    assert backend.batch_exists(nonsense) == 0
    assert backend.exists(nonsense) is False
    assert backend.batch_get_v1(keys(2), nonsense) == [False, False]
    assert backend.batch_set_v1(keys(2), torch.arange(3)) == [False, False]
    assert backend.batch_get(keys(1), [nonsense]) == [None]
    assert backend.batch_set(keys(1), [nonsense]) is False
    assert backend.batch_exists_v2(nonsense).kv_hit_pages == 0
    assert sum(n for name, n in backend.counts().items() if name.startswith("errors")) == 7


def test_a_directory_of_another_process_is_a_miss_that_names_the_owner(
    make: Backends,
    tmp_path: Path,
    host: Rig,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with another_process(tmp_path / "store") as (owner, result):
        assert result == "opened\n"
        with caplog.at_level(logging.WARNING, "sglang.dalsegno"):
            backend = make()
        assert f"in use by pid {owner.pid}" in caplog.text
        noise(host, 2)
        assert backend.batch_set_v1(keys(2), indices(2)) == [False, False]
        assert backend.batch_exists(keys(2)) == 0
        assert backend.batch_get_v1(keys(2), indices(2)) == [False, False]
        assert backend.clear() is False
        assert backend.get_stats().prefetch_pgs == []


def test_memory_outside_the_pool_is_never_accessed(host: Rig) -> None:
    memory, start = Memory(host.host), host.host.kv_buffer.data_ptr()
    size = host.host.kv_buffer.nbytes
    assert len(memory.view(start, size)) == size
    for address, wanted in ((start - 1, 1), (start + size, 1), (start + 1, size)):
        with pytest.raises(InvalidError, match="outside of its tensors"):
            memory.view(address, wanted)
        with pytest.raises(InvalidError, match="outside of its tensors"):
            memory.views([start, address], [1, wanted])
    assert [one.nbytes for one in memory.views([start, start + 8], [3, 5])] == [3, 5]


def test_a_pool_with_new_memory_is_inspected_again(
    make: Backends, host: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, before = make(), noise(host, 2)
    assert backend.batch_set_v1(keys(2), indices(2)) == [True, True]
    monkeypatch.setattr(host.host, "kv_buffer", torch.zeros_like(host.host.kv_buffer))
    assert backend.batch_get_v1(keys(2), indices(2, first=7)) == [True, True]
    assert pages(host, 2, first=7) == before


class NoBytes:
    """A host pool without bytes of its own, as DeepSeek V4's KV pool."""

    page_size = 4
    layout = "page_first"
    get_page_buffer_meta = staticmethod(lambda indices: None)


def test_a_kv_pool_without_bytes_hits_where_the_other_pools_hit(make: Backends, host: Rig) -> None:
    backend = make()
    backend.register_mem_pool_host(NoBytes())
    backend.register_mem_host_pool_v2(host.host, PoolName.DEEPSEEK_V4_C4)
    noise(host, 3)
    part = PoolTransfer(PoolName.DEEPSEEK_V4_C4, host_indices=indices(3), keys=keys(3))
    assert backend.batch_set_v1(keys(3), indices(3)) == [True] * 3
    assert backend.batch_set_v2([part]) == {PoolName.DEEPSEEK_V4_C4: [True] * 3}
    assert backend.batch_exists_v2(keys(5), [part]).kv_hit_pages == 3
    assert backend.batch_get_v1(keys(3), indices(3)) == [True] * 3
    # No pool reports a page as present, so none is.
    assert backend.batch_exists_v2(keys(5), []).kv_hit_pages == 0
    assert backend.batch_exists(keys(5)) == 0


# Identity.


def test_ranks_have_folders_and_pages_of_their_own(host: Rig) -> None:
    found = PoolPages(host.host)
    alone = identity.Ranks.of(config())
    second = identity.Ranks.of(config(tp_rank=1, tp_size=2))
    stage = identity.Ranks.of(config(pp_rank=1, pp_size=2))
    assert [one.folder for one in (alone, second, stage)] == ["", "tp1", "pp1"]
    fields = [identity.pool_fields(one, "kv", found) for one in (alone, second, stage)]
    assert len({one["ranks"] for one in fields}) == 3


def test_every_rank_of_an_mla_model_stores_the_replicated_pages(
    make: Backends,
) -> None:
    ranks = identity.Ranks.of(config(is_mla_model=True, tp_rank=1, tp_size=2))
    pool = type("Latent", (), {})()
    assert ranks.of_pool("kv", pool).startswith("tp=replicated")
    assert ranks.of_pool("mamba", pool).startswith("tp=1/2")
    result = config(is_mla_model=True, tp_rank=1, tp_size=2)
    assert not result.is_storage_writer
    plugin.write_on_every_rank(result)
    assert result.is_storage_writer


@pytest.mark.parametrize("changed", [{"weights_fingerprint": "other"}, {"salt": "tenant"}], ids=str)
def test_other_weights_and_other_tenants_find_nothing(
    changed: dict[str, Any], make: Backends, host: Rig
) -> None:
    backend = make()
    noise(host, 2)
    assert backend.batch_set_v1(keys(2), indices(2)) == [True, True]
    backend.close()
    other = make(**changed)
    assert other.batch_exists(keys(2)) == 0
    other.close()
    assert make().batch_exists(keys(2)) == 2


def test_only_a_full_hex_key_is_used_as_its_own_hash() -> None:
    one = chain(1)[0]
    assert block_hash(one.hex()) == one
    other = {block_hash(text) for text in ("", "x" * 64, one.hex()[:-1], one.hex() + ".swa")}
    assert len({*other, one}) == 5


# The plugin.


def test_updated_weights_find_no_page_of_the_old_ones(
    make: Backends, host: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another_process_begins() -> None:
        state = plugin._State()
        state.registered = True
        monkeypatch.setattr(plugin, "_state", state)

    another_process_begins()
    backend = make()
    noise(host, 2)
    assert backend.batch_set_v1(keys(2), indices(2)) == [True, True]
    for number in range(3):
        plugin._renew_after_update(lambda: None)
        assert backend.batch_exists(keys(2)) == 0, number
        assert backend.batch_set_v1(keys(2), indices(2)) == [True, True]
    with pytest.raises(ZeroDivisionError):
        plugin._renew_after_update(lambda: 1 // 0)
    assert backend.batch_exists(keys(2)) == 0
    backend.close()
    later = make()
    assert later.batch_exists(keys(2)) == 0
    later.close()
    # The pages of the weights with which the process started are still theirs.
    another_process_begins()
    assert make().batch_exists(keys(2)) == 2


def test_the_backend_is_found_by_its_name() -> None:
    extra: dict[str, Any] = {"backend_name": "dalsegno", "path": "x"}
    plugin.name_backend(object, "dynamic", config(extra_config=extra), None)
    assert extra["module_path"] == "dalsegno.integrations.sglang"
    assert extra["class_name"] == "DalsegnoHiCache"
    other = {"backend_name": "other"}
    plugin.name_backend(object, "dynamic", config(extra_config=other), None)
    assert other == {"backend_name": "other"}


# Metrics.


def test_operations_are_counted(make: Backends, host: Rig) -> None:
    from prometheus_client import REGISTRY

    def total(name: str) -> float:
        return REGISTRY.get_sample_value(f"dalsegno_hicache_{name}") or 0.0

    backend, before = make(), total("loaded_bytes_total")
    noise(host, 3)
    backend.batch_set_v1(keys(3), indices(3))
    backend.batch_set_v1(keys(3), indices(3))
    backend.batch_exists(keys(5))
    backend.batch_get_v1(keys(4), indices(4))
    assert backend.counts() == {
        "stored_pages": 3,
        "stored_bytes": 3 * GEOMETRY.page_bytes,
        "present_pages": 3,
        "lookup_pages hit": 3,
        "lookup_pages miss": 2,
        "loaded_pages": 3,
        "loaded_bytes": 3 * GEOMETRY.page_bytes,
        "load_failed_pages": 1,
    }
    assert total("loaded_bytes_total") - before == 3 * GEOMETRY.page_bytes
    stats = backend.get_stats()
    assert (stats.backup_pgs, stats.prefetch_pgs) == ([3], [3])
    assert total("available") == 1
    assert total("capacity_bytes") == 32 << 20
    assert backend.get_stats().backup_pgs == []
