"""Caches of several pools (sliding windows, Mamba states) through SGLang's own tree and controller.

The cache, its pools and how prompts come into it are those of SGLang's own unit tests. A spy beside
the backend compares the bytes of every page that is loaded with those that were stored.
"""

from __future__ import annotations

import json
import unittest
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang")

import torch
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, MatchPrefixParams
from sglang.srt.mem_cache.pool_host import base as pool_base
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.srt.runtime_context import get_parallel
from sglang.test.kits.unified_radix_cache.config import CacheConfig
from sglang.test.kits.unified_radix_cache.fixtures import build_fixture, match_prefix
from sglang.test.kits.unified_radix_cache.storage import UnifiedRadixCacheStorageFixtures
from tests.integration.sglang.backend_rig import LOADS_ALL

from dalsegno.integrations.sglang.pools import PoolPages, byte_view
from dalsegno.integrations.sglang.settings import CLASS, MODULE
from dalsegno_bench.sglang.rig import vouch_for_model

pytestmark = pytest.mark.engine
FULL, SWA, MAMBA = ComponentType.FULL, ComponentType.SWA, ComponentType.MAMBA
PAGES = 6

CONFIGS = {
    "windows of one token": CacheConfig(page_size=1, components=(FULL, SWA), sliding_window_size=4),
    "windows": CacheConfig(page_size=4, components=(FULL, SWA), sliding_window_size=8),
    "long windows": CacheConfig(
        page_size=16, components=(FULL, SWA), sliding_window_size=16, kv_size=512
    ),
    "states": CacheConfig(
        page_size=4,
        components=(FULL, MAMBA),
        enable_mamba_extra_buffer=True,
        mamba_cache_size=60,
    ),
    "states of long pages": CacheConfig(
        page_size=64,
        components=(FULL, MAMBA),
        enable_mamba_extra_buffer=True,
        mamba_cache_size=60,
        kv_size=1024,
        max_context_len=1024,
    ),
}


class Spy:
    """Looks at the memory of every page that goes through a backend."""

    def __init__(self, stored: dict[tuple[str, str], bytes]) -> None:
        self.stored = stored
        self.loaded: dict[str, int] = {}

    def watch(self, backend: Any) -> None:
        """Stands between SGLang and a backend."""
        set_v1, get_v1 = backend.batch_set_v1, backend.batch_get_v1
        set_v2, get_v2 = backend.batch_set_v2, backend.batch_get_v2

        def sets(keys: Any, indices: Any, extra: Any = None) -> Any:
            self._note(backend, "kv", keys, indices)
            return set_v1(keys, indices, extra)

        def gets(keys: Any, indices: Any, extra: Any = None) -> Any:
            done = get_v1(keys, indices, extra)
            self._compare(backend, "kv", keys, indices, done)
            return done

        def sets_v2(transfers: Any, extra_info: Any = None) -> Any:
            for one in transfers:
                self._note(backend, str(one.name), one.keys, one.host_indices)
            return set_v2(transfers, extra_info)

        def gets_v2(transfers: Any, extra_info: Any = None) -> Any:
            done = get_v2(transfers, extra_info)
            for one in transfers:
                name = str(one.name)
                self._compare(backend, name, one.keys, one.host_indices, done[one.name])
            return done

        backend.batch_set_v1, backend.batch_get_v1 = sets, gets
        backend.batch_set_v2, backend.batch_get_v2 = sets_v2, gets_v2

    def _pages(self, backend: Any, name: str, indices: Any) -> Iterator[bytes]:
        pages: PoolPages = backend._spaces.pools[name]
        for at in indices[:: pages.page_tokens].tolist():
            yield bytes(byte_view(pages.pool.get_data_page(at, flat=True).contiguous()))

    def _note(self, backend: Any, name: str, keys: Any, indices: Any) -> None:
        for key, page in zip(keys, self._pages(backend, name, indices), strict=True):
            self.stored[name, key] = page

    def _compare(self, backend: Any, name: str, keys: Any, indices: Any, done: Any) -> None:
        pages = self._pages(backend, name, indices)
        for key, page, there in zip(keys, pages, done, strict=True):
            if there:
                assert self.stored[name, key] == page, (name, key)
                self.loaded[name] = self.loaded.get(name, 0) + 1


class Machine(UnifiedRadixCacheStorageFixtures, unittest.TestCase):  # type: ignore[misc]
    """A cache of SGLang's unit tests with our backend."""

    __test__ = False

    def runTest(self) -> None:  # noqa: N802 - unittest's name
        """Is not called."""

    def start(self, cfg: CacheConfig, path: Path, spy: Spy, **extra: Any) -> None:
        """Builds the cache with noise in all of its pools, and attaches the backend."""
        self.cfg = cfg
        pool_base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0
        alone = get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1)
        alone.__enter__()
        self.addCleanup(alone.__exit__, None, None, None)
        self.cache, self.allocator, self.requests = build_fixture(cfg)
        self._init_hicache(self.cache)
        vouch_for_model()
        settings = {
            "backend_name": "dalsegno",
            "module_path": MODULE,
            "class_name": CLASS,
            "path": str(path),
            "capacity": "64MiB",
            "weights_fingerprint": "w",
            "prefetch_threshold": 1,
            "hicache_storage_pass_prefix_keys": True,
            **LOADS_ALL,
            **extra,
        }
        done, message = self.cache.attach_storage_backend(
            "dynamic",
            storage_backend_extra_config_json=json.dumps(settings),
            hicache_storage_prefetch_policy="wait_complete",
        )
        assert done, message
        controller = self.cache.cache_controller
        controller.prefetch_capacity_limit = controller.mem_pool_host.size
        self.backend = controller.storage_backend
        spy.watch(self.backend)

    def stop(self) -> None:
        """Detaches the backend and gives everything back."""
        done, message = self.cache.detach_storage_backend()
        assert done, message
        self.doCleanups()

    def noise(self) -> None:
        """Fills what the device holds with random bytes."""
        mamba = getattr(self.requests, "mamba_pool", None)
        for pool in (self.allocator.get_kvcache(), mamba):
            for tensor in _tensors(pool):
                tensor.view(torch.uint8).random_(0, 256)

    def produce(self, tokens: list[int]) -> None:
        """Takes a prompt through the host pools into storage."""
        self.noise()
        self._insert(self.cache, self.allocator, self.requests, tokens)
        leaf = match_prefix(self.cache, tokens).last_device_node
        attached, self.cache.enable_storage = self.cache.enable_storage, False
        self._backup_node(self.cache, leaf)
        self.cache.enable_storage = attached
        self._write_path_to_l3(self.cache, leaf)
        self._flush_l3_backups(self.cache)

    def consume(self, tokens: list[int]) -> Any:
        """Prefetches a prompt; returns what the tree finds of it then."""
        request = CacheRequestHandle("r", 0)
        root = self.cache.root_node_handle()
        self.cache.prefetch_from_storage(request, root, array("q", tokens), None, None)
        self._run_prefetch_to_completion(self.cache, request)
        return self.cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", tokens))))


def _tensors(value: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    """Yields the tensors with KV or states that are reachable from a device pool."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and value.is_contiguous():
            yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one, depth - 1)
    elif depth and hasattr(value, "__dict__"):
        for one in vars(value).values():
            yield from _tensors(one, depth - 1)


@pytest.mark.parametrize("name", CONFIGS)
def test_all_pools_of_a_prompt_come_back_byte_for_byte(name: str, tmp_path: Path) -> None:
    cfg, spy = CONFIGS[name], Spy({})
    tokens = list(range(1, 1 + PAGES * cfg.page_size))
    producer = Machine()
    producer.start(cfg, tmp_path / "store", spy)
    producer.produce(tokens)
    producer.stop()
    other = "mamba" if cfg.has_mamba else "swa"
    assert {pool for pool, _ in spy.stored} == {"kv", other}

    consumer = Machine()
    consumer.start(cfg, tmp_path / "store", spy)
    match = consumer.consume(tokens)
    assert match.host_hit_length == len(tokens)
    assert spy.loaded["kv"] == PAGES
    assert spy.loaded[other] >= 1
    hits = match.mamba_host_hit_length if cfg.has_mamba else match.swa_host_hit_length
    assert hits > 0
    assert consumer.backend.counts()["lookup_pages hit"] == PAGES
    assert not any(name.startswith("errors") for name in consumer.backend.counts())
    consumer.stop()


@pytest.mark.parametrize("name", ["windows", "states"])
def test_a_prefix_without_its_state_is_a_miss(name: str, tmp_path: Path) -> None:
    """What the other pool has lost must not be restored from the KV alone."""
    cfg, spy = CONFIGS[name], Spy({})
    tokens = list(range(1, 1 + PAGES * cfg.page_size))
    producer = Machine()
    producer.start(cfg, tmp_path / "store", spy)
    producer.produce(tokens)
    other = "mamba" if cfg.has_mamba else "swa"
    assert producer.backend._spaces.of(other).remove() > 0
    producer.stop()

    consumer = Machine()
    consumer.start(cfg, tmp_path / "store", spy)
    match = consumer.consume(tokens)
    assert match.host_hit_length == 0
    assert spy.loaded == {}
    consumer.stop()
