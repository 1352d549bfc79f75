"""SGLang's file backend for `dalsegno faultbench`, as SGLang's controller calls it by default."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig

# The backend imports it when it is made; here that would be once for each process.
from sglang.srt.mem_cache.storage.file import lru_file_evictor as _lru_file_evictor  # noqa: F401

from dalsegno_bench.faultbench.adapter import Adapter

__all__ = ["BoundedFiles", "Files"]

# What a get must write over: bytes that belong to no block.
POISON = 0x5A


class Files(Adapter):
    """The backend with its defaults: no bound."""

    settings: ClassVar[str] = "defaults, which set no bound"
    bounded: ClassVar[bool] = False
    temporary: ClassVar[tuple[str, ...]] = (".*.tmp",)

    def __init__(self, directory: Path, *, capacity_bytes: int, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        config = HiCacheStorageConfig(
            tp_rank=0,
            tp_size=1,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=False,
            enable_storage_metrics=False,
            is_page_first_layout=True,
            model_name="org/model",
            extra_config=self._extra(directory, capacity_bytes),
        )
        self._backend: Any = HiCacheFile(config)

    def _extra(self, directory: Path, capacity_bytes: int) -> dict[str, Any]:
        """Returns the backend's own configuration."""
        del capacity_bytes
        return {"file_storage_path": str(directory)}

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> list[bool]:
        """See :class:`Adapter`; like the controller, it gives a batch up at the first refusal."""
        kept = []
        for key, block in zip(keys, blocks, strict=True):
            page = torch.frombuffer(bytearray(block), dtype=torch.uint8)
            kept.append(bool(self._backend.set(key.hex(), page)))
            if not kept[-1]:
                break
        return kept + [False] * (len(keys) - len(kept))

    def exists(self, keys: Sequence[bytes]) -> list[bool]:
        """See :class:`Adapter`."""
        return [bool(self._backend.exists(key.hex())) for key in keys]

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See :class:`Adapter`; the controller takes an exception for a miss."""
        got: list[bytes | None] = []
        for key in keys:
            page = torch.full((self._block_bytes,), POISON, dtype=torch.uint8)
            try:
                there = self._backend.get(key.hex(), page)
            except Exception:  # noqa: BLE001 - whatever it is, the controller goes on
                there = None
            got.append(None if there is None else page.numpy().tobytes())
        return got

    def close(self) -> None:
        """See :class:`Adapter`; there is nothing to close."""


class BoundedFiles(Files):
    """The same with the bound that can be set."""

    settings: ClassVar[str] = "max_size is set"
    bounded: ClassVar[bool] = True

    def _extra(self, directory: Path, capacity_bytes: int) -> dict[str, Any]:
        return {"file_storage_path": str(directory), "max_size": capacity_bytes}
