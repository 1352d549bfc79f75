"""Who may share pages: the fields of a namespace, from what SGLang knows.

A page hash of SGLang covers the tokens, the name of the LoRA adapter and the salt of a prompt, but
nothing of the model. These fields cover the rest: the model, its files and configuration, how its
KV is computed and laid out, and which part of it a rank holds.

1. Every file, option and variable counts, except those in `excluded.toml`.
2. What cannot be established gets a random field, and so does what differs from run to run by
   design (random weights): then nothing is shared between processes. The log says why.
3. Long values are hashed: a field has at most 1,024 bytes and all of them fit into a sector.
4. The log has a short hash of each field, and a file has one of each input (`report.py`).
"""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sglang
import torch
from sglang.srt import environ
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.runtime_context import get_parallel, get_server_args

from dalsegno.integrations.common import excluded, report
from dalsegno.integrations.common.fields import architectures, digest, hashed, nonce
from dalsegno.integrations.common.model_files import ModelFiles, is_weight
from dalsegno.integrations.common.options import Options, libraries, variables
from dalsegno.integrations.common.references import named_models
from dalsegno.integrations.sglang.pools import PoolPages

logger = logging.getLogger("sglang.dalsegno")

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
PLUGINS = ("sglang.srt.plugins",)
# Words in the path or name of a model or tokenizer by which SGLang chooses how to read its files.
# Those in lower case stand for words in upper case too.
NAMES = ("InternVL3_5", "eagle", "leanstral", "mistral-large-3", "mistral-small-4")
# Settings by which SGLang finds further weights of a model.
_NAMES_OF_MODELS = ("mm_vision_tower",)
# SGLang completes a folder with both from the base model that the first names.
_ADAPTER = ("head.pt", "adapter_config.json")
# Options by which the KV of a prompt comes from embeddings that another process computed.
_OTHER_ENCODERS = ("enable_mm_global_cache", "encoder_urls", "language_only")


def environment(files: ModelFiles) -> dict[str, object]:
    """Returns the variables of the environment that count."""
    lists = excluded.load(__package__)
    skipped = {**lists["environment"], **lists["other_environment"]}
    known = [name for name in vars(type(environ.envs)) if name.isupper()]
    return dict(variables(files, ("SGLANG_", "SGL_"), known, skipped))


def machine_fields(files: ModelFiles) -> dict[str, object]:
    """Returns what the bytes of a page owe to this machine, this SGLang and its libraries."""
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        device = f"cpu {platform.machine()}"
    return {
        "engine": f"sglang {sglang.__version__}",
        "device": device,
        "environment": environment(files),
        "libraries": libraries(PLUGINS),
    }


def _weights(files: ModelFiles, load_format: str, stated: str) -> str:
    """Returns what stands for weights that are not in files; empty if the files do."""
    if load_format == "dummy":
        if stated:
            logger.warning(
                "weights_fingerprint is ignored: load_format dummy draws other weights in each "
                "process, so nothing is shared"
            )
        return f"random:{nonce()}"
    if stated:
        return f"stated:{stated}"
    if load_format not in LOCAL_FORMATS:
        files.doubt(
            f"load_format {load_format!r} does not read the weights from the model's folder",
            "set weights_fingerprint to say what they are",
        )
    return ""


def _content(
    files: ModelFiles, args: Any, name: str, revision: str | None, weights: str
) -> dict[str, object]:
    """Returns the fields of the files of a model.

    Args:
        files: Reads them.
        args: SGLang's options.
        name: The model, as the option names it.
        revision: Its revision.
        weights: Stands for the weights if they are not in files; empty else.
    """
    found = files.of_name(name, revision, args.download_dir, stated=bool(weights))
    if not weights:
        files.expect_weights(name, found)
    if not _is_whole(found):
        files.doubt(
            f"the folder of {name!r} leaves its configuration to a base model",
            "serve the folder of a whole model",
        )
    parts: dict[str, object] = {}
    config = _config(files, name, revision)
    for part in named_models(config, _NAMES_OF_MODELS):
        parts[part] = files.part(part, args.download_dir)
    words = [*architectures(config), *_words(name)]
    if args.trust_remote_code:
        parts["code"] = files.code(name, revision, None)
        # Code of the model may ask what it is called.
        words.append(Path(name).name)
    return {
        "model": " ".join(words),
        "weights": weights or {k: v for k, v in found.items() if is_weight(k)},
        "files": {k: v for k, v in found.items() if not is_weight(k)},
        "parts": parts or "",
        # Rotary embeddings and attention temperatures depend on it.
        "context_length": str(args.context_length or ""),
    }


def _is_whole(found: Mapping[str, str]) -> bool:
    """Returns whether the files of a model say how it computes, as far as there are any."""
    if not found or any(name.endswith(".gguf") for name in found):
        return True
    has_config = not {"config.json", "params.json"}.isdisjoint(found)
    return has_config and not set(_ADAPTER) <= found.keys()


def _words(place: str) -> list[str]:
    """Returns the words in a path or name by which SGLang chooses how to read files."""
    return [word for word in NAMES if word in place or word in place.lower()]


def _config(files: ModelFiles, name: str, revision: str | None) -> object:
    """Returns the content of a model's `config.json`; None if there is none."""
    folder = files.folder(name, revision)
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8")) if folder else None
    except (OSError, ValueError):
        return None


def _adapters(files: ModelFiles, args: Any) -> object:
    """Returns what stands for the LoRA adapters that the server was started with.

    SGLang's hash covers their names and paths, not their weights. Adapters that are loaded later
    have names that no other process has.
    """
    found = {}
    for adapter in args.lora_paths or ():
        name, _, path = str(getattr(adapter, "lora_path", adapter)).rpartition("=")
        found[getattr(adapter, "lora_name", None) or name or path] = files.of_name(path)
    return found or ""


def _draft(files: ModelFiles, args: Any) -> dict[str, object]:
    """Returns the fields of the draft model, none without one."""
    name = args.speculative_draft_model_path
    if not args.speculative_algorithm or not name or name == args.model_path:
        return {}
    weights = _weights(files, args.speculative_draft_load_format or args.load_format, "")
    revision = args.speculative_draft_model_revision
    return {"draft": _content(files, args, name, revision, weights)}


def _doubt_sources(files: ModelFiles, args: Any, stated: str) -> None:
    """Notes doubts about what reaches the KV from other places than the model's files."""
    if getattr(args, "weight_cache_mode", "off") != "off" and not stated:
        files.doubt(
            "weight_cache_mode takes the weights from another process",
            "set weights_fingerprint to say what they are",
        )
    if getattr(args, "disaggregation_transfer_backend", "") == "fake":
        files.doubt("disaggregation_transfer_backend fake makes pages without content")
    for name in _OTHER_ENCODERS:
        if getattr(args, name, None):
            files.doubt(f"{name} takes embeddings from other processes")
    if environ.envs.SGLANG_USE_MODELSCOPE.get() and not Path(args.model_path).exists():
        files.doubt(
            "SGLANG_USE_MODELSCOPE is set, and ModelScope's cache is not known here",
            "give the path of the model's folder",
        )


def engine_options(files: ModelFiles, args: Any) -> object:
    """Returns every option of the server that counts."""
    return Options(files, excluded.load(__package__)["options"]).value(args)


def engine_identity(salt: str = "", stated: str = "") -> dict[str, str]:
    """Returns the fields that all pools of this process share.

    SGLang calls it after it has loaded the model. The first call for a model reads every byte of
    its files (269 MB take about a quarter of a second, larger models as long as their files take
    to read); later ones read the file times where those can be trusted.

    Args:
        salt: The tenant's salt.
        stated: Fingerprint of the weights that the user vouches for; the files decide if empty.
    """
    args, files = get_server_args(), ModelFiles()
    fields: dict[str, object] = {"salt": salt}
    try:
        fields |= _engine_fields(files, args, stated)
        known = hashed(fields)
    except Exception as error:  # noqa: BLE001 - a server starts as it would without a store
        files.doubt(f"SGLang's options cannot be read: {error!r}")
        fields, known = {"salt": salt}, {"salt": salt}
    doubts = files.certainty(logger)
    known |= doubts
    report.write(known, {**fields, **doubts})
    report.log(logger, str(args.model_path), known)
    return known


def _engine_fields(files: ModelFiles, args: Any, stated: str) -> dict[str, object]:
    """Returns the fields of the model, the options and the machine."""
    weights = _weights(files, args.load_format, stated)
    fields = {
        **machine_fields(files),
        **_content(files, args, args.model_path, args.revision, weights),
        "adapters": _adapters(files, args),
        **_draft(files, args),
    }
    if args.tokenizer_path and args.tokenizer_path != args.model_path:
        # Processors of images and sound use it too.
        files_of_tokenizer = files.of_name(args.tokenizer_path, args.revision, stated=True)
        fields["tokenizer"] = {"files": files_of_tokenizer, "words": _words(args.tokenizer_path)}
    _doubt_sources(files, args, stated)
    fields["options"] = engine_options(files, args)
    return fields


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
