"""Who may share blocks: the fields of a namespace, from what vLLM knows.

A block hash of vLLM covers the tokens, LoRA name, images and salt of a prompt, but nothing of the
model. These fields cover the rest. Two ways lead here:

* `engine_identity`: from vLLM's whole configuration, which `DalsegnoConnector` has;
* `folder_identity`: from the model's folder, for `DalsegnoTier` under vLLM's own connector. That
  connector hides options that change the KV (`HIDDEN_OPTIONS`): the operator vouches
  for them with `options_fingerprint`, or is refused.

1. Every file, option and variable counts, except those in `excluded.toml`.
2. What cannot be established gets a random field, and so does what differs from run to run by
   design (random weights, scales found while running): nothing is shared, and the log says why.
3. Long values are hashed: a field has at most 1,024 bytes and all of them fit into a sector.
4. The log has a short hash of each field, and a file has one of each input (`report.py`).
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import vllm
import vllm.envs
from vllm.logger import init_logger
from vllm.platforms import current_platform

from dalsegno import IncompatibleError
from dalsegno.integrations.common import excluded, report
from dalsegno.integrations.common.fields import (
    architectures,
    hashed,
    nonce,
    rope_depends_on_length,
)
from dalsegno.integrations.common.model_files import ModelFiles, is_weight
from dalsegno.integrations.common.options import Options, libraries, variables, without_noise
from dalsegno.integrations.common.references import named_models

logger = init_logger("vllm.dalsegno")

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
HIDDEN_OPTIONS = (
    "--quantization, --hf-overrides, --attention-backend, --max-model-len, --mm-processor-kwargs "
    "or LoRA adapters"
)
PLUGINS = ("vllm.general_plugins", "vllm.io_processor_plugins", "vllm.platform_plugins")


def environment(files: ModelFiles) -> dict[str, object]:
    """Returns the variables of the environment that count."""
    lists = excluded.load(__package__)
    skipped = {**lists["environment"], **lists["other_environment"]}
    known = getattr(vllm.envs, "environment_variables", {})
    return dict(variables(files, ("VLLM_",), known, skipped))


def machine_fields(files: ModelFiles) -> dict[str, object]:
    """Returns what the bytes of a block owe to this machine, this vLLM and its libraries."""
    fields: dict[str, object] = {
        "engine": f"vllm {vllm.__version__}",
        "device": str(current_platform.get_device_name() or platform.machine()),
        "environment": environment(files),
        "libraries": libraries(PLUGINS),
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


def _content_fields(content: Mapping[str, str], weights: str) -> dict[str, object]:
    """Returns what stands for a model's files.

    Args:
        content: The hash of each file, by its name.
        weights: Stands for the weights if they are not in files; empty else.
    """
    return {
        "weights": weights or {k: v for k, v in content.items() if is_weight(k)},
        "files": {k: v for k, v in content.items() if not is_weight(k)},
    }


def _weights(files: ModelFiles, load_config: Any, stated: str) -> str:
    """Returns what stands for weights that are not in files; empty if the files do."""
    load_format = str(getattr(load_config.load_format, "value", load_config.load_format))
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


def _model_fields(
    files: ModelFiles, model_config: Any, load_config: Any, stated: str
) -> dict[str, object]:
    """Returns the fields of one model: the served one, or a draft."""
    one, config = model_config, model_config.hf_config.to_dict()
    weights = _weights(files, load_config, stated)
    name = getattr(one, "model_weights", "") or one.model
    # vLLM copies the other files of an object store when it starts: the user vouches for them too.
    reader = files.vouched() if weights and "://" in name else files
    content: dict[str, str] = {}
    for place in dict.fromkeys((one.model, name)):
        content |= reader.of_name(
            place, one.revision, load_config.download_dir, stated=bool(weights)
        )
    if not weights:
        files.expect_weights(one.model, content)
    # Weights of parts that a model's configuration takes from other models.
    parts: dict[str, object] = {
        part: files.part(part, load_config.download_dir) for part in named_models(config)
    }
    if one.tokenizer and one.tokenizer != one.model:
        # Processors of images and sound use it too.
        parts["tokenizer"] = files.of_name(one.tokenizer, one.tokenizer_revision, stated=True)
    if one.trust_remote_code:
        parts["code"] = files.code(one.model, one.revision, one.code_revision)
    return {
        "model": _model(config, one.model if one.trust_remote_code else ""),
        **_content_fields(content, weights),
        "parts": parts or "",
        "config": without_noise(config),
        "dtype": str(one.dtype).removeprefix("torch."),
        "quantization": str(one.quantization or ""),
        "max_model_len": _longest_context(one),
    }


def _model(config: object, place: str | Path) -> str:
    """Returns what people know a model by, and its name if it has code, which may ask for it.

    vLLM computes the same KV whatever a folder is called.

    Args:
        config: The model's configuration.
        place: The folder of a model with code; empty else.
    """
    return " ".join([*architectures(config), Path(place).name]).strip()


def _longest_context(model_config: Any) -> str:
    """Returns what stands for `max_model_len`.

    Rotary embeddings, attention temperatures and budgets of image tokens depend on it. With `auto`
    vLLM builds the model with the length that the configuration gives, and later lowers the limit
    for requests to what fits into memory, which changes no block.
    """
    is_fitted = getattr(model_config, "original_max_model_len", None) == -1
    return "auto" if is_fitted else str(model_config.max_model_len)


def _doubt_sources(files: ModelFiles, vllm_config: Any) -> None:
    """Notes doubts about what reaches the KV from other places than the model's files."""
    multimodal = getattr(vllm_config.model_config, "multimodal_config", None)
    if getattr(multimodal, "mm_encoder_attn_dtype", None) == "fp8" and not getattr(
        multimodal, "mm_encoder_fp8_scale_path", None
    ):
        files.doubt(
            "the scales of mm_encoder_attn_dtype fp8 are found while the engine runs",
            "set mm_encoder_fp8_scale_path",
        )
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        files.doubt(
            "calculate_kv_scales finds scales while the engine runs",
            "use a model whose files have the scales",
        )
    encoders = getattr(vllm_config, "ec_transfer_config", None)
    if encoders is not None and encoders.is_ec_consumer:
        files.doubt("ec_transfer_config takes embeddings from another engine")
    if vllm.envs.VLLM_USE_MODELSCOPE and not Path(vllm_config.model_config.model).exists():
        files.doubt(
            "VLLM_USE_MODELSCOPE is set, and ModelScope's cache is not known here",
            "give the path of the model's folder",
        )


def engine_options(files: ModelFiles, vllm_config: Any) -> object:
    """Returns every option of vLLM's configuration that counts."""
    lists = excluded.load(__package__)
    of_others = lists["other_versions"]
    skipped = {
        name: {**lists["options"].get(name, {}), **of_others.get(name, {})}
        for name in {**lists["options"], **of_others}
    }
    return Options(files, skipped).value(vllm_config)


def _hash_algorithm(cache: Any) -> str:
    """Returns how vLLM makes block hashes.

    Raises:
        IncompatibleError: They can collide.
    """
    algorithm = str(cache.prefix_caching_hash_algo)
    if algorithm in HASH_ALGORITHMS:
        return algorithm
    raise IncompatibleError(
        f"vLLM's prefix_caching_hash_algo is {algorithm!r}, whose hashes can collide; "
        f"use {' or '.join(HASH_ALGORITHMS)}"
    )


def engine_identity(vllm_config: Any, kv_cache_config: Any, stated: str = "") -> dict[str, str]:
    """Returns the fields that vLLM's whole configuration gives.

    vLLM calls it after it has loaded the model. The first call for a model reads every byte of its
    files (269 MB take about a quarter of a second, larger models as long as their files take to
    read); later ones read the file times where those can be trusted.

    Args:
        vllm_config: vLLM's configuration.
        kv_cache_config: Its KV-cache groups.
        stated: Fingerprint of the weights that the user vouches for; the files decide if empty.

    Raises:
        IncompatibleError: vLLM's block hashes can collide.
    """
    algorithm, files = _hash_algorithm(vllm_config.cache_config), ModelFiles()
    try:
        fields = _engine_fields(files, vllm_config, kv_cache_config, stated)
        known = hashed(fields)
    except Exception as error:  # noqa: BLE001 - an engine starts as it would without a store
        files.doubt(f"vLLM's configuration cannot be read: {error!r}")
        fields, known = {}, {}
    own = {"source": "engine", "hash": algorithm, **files.certainty(logger)}
    report.write({**known, **own}, {**fields, **own})
    return {**known, **own}


def _engine_fields(
    files: ModelFiles, vllm_config: Any, kv_cache_config: Any, stated: str
) -> dict[str, object]:
    """Returns the fields that vLLM's whole configuration gives."""
    load = vllm_config.load_config
    fields = {
        **machine_fields(files),
        "cache_dtype": str(vllm_config.cache_config.cache_dtype),
        **_model_fields(files, vllm_config.model_config, load, stated),
    }
    speculative = getattr(vllm_config, "speculative_config", None)
    draft = getattr(speculative, "draft_model_config", None)
    if draft is not None and draft.model != vllm_config.model_config.model:
        of_draft = getattr(speculative, "draft_load_config", None) or load
        fields["draft"] = _model_fields(files, draft, of_draft, "")
    _doubt_sources(files, vllm_config)
    specs = [
        [repr(group.kv_cache_spec), list(group.layer_names)]
        for group in kv_cache_config.kv_cache_groups
    ]
    fields["options"] = engine_options(files, vllm_config)
    return {**fields, "cache_specs": specs}


def folder_identity(config: Any, stated: str = "", options: str = "") -> dict[str, str]:
    """Returns the fields that the model's folder gives.

    Args:
        config: vLLM's `OffloadingConfig`.
        stated: Fingerprint of the weights that the user vouches for; the files decide if empty.
        options: Fingerprint of the options that vLLM hides, for which the user vouches.

    Raises:
        IncompatibleError: Nobody vouches for the options, the model is no folder on this machine,
            or its KV depends on a setting that this way cannot see.
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
    files, weights = ModelFiles(), f"stated:{stated}" if stated else ""
    found = files.of_path(folder, stated=bool(stated))
    if not weights and not any(map(is_weight, found)):
        files.doubt(f"no weights are in {folder}")
    parts: dict[str, object] = {part: files.part(part) for part in named_models(content)}
    code = files.code(str(folder), None, None)
    fields = {
        "source": "folder",
        **machine_fields(files),
        # Whether vLLM runs the code is not known here.
        "model": _model(
            content, folder if code or any(name.endswith(".py") for name in found) else ""
        ),
        **_content_fields(found, weights),
        "parts": {**parts, "code": code},
        "options": f"stated:{options}",
    }
    fields |= files.certainty(logger)
    known = hashed(fields)
    report.write(known, fields)
    return known
