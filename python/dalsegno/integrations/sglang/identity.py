"""Who may share pages: the fields of a namespace, from what SGLang knows.

A page hash of SGLang covers the tokens, the name of the LoRA adapter and the salt of a prompt, but
nothing of the model. These fields cover the rest: the model, its weights and configuration, how its
KV is computed and laid out, and which part of it a rank holds.

1. What cannot be established is refused (`IncompatibleError`), never guessed.
2. What differs from run to run by design (random weights) gets a random field: then nothing is
   shared between processes.
3. Long values are hashed: a field has at most 1,024 bytes and all of them fit into a sector.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sglang
import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.runtime_context import get_parallel, get_server_args

from dalsegno import IncompatibleError
from dalsegno.integrations.common.fields import digest, nonce, rope_depends_on_length
from dalsegno.integrations.common.fingerprint import hash_files, local_model, weights_fingerprint
from dalsegno.integrations.sglang.pools import PoolPages

MAMBA = str(PoolName.MAMBA)
# Ways of loading that read the files of the model's folder and nothing else.
LOCAL_FORMATS = (
    "auto",
    "bitsandbytes",
    "fastsafetensors",
    "gguf",
    "instanttensor",
    "layered",
    "mistral",
    "npcache",
    "pt",
    "safetensors",
)
# Options of the server that change what the KV holds, beside the model's files.
_MODEL_OPTIONS = (
    "custom_weight_loader",
    "dtype",
    "json_model_override_args",
    "kv_cache_dtype",
    "model_config_parser",
    "model_impl",
    "model_loader_extra_config",
    "modelopt_quant",
    "qsa_indexer_dtype",
    "quantization",
    "quantize_and_serve",
    "rl_quant_profile",
    "trust_remote_code",
)
_ATTENTION_OPTIONS = (
    "attention_backend",
    "decode_attention_backend",
    "dsa_prefill_backend",
    "linear_attn_backend",
    "linear_attn_prefill_backend",
    "mamba_backend",
    "mamba_ssm_dtype",
    "prefill_attention_backend",
    "prefill_kv_cache_dequant_dtype",
    "rl_on_policy_target",
)
_DRAFT_OPTIONS = (
    "speculative_algorithm",
    "speculative_draft_kv_cache_dtype",
    "speculative_draft_model_quantization",
    "speculative_draft_model_revision",
)


def _weights(args: Any, name: str, revision: str | None, load_format: str, stated: str) -> str:
    """Returns what stands for the weights of a model.

    Raises:
        IncompatibleError: Nothing does.
        UnavailableError: A file cannot be read.
    """
    if stated:
        return f"stated:{stated}"
    if load_format == "dummy":
        return f"random:{nonce()}"
    if load_format not in LOCAL_FORMATS:
        raise IncompatibleError(
            f"SGLang loads the weights with load_format {load_format!r}, which this version of "
            f"Dalsegno cannot fingerprint; set weights_fingerprint to say what they are"
        )
    return weights_fingerprint(local_model(name, revision, args.download_dir))


def _config(args: Any, stated: str) -> dict[str, str]:
    """Returns the fields of the model's configuration; none if its user vouches for the weights.

    Raises:
        IncompatibleError: There is no configuration.
        UnavailableError: It cannot be read.
    """
    try:
        file = local_model(args.model_path, args.revision, args.download_dir) / "config.json"
    except IncompatibleError:
        if stated:
            return {"context_length": str(args.context_length or "")}
        raise
    if not file.is_file():
        return {"context_length": str(args.context_length or "")}
    fields = {"config": hash_files([file])[file]}
    if rope_depends_on_length(json.loads(file.read_text(encoding="utf-8"))):
        fields["context_length"] = str(args.context_length or "")
    return fields


def _adapters(args: Any) -> str:
    """Returns what stands for the LoRA adapters that the server was started with.

    SGLang's hash covers their names and paths, not their weights. Adapters that are loaded later
    have names that no other process has.
    """
    found = {}
    for adapter in args.lora_paths or ():
        path = Path(str(getattr(adapter, "lora_path", adapter)))
        files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else []
        if not files:
            return f"unknown:{nonce()}"
        hashes = hash_files(files)
        found[path.name] = sorted((str(one.relative_to(path)), hashes[one]) for one in files)
    return digest(found) if found else ""


def _draft(args: Any) -> dict[str, str]:
    """Returns the fields of the draft model, none without speculation."""
    if not args.speculative_algorithm:
        return {}
    fields = {name: str(getattr(args, name, "")) for name in _DRAFT_OPTIONS}
    name = args.speculative_draft_model_path
    if name and name != args.model_path:
        revision = args.speculative_draft_model_revision
        load_format = args.speculative_draft_load_format or args.load_format
        fields["draft_weights"] = _weights(args, name, revision, load_format, "")
    return {"draft": digest(fields)}


def machine_fields() -> dict[str, str]:
    """Returns what the bytes of a page owe to this machine and this SGLang."""
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        device = f"cpu {platform.machine()}"
    return {"engine": f"sglang {sglang.__version__}", "device": device}


def engine_identity(salt: str = "", stated: str = "") -> dict[str, str]:
    """Returns the fields that all pools of this process share.

    The first call for a model reads every byte of its weights (269 MB take about a quarter of a
    second, larger models as long as their files take to read); later ones read the file times.

    Args:
        salt: The tenant's salt.
        stated: Fingerprint of the weights that the user vouches for; the files decide if empty.

    Raises:
        IncompatibleError: Something that the fields need cannot be established.
        UnavailableError: A weight file cannot be read.
    """
    args = get_server_args()
    options = {name: str(getattr(args, name, "")) for name in _MODEL_OPTIONS}
    scales = args.quantization_param_path
    if scales:
        options["kv_scales"] = hash_files([Path(scales)])[Path(scales)]
    return {
        **machine_fields(),
        "model": Path(args.model_path).name,
        "revision": str(args.revision or ""),
        "weights": _weights(args, args.model_path, args.revision, args.load_format, stated),
        **_config(args, stated),
        "options": digest(options),
        "attention": digest({name: str(getattr(args, name, "")) for name in _ATTENTION_OPTIONS}),
        "adapters": _adapters(args),
        **_draft(args),
        "salt": salt,
    }


def _replica() -> int:
    """Returns the number of this replica of the model, 0 if nobody has numbered any."""
    try:
        return int(get_parallel().dp_rank or 0)
    except RuntimeError:
        return 0


@dataclass(frozen=True)
class Ranks:
    """Which part of the model this process serves.

    Attributes:
        parts: Rank and size of each kind of parallelism.
        replicated: Whether every tensor-parallel rank holds the same KV, as with MLA.
        folder: Name of this process's folder in the directory; nothing if it is the only one.
    """

    parts: Mapping[str, str]
    replicated: bool
    folder: str

    @classmethod
    def of(cls, config: Any) -> Ranks:
        """Reads SGLang's `HiCacheStorageConfig`.

        One process owns a store, so each rank, and each replica, has a folder of its own.
        """
        kinds = [
            ("dp", _replica(), 1),
            ("adp", config.dp_rank, 1),
            ("tp", config.tp_rank, config.tp_size),
            ("pp", config.pp_rank, config.pp_size),
            ("cp", config.attn_cp_rank, config.attn_cp_size),
            ("dcp", config.dcp_rank, config.dcp_size),
        ]
        # Replicas hold the same KV, so they are no part of the identity; neither is a folder of
        # ranks that other fields contain.
        parts = {kind: f"{rank}/{size}" for kind, rank, size in kinds[2:]}
        named = [(kind, rank) for kind, rank, size in kinds[:5] if size > 1 or rank]
        folder = "-".join(f"{kind}{rank}" for kind, rank in named)
        return cls(parts, bool(config.is_mla_model), folder)

    def of_pool(self, name: str, pool: Any) -> str:
        """Returns which part of the model's cache a host pool of this process holds."""
        alike = self.replicated and name != MAMBA and not isinstance(pool, MHATokenToKVPoolHost)
        parts = {**self.parts, "tp": "replicated"} if alike else self.parts
        return " ".join(f"{kind}={rank}" for kind, rank in parts.items())


def pool_fields(ranks: Ranks, name: str, pages: PoolPages) -> dict[str, str]:
    """Returns the fields of the namespace of one host pool.

    Args:
        ranks: Which part of the model this process serves.
        name: The pool's name.
        pages: Its pages.
    """
    pool = pages.pool
    sizes = {
        item: str(getattr(pool, item, ""))
        for item in ("head_num", "head_dim", "v_head_dim", "kv_cache_dim", "layer_num")
    }
    return {
        "pool": f"{name} {type(pool).__name__}",
        "format": str(getattr(pool, "storage_format_tag", None) or ""),
        "layout": str(pool.layout),
        "kv_dtype": str(getattr(pool, "dtype", "")),
        "page_tokens": str(pages.page_tokens),
        "page": f"{pages.shape.form} {digest(pages.shape.parts)}",
        "sizes": digest(sizes),
        "layers": f"{getattr(pool, 'start_layer', 0)}-{getattr(pool, 'end_layer', 0)}",
        "ranks": ranks.of_pool(name, pool),
    }
