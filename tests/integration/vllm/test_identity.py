"""Who may share blocks: what every field of a namespace is made from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.integration.vllm import tiers

import dalsegno
from dalsegno.integrations.vllm import identity
from dalsegno.integrations.vllm.tier import DalsegnoTier
from dalsegno_bench.vllm.rig import parallel_config

pytestmark = pytest.mark.engine
GROUPS = SimpleNamespace(
    kv_cache_groups=[SimpleNamespace(kv_cache_spec="FullAttention(8)", layer_names=["l0"])]
)


class HfConfig:
    """As much of a Hugging Face configuration as is read."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def to_dict(self) -> dict[str, Any]:
        return {"_name_or_path": "x", "hidden_size": 8, **self.values}


def vllm_config(folder: Path, **changes: Any) -> Any:
    """vLLM's configuration; a change names a part and a field: `model_dtype`."""
    (folder / "model.safetensors").write_bytes(b"weights")
    parts: dict[str, dict[str, Any]] = {
        "model": {
            "model": str(folder),
            "revision": None,
            "code_revision": None,
            "hf_config": HfConfig(),
            "dtype": "torch.float32",
            "quantization": None,
            "max_model_len": 4096,
        },
        "cache": {
            "prefix_caching_hash_algo": "sha256",
            "cache_dtype": "auto",
            "calculate_kv_scales": False,
        },
        "load": {"load_format": "auto", "download_dir": None},
        "attention": {"backend": None, "backend_per_kind": {}},
    }
    for name, value in changes.items():
        part, _, field = name.partition("_")
        parts[part][field] = value
    made = {f"{name}_config": SimpleNamespace(**values) for name, values in parts.items()}
    return SimpleNamespace(**made, speculative_config=None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"hidden_size": 8}))
    return path


@pytest.mark.parametrize(
    "change",
    [
        {"model_dtype": "torch.bfloat16"},
        {"model_quantization": "fp8"},
        {"model_revision": "abc"},
        {"model_hf_config": HfConfig(rope_theta=7)},
        {"model_hf_config": HfConfig(rope_scaling={"rope_type": "longrope"})},
        {"cache_prefix_caching_hash_algo": "sha256_cbor"},
        {"cache_cache_dtype": "fp8"},
        {"cache_calculate_kv_scales": True},
        {"attention_backend": "FLASHINFER"},
        {"load_load_format": "dummy"},
    ],
)
def test_a_change_of_the_engine_makes_another_identity(
    folder: Path, change: dict[str, Any]
) -> None:
    usual = identity.engine_identity(vllm_config(folder), GROUPS)
    assert usual == identity.engine_identity(vllm_config(folder), GROUPS)
    assert usual != identity.engine_identity(vllm_config(folder, **change), GROUPS)
    assert sum(len(name) + len(value) for name, value in usual.items()) < 3000


def test_a_longer_context_matters_only_where_the_rotation_depends_on_it(folder: Path) -> None:
    def ident(length: int, **rope: Any) -> dict[str, str]:
        config = vllm_config(folder, model_max_model_len=length, model_hf_config=HfConfig(**rope))
        return identity.engine_identity(config, GROUPS)

    assert ident(4096) == ident(8192)
    default = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    assert ident(4096, **default) == ident(8192, **default)
    for rope in (
        {"rope_scaling": {"type": "dynamic", "factor": 2}},
        {"rope_parameters": {"full_attention": {"rope_type": "longrope"}}},
    ):
        assert ident(4096, **rope) != ident(8192, **rope)


def test_the_identity_depends_on_weights_and_not_on_folders(folder: Path, tmp_path: Path) -> None:
    usual = identity.engine_identity(vllm_config(folder), GROUPS)
    moved = tmp_path / "elsewhere" / "model"
    moved.mkdir(parents=True)
    assert identity.engine_identity(vllm_config(moved), GROUPS) == usual
    config = vllm_config(folder)
    (folder / "model.safetensors").write_bytes(b"Weights")
    assert identity.engine_identity(config, GROUPS)["weights"] != usual["weights"]
    stated = identity.engine_identity(config, GROUPS, "v7")
    assert stated["weights"] == "stated:v7"


def test_random_weights_share_no_block(folder: Path) -> None:
    config = vllm_config(folder, load_load_format="dummy")
    first = identity.engine_identity(config, GROUPS)
    assert first["weights"] != identity.engine_identity(config, GROUPS)["weights"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"cache_prefix_caching_hash_algo": "xxhash"}, "can collide"),
        ({"load_load_format": "runai_streamer"}, "load_format"),
        ({"model_model": "nobody/nothing-here"}, "not on this machine"),
    ],
)
def test_an_identity_that_cannot_be_established_is_refused(
    folder: Path, change: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(dalsegno.IncompatibleError, match=says):
        identity.engine_identity(vllm_config(folder, **change), GROUPS)


def test_the_identity_includes_the_draft_models_weights(folder: Path, tmp_path: Path) -> None:
    config = vllm_config(folder)
    usual = identity.engine_identity(config, GROUPS)
    draft = tmp_path / "draft"
    draft.mkdir()
    config.speculative_config = SimpleNamespace(draft_model_config=vllm_config(draft).model_config)
    fields = identity.engine_identity(config, GROUPS)
    assert fields["draft_weights"]
    assert fields != usual


def of_folder(name: object, options: str = "defaults") -> dict[str, str]:
    return identity.folder_identity(tiers.config(model=str(name)), options=options)


def test_a_folder_and_vouched_options_are_enough_for_the_plain_tier(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"weights")
    known = of_folder(folder)
    assert known["source"] == "folder"
    assert of_folder(folder) == known
    assert of_folder(folder, "fp8") != known
    (folder / "config.json").write_text(json.dumps({"hidden_size": 9}))
    assert of_folder(folder) != known


def test_the_plain_tier_refuses_what_it_cannot_see(folder: Path) -> None:
    with pytest.raises(dalsegno.IncompatibleError, match="use DalsegnoConnector"):
        of_folder("meta-llama/Llama-3.1-8B")
    (folder / "config.json").write_text(json.dumps({"rope_scaling": {"type": "longrope"}}))
    with pytest.raises(dalsegno.IncompatibleError, match="max_model_len"):
        of_folder(folder)


def test_regression_the_plain_tier_does_not_guess_hidden_options(
    folder: Path, tmp_path: Path, make_tier: Callable[..., DalsegnoTier]
) -> None:
    """It reused blocks of an engine with other overrides, quantization, backend or adapters."""
    (folder / "model.safetensors").write_bytes(b"weights")
    of = tiers.config(model=str(folder))
    with pytest.raises(dalsegno.IncompatibleError, match="use DalsegnoConnector") as refused:
        make_tier(of=of, identity=None)
    for option in ("--quantization", "--hf-overrides", "--attention-backend", "LoRA"):
        assert option in str(refused.value)
    assert not (tmp_path / "store").exists()
    make_tier(of=of, identity=None, options_fingerprint="defaults")


def test_ranks_chunks_groups_and_salts_are_kept_apart() -> None:
    def fields(
        *, group: int = 0, row_bytes: int = 4096, salt: str = "", groups: int = 2, **changes: Any
    ) -> str:
        of = tiers.config(groups, **changes)
        return json.dumps(identity.namespace_fields({}, of, group, row_bytes, salt), sort_keys=True)

    others = [
        fields(),
        fields(group=1),
        fields(row_bytes=8192),
        fields(salt="tenant"),
        fields(groups=1),
        fields(parallel=parallel_config(tp_size=2, world_size=2)),
        fields(kv_cache_layout="BLHNC"),
        fields(cache=SimpleNamespace(tokens_per_hash=128, blocks_per_chunk=2)),
    ]
    assert len(set(others)) == len(others)
