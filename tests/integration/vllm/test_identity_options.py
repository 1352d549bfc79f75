"""Which options, variables and libraries of vLLM make another identity."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import vllm
import vllm.config
import vllm.envs
from tests.integration.vllm.identities import (
    LISTS,
    changed,
    create,
    fields,
    in_folder,
    options,
    options_off,
    parts,
)

from dalsegno.integrations.common.options import fields_of, libraries
from dalsegno.integrations.vllm import identity

pytestmark = pytest.mark.engine
MULTIMODAL = vllm.config.MultiModalConfig
CHECKED = pytest.mark.skipif(
    not vllm.__version__.startswith(LISTS["checked_with"]),
    reason="the lists are compared with one version of vLLM",
)


def test_every_option_counts_unless_the_list_says_why_not(made: Any) -> None:
    usual = options(made)
    found = {"counted": 0, "excluded": 0}
    for where, one in parts(copy.deepcopy(made)):
        whole = copy.deepcopy(made)
        inside = whole
        for name in filter(None, where.split(".")):
            inside = getattr(inside, name)
        for name in fields_of(one):
            before = getattr(inside, name, None)
            object.__setattr__(inside, name, "another value")
            counts = name not in options_off(one)
            assert (options(whole) != usual) == counts, f"{where}.{name}"
            object.__setattr__(inside, name, before)
            found["counted" if counts else "excluded"] += 1
    assert found["counted"] > 150
    assert found["excluded"] > 80


@CHECKED
def test_names_on_the_lists_exist_in_this_version() -> None:
    for name, table in LISTS["options"].items():
        known = {one.name for one in dataclasses.fields(getattr(vllm.config, name))} | {"*"}
        assert set(table) <= known, name
    assert set(LISTS["environment"]) <= set(vllm.envs.environment_variables)
    assert not set(LISTS["other_environment"]) & set(vllm.envs.environment_variables)
    reasons = [reason for table in LISTS["options"].values() for reason in table.values()]
    assert all([*reasons, *LISTS["environment"].values(), *LISTS["other_environment"].values()])


def test_two_engines_with_equal_arguments_have_equal_identities(made: Any) -> None:
    again = create(Path(made.model_config.model), max_num_seqs=3, gpu_memory_utilization=0.3)
    assert options(again) == options(made)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model_config.dtype", "bfloat16"),
        ("model_config.quantization", "fp8"),
        ("model_config.hf_overrides", {"quantization_config_file": "/a/file"}),
        ("model_config.code_revision", "abc"),
        ("model_config.trust_remote_code", True),
        ("model_config.model_impl", "transformers"),
        ("model_config.enable_prompt_embeds", True),
        ("model_config.max_model_len", 8192),
        ("model_config.override_generation_config", {"attn_temperature_tuning": True}),
        ("model_config.hf_config.rope_parameters", {"rope_theta": 7}),
        ("model_config.multimodal_config", MULTIMODAL(mm_processor_kwargs={"num_crops": 4})),
        ("model_config.multimodal_config", MULTIMODAL(limit_per_prompt={"image": 1})),
        ("model_config.multimodal_config", MULTIMODAL(media_io_kwargs={"video": {"fps": 1}})),
        ("model_config.multimodal_config", MULTIMODAL(video_pruning_rate=0.5)),
        ("cache_config.prefix_caching_hash_algo", "sha256_cbor"),
        ("cache_config.cache_dtype", "fp8"),
        ("cache_config.kv_cache_dtype_skip_layers", ["0"]),
        ("attention_config.backend", "FLASHINFER"),
        ("parallel_config.tensor_parallel_size", 2),
        ("parallel_config.enable_expert_parallel", True),
        ("kernel_config.moe_backend", "triton"),
        ("load_config.model_loader_extra_config", {"enable_multithread_load": True}),
        ("load_config.load_format", "safetensors"),
        ("additional_config", {"plugin": 1}),
    ],
)
def test_a_change_of_the_engine_makes_another_identity(
    config: Any, path: str, value: object
) -> None:
    usual = fields(config)
    assert usual == fields(copy.deepcopy(config))
    other = fields(changed(config, path, value))
    assert other != usual
    assert "uncertain" not in {**usual, **other}
    for one in (usual, other):
        assert sum(len(name) + len(text) for name, text in one.items()) < 3000


def test_variables_count_unless_the_list_says_why_not(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = fields(config)
    for name in ("VLLM_MLA_DISABLE", "VLLM_OF_A_PLUGIN", "NVIDIA_TF32_OVERRIDE"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            assert fields(config) != usual, name
    service = [f"VLLM_SERVICE_{end}" for end in ("HOST", "PORT", "PORT_HTTP")]
    service += [f"VLLM_PORT{end}" for end in ("_80_TCP", "_80_TCP_PROTO", "_80_TCP_ADDR")]
    for name in [*LISTS["environment"], *LISTS["other_environment"], *service]:
        monkeypatch.setenv(name, "1")
    assert fields(config) == usual


def test_a_length_that_is_fitted_to_memory_does_not_count(made: Any) -> None:
    """vLLM lowers it after it has built the model; hosts with other memory find another one."""
    folder = Path(made.model_config.model)
    fitted = in_folder(create(folder, max_model_len=-1), folder)
    shorter = changed(fitted, "model_config.max_model_len", 4000)
    assert fields(shorter)["max_model_len"] == fields(fitted)["max_model_len"]
    chosen = in_folder(create(folder, max_model_len=4000), folder)
    assert fields(chosen)["max_model_len"] != fields(fitted)["max_model_len"]


def test_a_library_of_another_version_makes_another_identity(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = fields(config)
    known = libraries(identity.PLUGINS)
    assert {"torch", "transformers", "numpy", "pillow"} <= set(known)
    monkeypatch.setattr(identity, "libraries", lambda _: {**known, "transformers": "0"})
    assert fields(config) != usual


def test_files_that_options_name_count_with_their_content(config: Any, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    file = other / "content.json"
    file.write_text("1")
    scales = MULTIMODAL(mm_encoder_attn_dtype="fp8", mm_encoder_fp8_scale_path=str(file))
    for path, value in (
        ("model_config.tokenizer", str(other)),
        ("model_config.multimodal_config", scales),
        ("load_config.model_loader_extra_config", {"qlora_adapter_name_or_path": str(other)}),
    ):
        file.write_text("1")
        usual = fields(changed(config, path, value))
        assert "uncertain" not in usual
        file.write_text("2")
        assert fields(changed(config, path, value)) != usual, path
