"""Who may share blocks: what every field of a namespace is made from.

The configuration is vLLM's own, made from the arguments of an engine that is not started.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.checkout import ROOT
from tests.integration.vllm import tiers
from tests.integration.vllm.identities import BEFORE_NS, changed, fields, in_folder

import dalsegno
from dalsegno.integrations.common import file_times, report
from dalsegno.integrations.common.fields import hashed
from dalsegno.integrations.common.model_files import ModelFiles
from dalsegno.integrations.vllm import identity, spaces
from dalsegno.integrations.vllm.settings import TierSettings
from dalsegno.integrations.vllm.tier import DalsegnoTier
from dalsegno_bench.vllm.rig import parallel_config

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    "name",
    [
        "preprocessor_config.json",
        "processor_config.json",
        "video_preprocessor_config.json",
        "tokenizer.json",
        "generation_config.json",
        "hf_quant_config.json",
        "modeling_own.py",
        "configuration_own.py",
        "model.safetensors",
    ],
)
def test_a_change_of_a_file_makes_another_identity(config: Any, folder: Path, name: str) -> None:
    (folder / name).write_text("one")
    usual = fields(config)
    (folder / name).write_text("two")
    other = fields(config)
    assert other != usual
    assert "uncertain" not in other


@pytest.mark.parametrize("name", ["chat_template.jinja", "LICENSE", "README.md"])
def test_files_that_cannot_change_blocks_do_not_count(config: Any, folder: Path, name: str) -> None:
    usual = fields(config)
    (folder / name).write_text("changed")
    assert fields(config) == usual


def test_the_identity_depends_on_files_and_not_on_folders(
    made: Any, folder: Path, tmp_path: Path
) -> None:
    usual = fields(in_folder(made, folder))
    moved = tmp_path / "elsewhere" / "another name"
    moved.parent.mkdir()
    folder.rename(moved)
    config = in_folder(made, moved)
    assert fields(config) == usual
    (moved / "model.safetensors").write_bytes(b"Weights")
    assert fields(config)["weights"] != usual["weights"]


def test_code_of_a_model_may_depend_on_the_models_name(
    made: Any, folder: Path, tmp_path: Path
) -> None:
    def trusted(place: Path) -> Any:
        return changed(in_folder(made, place), "model_config.trust_remote_code", True)

    usual = fields(trusted(folder))
    moved = folder.rename(tmp_path / "another name")
    assert fields(trusted(moved)) != usual


def test_a_line_and_a_file_name_the_input_that_differs(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(spaces.logger, "info", lambda text, *of: said.append(text % of))

    def started() -> tuple[set[str], set[str]]:
        known = fields(config)
        settings = TierSettings.parse({"path": str(tmp_path / "store"), "identity": known})
        spaces.group_fields(settings, tiers.config(groups=2), 4096)
        file = report.report_file(known)
        assert file is not None
        assert str(file) in said[-1]
        return set(said[-1].split()), set(file.read_text().splitlines())

    line, inputs = started()
    assert {"chunk", "files", "options", "weights"} <= {word.split("=")[0] for word in line}
    monkeypatch.setenv("VLLM_MLA_DISABLE", "1")
    other_line, other_inputs = started()
    assert len(said) == 2
    assert {word.split("=")[0] for word in line ^ other_line if "=" in word} == {"environment"}
    differing = {one.split()[1] for one in inputs ^ other_inputs}
    assert differing in ({"environment"}, {"environment.VLLM_MLA_DISABLE"})
    (config_file := Path(config.model_config.model) / "hf_quant_config.json").write_text("{}")
    differing = {one.split()[1] for one in other_inputs ^ started()[1]}
    assert differing == {f"files.{config_file.name}"}


def test_stated_weights_stand_for_files_of_weights_only(config: Any, folder: Path) -> None:
    stated = fields(config, "v7")
    assert stated["weights"] == "stated:v7"
    (folder / "model.safetensors").unlink()
    assert fields(config, "v7") == stated
    (folder / "preprocessor_config.json").write_text("{}")
    assert fields(config, "v7") != stated
    away = changed(config, "model_config.model", "nobody/nothing-here")
    away = changed(away, "model_config.tokenizer", "nobody/nothing-here")
    assert "uncertain" in fields(away, "v7"), "other files count, too"


def test_a_stated_fingerprint_stands_for_all_files_of_an_object_store(
    config: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM copies the small files into a folder when it starts, over those of earlier starts."""
    (folder / "model.safetensors").unlink()
    config = changed(config, "model_config.model_weights", "s3://bucket/model")
    config = changed(config, "load_config.load_format", "runai_streamer")
    monkeypatch.setattr(file_times, "engine_start_ns", lambda: BEFORE_NS)
    stated = fields(config, "v7")
    assert "uncertain" not in stated
    assert fields(config, "v7") == stated
    assert fields(config, "v8") != stated
    (folder / "preprocessor_config.json").write_text("{}")
    assert fields(config, "v7") != stated
    assert "uncertain" in fields(config)
    local = changed(config, "model_config.model_weights", "")
    assert "uncertain" in fields(local, "v7"), "the fingerprint stands for weights only"


def test_an_engine_announces_its_start_when_vllm_loads_its_plugins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DALSEGNO_ENGINE_START", "")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entry = project["entry-points"]["vllm.general_plugins"]["dalsegno"]
    metadata.EntryPoint("dalsegno", entry, "vllm.general_plugins").load()()
    assert os.environ["DALSEGNO_ENGINE_START"].startswith(f"{os.getpid()} ")


DOUBTS: dict[str, tuple[str, object, str]] = {
    "remote weights": ("load_config.load_format", "runai_streamer", "load_format"),
    "no such model": ("model_config.model", "nobody/nothing-here", "not on this machine"),
    "no such tokenizer": ("model_config.tokenizer", "nobody/none", "not on this machine"),
    "scales of the cache": ("cache_config.calculate_kv_scales", True, "calculate_kv_scales"),
    "scales of images": (
        "model_config.multimodal_config",
        SimpleNamespace(mm_encoder_attn_dtype="fp8", mm_encoder_fp8_scale_path=None),
        "mm_encoder_attn_dtype",
    ),
    "a configuration that is not known": ("load_config", None, "cannot be read"),
    "embeddings": (
        "ec_transfer_config",
        SimpleNamespace(is_ec_consumer=True),
        "embeddings from another engine",
    ),
}


@pytest.mark.parametrize(("path", "value", "says"), DOUBTS.values(), ids=DOUBTS)
def test_what_cannot_be_established_is_shared_with_no_other_process(
    config: Any, path: str, value: object, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(identity.logger, "warning", lambda text, *of: said.append(text % of))
    config = changed(config, path, value)
    assert fields(config) != fields(config)
    assert says in said[0]


def test_a_model_that_changed_after_the_engine_began_is_shared_with_no_other_process(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fields(config) == fields(config)
    monkeypatch.setattr(file_times, "engine_start_ns", lambda: BEFORE_NS)
    assert fields(config) != fields(config)


def test_a_folder_without_weights_is_shared_with_no_other_process(
    config: Any, folder: Path
) -> None:
    (folder / "model.safetensors").unlink()
    assert fields(config) != fields(config)


def test_a_part_without_weights_is_a_doubt(config: Any, tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.mkdir()
    (part / "config.json").write_text("{}")
    config.model_config.hf_config.text_model_id = str(part)
    assert fields(config) != fields(config)
    (part / "model.safetensors").write_bytes(b"1")
    usual = fields(config)
    assert fields(config) == usual
    (part / "model.safetensors").write_bytes(b"2")
    assert fields(config)["parts"] != usual["parts"]


def test_files_that_variables_name_count_with_their_content(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "quantization.json"
    file.write_text("1")
    monkeypatch.setenv("VLLM_HUMMING_ONLINE_QUANT_CONFIG", str(file))
    usual = fields(config)
    assert fields(config) == usual
    file.write_text("2")
    assert fields(config)["environment"] != usual["environment"]


def test_code_of_other_repositories_counts(config: Any, folder: Path, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "modeling.py").write_text("1")
    (folder / "config.json").write_text(json.dumps({"auto_map": {"A": f"{code}--modeling.A"}}))
    config = changed(config, "model_config.trust_remote_code", True)
    usual = fields(config)
    (code / "modeling.py").write_text("2")
    assert fields(config) != usual


def test_random_weights_share_no_block(config: Any) -> None:
    config = changed(config, "load_config.load_format", "dummy")
    assert fields(config)["weights"] != fields(config)["weights"]


def test_a_fingerprint_of_random_weights_is_ignored_and_says_so(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    monkeypatch.setattr(identity.logger, "warning", lambda text, *_: said.append(text))
    config = changed(config, "load_config.load_format", "dummy")
    first, second = (fields(config, stated="mine")["weights"] for _ in range(2))
    assert first != second
    assert [line for line in said if "weights_fingerprint is ignored" in line]


def test_block_hashes_that_collide_are_refused(config: Any) -> None:
    with pytest.raises(dalsegno.IncompatibleError, match="can collide"):
        fields(changed(config, "cache_config.prefix_caching_hash_algo", "xxhash"))


def test_the_identity_includes_the_draft_models_files(
    made: Any, config: Any, tmp_path: Path
) -> None:
    usual = fields(config)
    draft = tmp_path / "draft"
    draft.mkdir()
    config.speculative_config = SimpleNamespace(
        draft_model_config=in_folder(made, draft).model_config
    )
    with_draft = identity._model_fields(
        ModelFiles(), config.speculative_config.draft_model_config, config.load_config, ""
    )
    assert hashed(with_draft)["weights"] == usual["weights"]
    before = fields(config)["draft"]
    (draft / "model.safetensors").write_bytes(b"others")
    assert fields(config)["draft"] != before


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
        return json.dumps(spaces.namespace_fields({}, of, group, row_bytes, salt), sort_keys=True)

    others = [
        fields(),
        fields(group=1),
        fields(row_bytes=8192),
        fields(salt="tenant"),
        fields(groups=1),
        fields(parallel=parallel_config(tp_size=2, world_size=2)),
        fields(cache=SimpleNamespace(tokens_per_hash=128, blocks_per_chunk=2)),
    ]
    if hasattr(tiers.config(), "kv_cache_layout"):  # since vLLM 0.29
        others.append(fields(kv_cache_layout="BLHNC"))
    assert len(set(others)) == len(others)
