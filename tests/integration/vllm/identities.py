"""vLLM's own configuration of engines that are never started, for tests of the identity."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import vllm.config

from dalsegno.integrations.common import excluded
from dalsegno.integrations.common.model_files import ModelFiles
from dalsegno.integrations.common.options import fields_of
from dalsegno.integrations.vllm import identity

GROUPS = SimpleNamespace(
    kv_cache_groups=[SimpleNamespace(kv_cache_spec="FullAttention(8)", layer_names=["l0"])]
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 8192,
    "torch_dtype": "float32",
}
LISTS = excluded.load("dalsegno.integrations.vllm")
# When an engine began to start: before every file changed, or after.
BEFORE_NS, AFTER_NS = 0, 1 << 62


def write_config(folder: Path) -> None:
    """Writes the configuration of a small model."""
    (folder / "config.json").write_text(json.dumps(CONFIG))


def create(folder: Path, **changes: Any) -> Any:
    """Has vLLM make its configuration of an engine with our connector."""
    from vllm.engine.arg_utils import EngineArgs

    transfer = vllm.config.KVTransferConfig(
        kv_connector="DalsegnoConnector",
        kv_role="kv_both",
        kv_connector_module_path="dalsegno.integrations.vllm",
        kv_connector_extra_config={"path": "/nowhere", "cpu_bytes_to_use": "1GiB"},
    )
    arguments: dict[str, Any] = {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "max_model_len": 4096,
        "kv_transfer_config": transfer,
        **changes,
    }
    return EngineArgs(**arguments).create_engine_config()


def in_folder(made: Any, folder: Path) -> Any:
    """Returns a copy of a configuration with the model in a folder, with weights."""
    (folder / "model.safetensors").write_bytes(b"weights")
    config = copy.deepcopy(made)
    config.model_config.model = config.model_config.tokenizer = str(folder)
    return config


def changed(config: Any, path: str, value: object) -> Any:
    """Returns a copy of a configuration with another value: `cache_config.cache_dtype`."""
    config = copy.deepcopy(config)
    *parents, name = path.split(".")
    one = config
    for parent in parents:
        one = getattr(one, parent)
    object.__setattr__(one, name, value)
    return config


def fields(config: Any, stated: str = "") -> dict[str, str]:
    """Returns the identity of an engine with a configuration."""
    return identity.engine_identity(config, GROUPS, stated)


def options_off(config: Any) -> set[str]:
    """Returns the options of a configuration that do not count."""
    lists = (LISTS["options"], LISTS["other_versions"])
    kinds = [kind.__name__ for kind in type(config).__mro__]
    return {name for one in lists for kind in kinds for name in one.get(kind, {})}


def parts(config: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every configuration in a configuration that counts, by its path."""
    skipped = options_off(config)
    if "*" in skipped:
        return
    yield where, config
    for name in fields_of(config):
        value = getattr(config, name, None)
        if name not in skipped and list(fields_of(value)):
            yield from parts(value, f"{where}.{name}".lstrip("."))


def options(config: Any) -> str:
    """Returns what counts of the options of a configuration."""
    return json.dumps(identity.engine_options(ModelFiles(), config))
