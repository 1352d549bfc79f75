"""A backend over a real host pool, without SGLang's tree: its keys, its pages and their bytes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolName
from tests.contract.subjects import chain

from dalsegno.integrations.sglang import DalsegnoHiCache
from dalsegno.integrations.sglang.pools import byte_view
from dalsegno_bench.sglang.rig import Geometry, Rig

GEOMETRY = Geometry(page_tokens=4)
# Tests of other things expect that every hit is loaded.
LOADS_ALL: dict[str, Any] = {"load_policy": "always", "keep_profile": False}


def config(**changes: Any) -> HiCacheStorageConfig:
    """SGLang's description of a rank: the only rank by default."""
    alone = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1}
    rest = {"attn_cp_rank": 0, "attn_cp_size": 1, "is_mla_model": False}
    result = {"enable_storage_metrics": True, "is_page_first_layout": True, "model_name": "m"}
    return HiCacheStorageConfig(**{**alone, **rest, **result, **changes})


def keys(count: int, prompt: str = "a") -> list[str]:
    """SGLang's keys of a prompt's pages."""
    return [one.hex() for one in chain(count, prompt)]


class Backends:
    """Makes backends over one host pool, all with the same directory.

    Attributes:
        opened: Closes them.
    """

    def __init__(self, path: Path, rig: Rig) -> None:
        self._path, self._rig, self.opened = path, rig, ExitStack()

    def __call__(self, ranks: dict[str, Any] | None = None, **extra: Any) -> DalsegnoHiCache:
        given = {
            "backend_name": "dalsegno",
            "path": str(self._path),
            "capacity": "32MiB",
            "weights_fingerprint": "w",
            **LOADS_ALL,
            **extra,
        }
        found = DalsegnoHiCache(config(extra_config=given, **(ranks or {})), {})
        self.opened.callback(found.close)
        found.register_mem_pool_host(self._rig.host)
        found.register_mem_host_pool_v2(self._rig.host, PoolName.KV)
        return found


def indices(count: int, first: int = 0) -> torch.Tensor:
    """The places of pages in the host pool."""
    tokens = GEOMETRY.page_tokens
    return torch.arange(first * tokens, (first + count) * tokens)


def noise(rig: Rig, count: int) -> list[bytes]:
    """Fills the first pages of the host pool; returns their bytes."""
    byte_view(rig.host.kv_buffer)[:] = torch.randint(
        0, 256, (rig.host.kv_buffer.nbytes,), dtype=torch.uint8
    ).numpy()
    return pages(rig, count)


def pages(rig: Rig, count: int, first: int = 0) -> list[bytes]:
    """The bytes of pages of the host pool."""
    found = (
        rig.host.get_data_page(int(at), flat=True)
        for at in indices(count, first)[:: GEOMETRY.page_tokens]
    )
    return [bytes(byte_view(page.contiguous())) for page in found]
