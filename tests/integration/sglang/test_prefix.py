"""`prefix_keys` of SGLang: what is in use is kept, and a warning if SGLang passes none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang")

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo
from tests.contract.subjects import chain
from tests.integration.sglang.backend_rig import LOADS_ALL

from dalsegno.integrations.sglang import DalsegnoHiCache
from dalsegno.integrations.sglang.settings import CLASS, MODULE
from dalsegno_bench.sglang.rig import Geometry, Rig

pytestmark = pytest.mark.engine
# 128 KiB a page: eight fit into a segment of 1 MiB.
GEOMETRY = Geometry(layers=4, heads=8, head_dim=64, page_tokens=16)
PAGES = 4
# 20 MiB into a store of 8 MiB.
PROMPTS = 40
SETTING = "hicache_storage_pass_prefix_keys"


def keys(prompt: str) -> list[str]:
    """SGLang's keys of pages that only this prompt has."""
    return [one.hex() for one in chain(PAGES, prompt)]


ROOT, NODE = keys("root"), keys("node")


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig(GEOMETRY)
    yield made
    made.close()


@pytest.fixture
def attach(rig: Rig, tmp_path: Path) -> Callable[..., DalsegnoHiCache]:
    """Attaches a backend with a small store."""

    def one(**more: Any) -> DalsegnoHiCache:
        named = {"backend_name": "dalsegno", "module_path": MODULE, "class_name": CLASS}
        sizes = {"capacity": "8MiB", "weights_fingerprint": "w", "path": str(tmp_path / "store")}
        backend: DalsegnoHiCache = rig.attach("dynamic", {**named, **sizes, **LOADS_ALL, **more})
        return backend

    return one


def store(backend: DalsegnoHiCache, of: list[str], prefix: list[str] | None) -> None:
    """Stores pages as SGLang does."""
    places = torch.arange(PAGES * GEOMETRY.page_tokens)
    info = HiCacheStorageExtraInfo(prefix_keys=prefix)
    assert backend.batch_set_v1(of, places, info) == [True] * PAGES


def tokens(number: int) -> list[int]:
    return [number * 10_000 + at for at in range(PAGES * GEOMETRY.page_tokens)]


def back_up(rig: Rig, number: int) -> None:
    """Has SGLang's own cache store a prompt."""
    rig.insert(tokens(number), seed=number)
    rig.to_host(tokens(number))
    rig.to_storage(tokens(number))


@pytest.mark.parametrize(("setting", "warnings"), [({SETTING: False}, 1), ({SETTING: True}, 0)])
def test_a_backend_warns_once_if_sglang_passes_no_prefix_keys(
    setting: dict[str, bool],
    warnings: int,
    rig: Rig,
    attach: Callable[..., DalsegnoHiCache],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "sglang.dalsegno"):
        for backends in (1, 2):
            attach(**setting)
            # Lookups at the start of a prompt come without prefix keys either way.
            rig.prefetch(tokens(10 * backends))
            back_up(rig, 10 * backends + 1)
            back_up(rig, 10 * backends + 2)
            said = [one for one in caplog.messages if f'"{SETTING}": true' in one]
            assert len(said) == backends * warnings
            rig.detach()


def behind_it(backend: DalsegnoHiCache, prompt: str) -> None:
    store(backend, keys(prompt), ROOT)


def a_lookup_that_finds_nothing(backend: DalsegnoHiCache, prompt: str) -> None:
    # SGLang matched the root and a node behind it, and leaves out the node.
    info = HiCacheStorageExtraInfo(prefix_keys=ROOT)
    assert backend.batch_exists(keys(f"{prompt} unknown"), info) == 0
    store(backend, keys(prompt), [])


def a_lookup_by_pools_that_finds_nothing(backend: DalsegnoHiCache, prompt: str) -> None:
    info = HiCacheStorageExtraInfo(prefix_keys=ROOT)
    assert backend.batch_exists_v2(keys(f"{prompt} unknown"), [], info).kv_hit_pages == 0
    store(backend, keys(prompt), [])


def a_lookup_that_finds_a_node(backend: DalsegnoHiCache, prompt: str) -> None:
    # SGLang matched the root only, and leaves it out.
    assert backend.batch_exists(NODE, HiCacheStorageExtraInfo(prefix_keys=None)) == PAGES
    store(backend, keys(prompt), [])


@pytest.mark.parametrize(
    "use",
    [
        behind_it,
        a_lookup_that_finds_nothing,
        a_lookup_by_pools_that_finds_nothing,
        a_lookup_that_finds_a_node,
    ],
)
def test_a_prefix_that_sglang_serves_from_its_own_memory_is_not_evicted(
    use: Callable[[DalsegnoHiCache, str], None], attach: Callable[..., DalsegnoHiCache]
) -> None:
    backend = attach()
    store(backend, ROOT, [])
    store(backend, NODE, ROOT)
    for number in range(PROMPTS):
        use(backend, f"prompt {number}")
    assert backend.batch_exists(keys("prompt 0")) == 0, "nothing was evicted"
    assert backend.batch_exists(ROOT) == PAGES
    assert backend.batch_exists(keys(f"prompt {PROMPTS - 1}")) == PAGES
