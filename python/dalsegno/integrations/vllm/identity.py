"""Who may share blocks: the fields of a namespace, from what vLLM knows.

A block hash of vLLM covers the tokens, LoRA name, images and salt of a prompt, but nothing of the
model. These fields cover the rest. Two ways lead here:

* `engine_identity`: from vLLM's whole configuration, which `DalsegnoConnector` has;
* `folder_identity`: from the model's folder, for `DalsegnoTier` under vLLM's own connector. That
  connector hides options that change the KV (`HIDDEN_OPTIONS`): the operator vouches
  for them with `options_fingerprint`, or is refused.

1. What cannot be established is refused (`IncompatibleError`), never guessed.
2. What differs from run to run by design (random weights, scales found while running) gets a
   random field: then nothing is shared between processes.
3. Long values are hashed: a field has at most 1,024 bytes and all of them fit into a sector.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import vllm
from vllm.platforms import current_platform

from dalsegno import IncompatibleError
from dalsegno.integrations.common.fields import digest, nonce, rope_depends_on_length
from dalsegno.integrations.common.fingerprint import hash_files, local_model, weights_fingerprint
from dalsegno.integrations.vllm import compat

# The block hashes of vLLM that are cryptographic; others collide on purpose.
HASH_ALGORITHMS = ("sha256", "sha256_cbor")
# Ways of loading that read the files of the model's folder and nothing else.
LOCAL_FORMATS = (
    "auto",
    "bitsandbytes",
    "fastsafetensors",
    "gguf",
    "hf",
    "instanttensor",
    "mistral",
    "npcache",
    "pt",
    "safetensors",
)
# What changes the values or the layout of the KV, and is not in vLLM's `OffloadingConfig`.
HIDDEN_OPTIONS = "--quantization, --hf-overrides, --attention-backend or LoRA adapters"
_CONFIG_NOISE = ("_name_or_path", "transformers_version")


def machine_fields() -> dict[str, str]:
    """Returns what the bytes of a block owe to this machine and this vLLM."""
    fields = {
        "engine": f"vllm {vllm.__version__}",
        "device": str(current_platform.get_device_name() or platform.machine()),
        "attention_env": os.environ.get("VLLM_ATTENTION_BACKEND", ""),
    }
    if current_platform.is_cpu():
        import torch

        # The same two questions by which vLLM's CPU backend chooses its layout.
        amx = torch.cpu._is_amx_tile_supported()  # noqa: SLF001
        wide = torch.cpu._is_avx512_supported()  # noqa: SLF001
        fields["isa"] = f"{platform.machine()} amx={amx:d} avx512={wide:d}"
        # CPU vLLM calls the processor "cpu"; which one it is does not change the layout.
        fields["device"] = "cpu"
    return fields


def _weights(model_config: Any, load_config: Any, stated: str) -> str:
    """Returns the fingerprint of the weights that vLLM loaded."""
    if stated:
        return f"stated:{stated}"
    load_format = str(getattr(load_config.load_format, "value", load_config.load_format))
    if load_format == "dummy":
        return f"random:{nonce()}"
    if load_format not in LOCAL_FORMATS:
        raise IncompatibleError(
            f"vLLM loads the weights with load_format {load_format!r}, which this version of "
            f"Dalsegno cannot fingerprint; set weights_fingerprint to say what they are"
        )
    name = getattr(model_config, "model_weights", "") or model_config.model
    return weights_fingerprint(local_model(name, model_config.revision, load_config.download_dir))


def _model_fields(prefix: str, model_config: Any, load_config: Any, stated: str) -> dict[str, str]:
    """Returns the fields of one model: the served one, or a draft."""
    config = model_config.hf_config.to_dict()
    for name in _CONFIG_NOISE:
        config.pop(name, None)
    fields = {
        "model": Path(model_config.model).name,
        "revision": f"{model_config.revision or ''} {model_config.code_revision or ''}".strip(),
        "weights": _weights(model_config, load_config, stated),
        "config": digest(config),
        "dtype": str(model_config.dtype).removeprefix("torch."),
        "quantization": str(model_config.quantization or ""),
    }
    if rope_depends_on_length(config):
        fields["max_model_len"] = str(model_config.max_model_len)
    return {f"{prefix}{name}": value for name, value in fields.items()}


def _cache_fields(vllm_config: Any) -> dict[str, str]:
    """Returns the fields of the KV cache: how its bytes are computed and laid out."""
    cache = vllm_config.cache_config
    algorithm = str(cache.prefix_caching_hash_algo)
    if algorithm not in HASH_ALGORITHMS:
        raise IncompatibleError(
            f"vLLM's prefix_caching_hash_algo is {algorithm!r}, whose hashes can collide; "
            f"use {' or '.join(HASH_ALGORITHMS)}"
        )
    attention = getattr(vllm_config, "attention_config", None)
    fields = {
        "hash": algorithm,
        "cache_dtype": " ".join(
            str(getattr(cache, name, ""))
            for name in ("cache_dtype", "mamba_cache_dtype", "mamba_ssm_cache_dtype")
        ),
        "cache_skip": ",".join(getattr(cache, "kv_cache_dtype_skip_layers", ())),
        "backend": " ".join(
            str(getattr(attention, name, "")) for name in ("backend", "backend_per_kind")
        ),
    }
    if getattr(cache, "calculate_kv_scales", False):
        fields["scales"] = f"random:{nonce()}"
    return fields


def engine_identity(vllm_config: Any, kv_cache_config: Any, stated: str = "") -> dict[str, str]:
    """Returns the fields that vLLM's whole configuration gives.

    The first call for a model reads every byte of its weights (269 MB take about a quarter of a
    second, larger models as long as their files take to read); later ones read the file times.

    Args:
        vllm_config: vLLM's configuration.
        kv_cache_config: Its KV-cache groups.
        stated: Fingerprint of the weights that the user vouches for; the files decide if empty.

    Raises:
        IncompatibleError: Something that the fields need cannot be established.
        UnavailableError: A weight file cannot be read.
    """
    load = vllm_config.load_config
    fields = {"source": "engine", **machine_fields(), **_cache_fields(vllm_config)}
    fields |= _model_fields("", vllm_config.model_config, load, stated)
    draft = getattr(getattr(vllm_config, "speculative_config", None), "draft_model_config", None)
    if draft is not None and draft.model != vllm_config.model_config.model:
        fields |= _model_fields("draft_", draft, load, "")
    specs = [
        [repr(group.kv_cache_spec), list(group.layer_names)]
        for group in kv_cache_config.kv_cache_groups
    ]
    return {**fields, "cache_specs": digest(specs)}


def folder_identity(config: Any, stated: str = "", options: str = "") -> dict[str, str]:
    """Returns the fields that the model's folder gives.

    Args:
        config: vLLM's `OffloadingConfig`.
        stated: Fingerprint of the weights that the user vouches for; the files decide if empty.
        options: Fingerprint of the options that vLLM hides, for which the user vouches.

    Raises:
        IncompatibleError: Nobody vouches for the options, the model is no folder on this machine,
            or its KV depends on a setting that this way cannot see.
        UnavailableError: A file cannot be read.
    """
    if not options:
        raise IncompatibleError(
            f"under vLLM's own OffloadingConnector, DalsegnoTier cannot see whether engines differ "
            f"in {HIDDEN_OPTIONS}: use DalsegnoConnector, which sees them; or vouch for them with "
            f'"options_fingerprint", a text of yours that changes whenever one of them does'
        )
    folder = Path(config.model.name)
    settings = folder / "config.json"
    if not settings.is_file():
        raise IncompatibleError(
            f"DalsegnoTier does not know what model {config.model.name!r} is: under vLLM's own "
            f"OffloadingConnector it needs the path of a model folder with a config.json; use "
            f"DalsegnoConnector, which knows more"
        )
    try:
        content = json.loads(settings.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise IncompatibleError(f"{settings} cannot be read: {error}") from error
    if rope_depends_on_length(content):
        raise IncompatibleError(
            f"the rotary embedding of {folder.name} depends on max_model_len, which vLLM's own "
            f"OffloadingConnector hides; use DalsegnoConnector"
        )
    return {
        "source": "folder",
        **machine_fields(),
        "model": folder.name,
        "config": hash_files([settings])[settings],
        "weights": f"stated:{stated}" if stated else weights_fingerprint(folder),
        "options": f"stated:{options}",
    }


def namespace_fields(
    identity: Mapping[str, str], config: Any, number: int, row_bytes: int, salt: str
) -> dict[str, str]:
    """Returns all fields of the namespace of one KV-cache group.

    Args:
        identity: From `engine_identity` or `folder_identity`.
        config: vLLM's `OffloadingConfig`.
        number: Number of the group, as keys carry it.
        row_bytes: Size of a row of the primary tier.
        salt: The tenant's salt.
    """
    group, parallel = compat.groups(config)[number], config.parallel
    sizes = {
        name: getattr(parallel, name)
        for name in ("world_size", "tp_size", "pp_size", "pcp_size", "dcp_size")
    }
    others = [list(one.layer_names) for one in config.groups]
    return {
        **identity,
        "kv_dtype": config.model.dtype,
        "layout": compat.layout_name(config),
        "ranks": " ".join(f"{name}={value}" for name, value in sizes.items()),
        "copies": f"replicated={config.replicated_layout} canonical={config.canonical_layout}",
        "chunk": f"{group.tokens_per_block}x{config.cache.blocks_per_chunk} tokens",
        "tokens_per_hash": str(config.cache.tokens_per_hash),
        "group": f"{number} of {len(config.groups)}",
        "layers": digest([list(group.layer_names), others]),
        "row_bytes": str(row_bytes),
        "worker_bytes": str(config.worker_kv_bytes_per_block),
        "salt": salt,
    }
