"""SGLang's hierarchical cache without a model: its own tree, controller and host pool.

It does what a server does between a prompt and the disk, on tensors of the CPU. Prompts are
inserted into the radix tree with their KV, copied to the host pool, backed up to storage by
SGLang's threads, and prefetched again. Tests compare bytes with it, and the bench times it.
SGLang's own unit tests use the same parts.

It needs SGLang and, on a machine without a GPU, the stand-ins of `tools/sglang_cpu`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from array import array
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock

import msgspec
import torch
from sglang.srt.mem_cache.base_prefix_cache import (
    CacheRequestHandle,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool
from sglang.srt.mem_cache.pool_host import base as pool_base
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.srt.runtime_context import get_parallel, get_server_args
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.test.kits.unified_radix_cache import fixtures
from sglang.test.kits.unified_radix_cache.config import CacheConfig

LAYOUTS = ("page_first", "page_first_direct", "page_head", "layer_first")
# With which of SGLang's ways of copying a layout goes.
_COPIES = {"page_first_direct": "direct"}
_POLL_S = 0.0005


def vouch_for_model() -> None:
    """Has SGLang's options name the model by a URL, for whose files `weights_fingerprint` stands.

    SGLang's parts run without a model here, and files that are not found are a doubt.
    """
    for name in ("model_path", "tokenizer_path"):
        msgspec.structs.force_setattr(get_server_args(), name, "bench://model")


@dataclass(frozen=True)
class Geometry:
    """What a page is made of, and how many fit.

    Attributes:
        layers: Layers of the model.
        heads: KV heads.
        head_dim: Numbers of a head.
        page_tokens: Tokens of a page.
        dtype: Name of the KV cache's dtype as torch has it.
        layout: One of `LAYOUTS`.
        tokens: Tokens of the device pool; the host pool has half as many again.
        latent: Numbers of a token's latent vector, as models with MLA have one; 0 for heads. An
            eighth as many for the position come with it.
    """

    layers: int = 2
    heads: int = 2
    head_dim: int = 16
    page_tokens: int = 4
    dtype: str = "bfloat16"
    layout: str = "page_first"
    tokens: int = 1024
    latent: int = 0

    @property
    def token_bytes(self) -> int:
        """Bytes of the KV of a token."""
        width = getattr(torch, self.dtype).itemsize
        numbers = self.latent + self.latent // 8 or 2 * self.heads * self.head_dim
        return int(self.layers * numbers * width)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self.token_bytes * self.page_tokens

    def device_pool(self, **given: Any) -> Any:
        """Makes the device pool of a model with MLA.

        Args:
            **given: What SGLang's tests make the pool of heads with.
        """
        for name in ("head_num", "head_dim"):
            del given[name]
        return MLATokenToKVPool(
            kv_lora_rank=self.latent, qk_rope_head_dim=self.latent // 8, **given
        )

    def config(self) -> CacheConfig:
        """Returns it as SGLang's tests describe a cache."""
        return CacheConfig(
            page_size=self.page_tokens,
            components=(ComponentType.FULL,),
            num_layers=self.layers,
            head_num=self.heads,
            head_dim=self.head_dim,
            dtype=getattr(torch, self.dtype),
            kv_size=self.tokens,
            max_context_len=self.tokens + 1024,
        )


@dataclass
class Prefetched:
    """What came of a prefetch.

    Attributes:
        tokens: Leading tokens that are in the host pool now.
        seconds: How long it took.
    """

    tokens: int
    seconds: float


class Rig:
    """A hierarchical cache, to which a storage backend can be attached.

    Attributes:
        geometry: What a page is.
        cache: SGLang's tree.
        controller: Its controller.
        host: Its host pool.
    """

    _requests = itertools.count()

    def __init__(self, geometry: Geometry) -> None:
        """Builds the cache, without storage."""
        self._closing = ExitStack()
        alone = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1}
        self._closing.enter_context(get_parallel().override(**alone))
        # SGLang leaves 10 GiB of the machine alone; these pools are small.
        pool_base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0
        self.geometry = geometry
        pool = geometry.device_pool if geometry.latent else fixtures.MHATokenToKVPool
        with mock.patch.object(fixtures, "MHATokenToKVPool", pool):
            made = fixtures.build_fixture(geometry.config())
        self.cache, self._allocator, self._requests_pool = made
        arguments = ServerArgs(
            model_path="dummy",
            page_size=geometry.page_tokens,
            hicache_io_backend=_COPIES.get(geometry.layout, "kernel"),
            hicache_mem_layout=geometry.layout,
            hicache_ratio=1.5,
            hicache_write_policy="write_through",
        )
        set_global_server_args_for_scheduler(arguments)
        vouch_for_model()
        self.cache.init_hicache(arguments, self.cache.cache_init_params)
        fixtures.drop_hicache_atexit_pin(self.cache)
        # Nothing is copied to the host pool unless it is asked for.
        self.cache.write_through_threshold = 1 << 30
        self.controller = self.cache.cache_controller
        self.host = self.controller.storage_host_pool

    def attach(self, backend: str, extra: Mapping[str, Any]) -> Any:
        """Attaches a storage backend, as SGLang does at run time; returns it.

        Args:
            backend: SGLang's name of it.
            extra: Its extra configuration.

        Raises:
            RuntimeError: SGLang refuses; the message says why.
        """
        settings = {
            "prefetch_threshold": self.geometry.page_tokens,
            "hicache_storage_pass_prefix_keys": True,
            **extra,
        }
        done, message = self.cache.attach_storage_backend(
            backend,
            storage_backend_extra_config_json=json.dumps(settings),
            hicache_storage_prefetch_policy="wait_complete",
        )
        if not done:
            raise RuntimeError(message)
        return self.controller.storage_backend

    @property
    def backend(self) -> Any:
        """The attached storage backend."""
        return self.controller.storage_backend

    def detach(self) -> None:
        """Detaches the backend, as SGLang does at run time.

        Raises:
            RuntimeError: SGLang cannot; the message says why.
        """
        done, message = self.cache.detach_storage_backend()
        if not done:
            raise RuntimeError(message)

    def flush(self) -> None:
        """Empties device and host, as `/flush_cache` does; storage stays as it is."""
        self.cache.reset()
        self._requests_pool.clear()
        self._allocator.clear()

    def close(self) -> None:
        """Detaches the backend if there is one, and lets go."""
        if self.controller.enable_storage:
            self.detach()
        self._closing.close()

    # Prompts.

    def insert(self, tokens: Sequence[int], seed: int) -> str:
        """Puts a prompt with random KV into the device pool and the tree; returns its digest."""
        indices = self._allocator.alloc(len(tokens))
        assert indices is not None, "the device pool is too small for this prompt"
        random = torch.Generator().manual_seed(seed)
        pool = self._allocator.get_kvcache()
        for layer in range(self.geometry.layers):
            for buffer in (pool.get_key_buffer(layer), pool.get_value_buffer(layer)):
                shape = (len(tokens), *buffer.shape[1:])
                size = len(tokens) * buffer[0].numel() * buffer.element_size()
                words = torch.randint(-(1 << 63), (1 << 63) - 1, (-(-size // 8),), generator=random)
                noise = words.view(torch.uint8)[:size]
                buffer[indices] = noise.view(buffer.dtype).reshape(shape)
        self.cache.insert(InsertParams(key=_key(tokens), value=indices))
        return self.digest(indices)

    def digest(self, indices: torch.Tensor) -> str:
        """Returns a hash of what the device pool holds in some places."""
        pool, sha = self._allocator.get_kvcache(), hashlib.sha256()
        for layer in range(self.geometry.layers):
            for buffer in (pool.get_key_buffer(layer), pool.get_value_buffer(layer)):
                sha.update(buffer[indices].contiguous().view(torch.uint8).numpy())
        return sha.hexdigest()

    def to_host(self, tokens: Sequence[int]) -> None:
        """Copies a prompt's KV into the host pool, and not yet from there into storage."""
        attached, self.cache.enable_storage = self.cache.enable_storage, False
        for node in self._nodes(tokens):
            fixtures.write_backup(self.cache, node, write_back=True)
            self.cache.writing_check(write_back=True)
        self.cache.enable_storage = attached

    def to_storage(self, tokens: Sequence[int]) -> float:
        """Backs a prompt up from the host pool; returns the seconds until SGLang knows."""
        started = time.perf_counter()
        for node in self._nodes(tokens):
            self.cache.write_backup_storage(node)
        while self.cache.ongoing_backup:
            self.cache.drain_storage_control_queues()
            time.sleep(_POLL_S)
        return time.perf_counter() - started

    def _nodes(self, tokens: Sequence[int]) -> list[Any]:
        """Returns the nodes of a prompt, from the root on."""
        node = self.cache.match_prefix(MatchPrefixParams(key=_key(tokens))).last_device_node
        root, found = self.cache.root_node_handle(), []
        while node != root:
            found.append(node)
            node = fixtures.node_parent(self.cache, node)
        return found[::-1]

    def prefetch(self, tokens: Sequence[int]) -> Prefetched:
        """Brings a prompt from storage into the host pool."""
        request = CacheRequestHandle(f"rig-{next(self._requests)}", 0)
        started = time.perf_counter()
        root = self.cache.root_node_handle()
        self.cache.prefetch_from_storage(request, root, array("q", tokens), None, None)
        while True:
            self.cache.check_hicache_events()
            if self.cache.check_prefetch_progress(request):
                break
            time.sleep(_POLL_S)
        seconds = time.perf_counter() - started
        match = self.cache.match_prefix(MatchPrefixParams(key=_key(tokens)))
        return Prefetched(int(match.host_hit_length), seconds)

    def to_device(self, tokens: Sequence[int]) -> str:
        """Loads a prompt from the host into the device pool; returns its digest there."""
        match = self.cache.match_prefix(MatchPrefixParams(key=_key(tokens)))
        self.cache.load_back(match.last_host_node)
        self.cache.ready_to_load_host_cache()
        self.cache.loading_check()
        match = self.cache.match_prefix(MatchPrefixParams(key=_key(tokens)))
        return self.digest(self.cache.path_device_indices(match.last_device_node))


def _key(tokens: Sequence[int]) -> RadixKey:
    """Returns a prompt as the tree takes it."""
    return RadixKey(array("q", tokens))
