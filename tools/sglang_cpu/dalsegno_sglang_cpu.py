"""Lets SGLang's host pools copy between "device" and host memory where both are the CPU's.

SGLang imports these copies from a CUDA package only if there is a GPU, and has none for the CPU. A
hook puts functions of the same names and arguments into its modules as they are imported. Nothing
else of SGLang is touched, and nothing at all where a GPU is found.

`tools/env.py` installs this file into the environment of the tests, with a `.pth` file that
imports it when Python starts: SGLang's server runs in several processes.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = "sglang.srt.mem_cache.pool_host"
_MODULES = tuple(f"{_PACKAGE}.{name}" for name in ("common", "dsa", "mamba", "mha", "mla"))


# Tensors to tensors.


def transfer_kv_direct(
    src_layers: Sequence[Any],
    dst_layers: Sequence[Any],
    src_indices: Any,
    dst_indices: Any,
    page_size: int,
) -> None:
    """Copies tokens between layer-first tensors, `[tokens, ...]` each."""
    del page_size
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs: Sequence[Any],
    dst_ptrs: Sequence[Any],
    src_indices: Any,
    dst_indices: Any,
    layer_id: int,
    page_size: int,
) -> None:
    """Copies one layer from `[pages, layers, page tokens, ...]` to `[tokens, ...]`."""
    page, token = src_indices // page_size, src_indices % page_size
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        target[dst_indices] = source[page, layer_id, token]


def transfer_kv_all_layer_direct_lf_pf(
    src_ptrs: Sequence[Any],
    dst_ptrs: Sequence[Any],
    src_indices: Any,
    dst_indices: Any,
    page_size: int,
) -> None:
    """Copies all layers from `[tokens, ...]` each to `[pages, layers, page tokens, ...]`."""
    layers = len(src_ptrs) // len(dst_ptrs)
    page, token = dst_indices // page_size, dst_indices % page_size
    for number, target in enumerate(dst_ptrs):
        for layer in range(layers):
            target[page, layer, token] = src_ptrs[number * layers + layer][src_indices]


def transfer_kv_per_layer_mla(
    src: Any, dst: Any, src_indices: Any, dst_indices: Any, item_size: int, **_: Any
) -> None:
    """Copies tokens of one layer, one tensor."""
    del item_size
    dst[dst_indices] = src[src_indices]


def transfer_kv_per_layer_mla_pf_lf(
    src: Any, dst: Any, src_indices: Any, dst_indices: Any, layer_id: int, **_: Any
) -> None:
    """Copies one layer from `[tokens, layers, ...]`, one tensor."""
    dst[dst_indices] = src[src_indices, layer_id].reshape(dst[dst_indices].shape)


def transfer_kv_per_layer(src_k: Any, dst_k: Any, src_v: Any, dst_v: Any, **rest: Any) -> None:
    """Copies tokens of one layer, K and V."""
    transfer_kv_per_layer_mla(src_k, dst_k, **rest)
    transfer_kv_per_layer_mla(src_v, dst_v, **rest)


def transfer_kv_per_layer_pf_lf(
    src_k: Any, dst_k: Any, src_v: Any, dst_v: Any, **rest: Any
) -> None:
    """Copies one layer from `[tokens, layers, ...]`, K and V."""
    transfer_kv_per_layer_mla_pf_lf(src_k, dst_k, **rest)
    transfer_kv_per_layer_mla_pf_lf(src_v, dst_v, **rest)


def transfer_kv_per_layer_ph_lf(
    src_k: Any,
    dst_k: Any,
    src_v: Any,
    dst_v: Any,
    src_indices: Any,
    dst_indices: Any,
    layer_id: int,
    page_size: int,
    **_: Any,
) -> None:
    """Copies one layer from `[pages, heads, page tokens, layers, ...]`, K and V."""
    page, token = src_indices // page_size, src_indices % page_size
    for source, target in ((src_k, dst_k), (src_v, dst_v)):
        target[dst_indices] = source[page, :, token, layer_id]


# Tables of addresses to tensors: the layers of a device pool are identified by their addresses.


def _rows(address: Any, indices: Any, item_size: int) -> Any:
    """Returns the memory at an address as `[rows, item_size]` bytes, up to the last row used."""
    import torch

    count = int(indices.max()) + 1
    raw = (ctypes.c_uint8 * (count * item_size)).from_address(int(address))
    return torch.frombuffer(raw, dtype=torch.uint8).reshape(count, item_size)


def _bytes(tensor: Any, *shape: int) -> Any:
    """Returns a contiguous tensor's memory as bytes of a shape."""
    import torch

    return tensor.view(torch.uint8).reshape(*shape)


def transfer_kv_all_layer_mla(
    src_layers: Any, dst_layers: Any, src_indices: Any, dst_indices: Any, item_size: int, **_: Any
) -> None:
    """Copies tokens of all layers, one table of addresses on either side."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        rows = _rows(source, src_indices, item_size)[src_indices]
        _rows(target, dst_indices, item_size)[dst_indices] = rows


def transfer_kv_all_layer_mla_lf_pf(
    src_layers: Any,
    dst: Any,
    src_indices: Any,
    dst_indices: Any,
    item_size: int,
    num_layers: int,
    **_: Any,
) -> None:
    """Copies tokens of all layers into `[tokens, layers, ...]`, one tensor."""
    out = _bytes(dst, dst.shape[0], num_layers, item_size)
    for layer in range(num_layers):
        out[dst_indices, layer] = _rows(src_layers[layer], src_indices, item_size)[src_indices]


def transfer_kv_all_layer(
    src_k_layers: Any, dst_k_layers: Any, src_v_layers: Any, dst_v_layers: Any, **rest: Any
) -> None:
    """Copies tokens of all layers, K and V."""
    transfer_kv_all_layer_mla(src_k_layers, dst_k_layers, **rest)
    transfer_kv_all_layer_mla(src_v_layers, dst_v_layers, **rest)


def transfer_kv_all_layer_lf_pf(
    src_k_layers: Any, dst_k: Any, src_v_layers: Any, dst_v: Any, **rest: Any
) -> None:
    """Copies tokens of all layers into `[tokens, layers, ...]`, K and V."""
    transfer_kv_all_layer_mla_lf_pf(src_k_layers, dst_k, **rest)
    transfer_kv_all_layer_mla_lf_pf(src_v_layers, dst_v, **rest)


def transfer_kv_all_layer_lf_ph(
    src_k_layers: Any,
    dst_k: Any,
    src_v_layers: Any,
    dst_v: Any,
    src_indices: Any,
    dst_indices: Any,
    item_size: int,
    num_layers: int,
    page_size: int,
    head_num: int,
    **_: Any,
) -> None:
    """Copies tokens of all layers into `[pages, heads, page tokens, layers, ...]`, K and V."""
    page, token = dst_indices // page_size, dst_indices % page_size
    for sources, target in ((src_k_layers, dst_k), (src_v_layers, dst_v)):
        shape = (target.shape[0], head_num, page_size, num_layers, item_size // head_num)
        out = _bytes(target, *shape)
        for layer in range(num_layers):
            rows = _rows(sources[layer], src_indices, item_size)[src_indices]
            out[page, :, token, layer] = rows.reshape(len(src_indices), head_num, -1)


# Mamba states are laid out in host memory as pages of one token.


def transfer_kv_mamba_pf_lf(src: Any, dst: Any, **rest: Any) -> None:
    """Copies one layer's states from `[slots, layers, ...]`."""
    transfer_kv_per_layer_mla_pf_lf(src, dst, **rest)


def transfer_kv_mamba_lf_pf(src_ptrs: Any, dst: Any, **rest: Any) -> None:
    """Copies the states of all layers into `[slots, layers, ...]`."""
    transfer_kv_all_layer_mla_lf_pf(src_ptrs, dst, **rest)


COPIES = {name: item for name, item in globals().items() if name.startswith("transfer_kv_")}


# The hook.


class _Loader(importlib.abc.Loader):
    """Loads a module of SGLang's and adds what it lacks."""

    def __init__(self, real: importlib.abc.Loader) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        import torch

        if torch.cuda.is_available():
            return
        if module.__name__.endswith(".common"):
            # There is nobody to register memory with.
            vars(module)["_cuda_host_register"] = lambda *_, **__: None
            vars(module)["_cuda_host_unregister"] = lambda *_, **__: None
            return
        for name, copy in COPIES.items():
            vars(module).setdefault(name, copy)
        vars(module)["torch"] = _Torch()


class _Torch:
    """torch, but for pinned memory, which needs a GPU."""

    def __getattr__(self, name: str) -> Any:
        import torch

        made = getattr(torch, name)
        if name not in ("empty", "zeros"):
            return made

        def unpinned(*shape: Any, pin_memory: bool = False, **options: Any) -> Any:
            del pin_memory
            return made(*shape, **options)

        return unpinned


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of the host pools, and nothing else."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _MODULES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


if not Path("/dev/nvidiactl").exists():
    # By which SGLang knows that it is meant to run on the CPU.
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
sys.meta_path.insert(0, _Finder())
