"""Who may share pages: which options, files and variables of SGLang make another identity.

The options are SGLang's own; no server is started.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang")

import sglang
from sglang.srt import environ
from sglang.srt.server_args import ServerArgs

from dalsegno.integrations.common import excluded, file_times, report
from dalsegno.integrations.common.model_files import ModelFiles
from dalsegno.integrations.common.options import fields_of
from dalsegno.integrations.sglang import identity

pytestmark = pytest.mark.engine
LISTS = excluded.load("dalsegno.integrations.sglang")
CHECKED = pytest.mark.skipif(
    not sglang.__version__.startswith(LISTS["checked_with"]),
    reason="the lists are compared with one version of SGLang",
)
BEFORE_NS, AFTER_NS = 0, 1 << 62

Identity = Callable[..., dict[str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's folder. Servers begin after every change of it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(file_times, "engine_start_ns", lambda: AFTER_NS)
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"hidden_size": 8}))
    (path / "model.safetensors").write_bytes(b"weights")
    return path


@pytest.fixture
def fields(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Identity:
    """The identity of a server with these options."""

    def of(stated: str = "", **options: Any) -> dict[str, str]:
        args = ServerArgs(**{"model_path": str(folder), "load_format": "auto", **options})
        monkeypatch.setattr(identity, "get_server_args", lambda: args)
        return identity.engine_identity("", stated)

    return of


def test_every_option_counts_unless_the_list_says_why_not(folder: Path) -> None:
    def counted(args: Any) -> str:
        return json.dumps(identity.engine_options(ModelFiles(), args))

    usual = counted(ServerArgs(model_path=str(folder)))
    for name in fields_of(ServerArgs(model_path=str(folder))):
        args = ServerArgs(**{"model_path": str(folder), name: "another value"})
        counts = name not in LISTS["options"]["ServerArgs"]
        assert (counted(args) != usual) == counts, name


@CHECKED
def test_names_on_the_lists_exist_in_this_version(folder: Path) -> None:
    known = set(fields_of(ServerArgs(model_path=str(folder))))
    assert set(LISTS["options"]["ServerArgs"]) <= known
    assert set(LISTS["environment"]) <= set(vars(type(environ.envs)))
    assert not set(LISTS["other_environment"]) & set(vars(type(environ.envs)))


@pytest.mark.parametrize(
    "change",
    [
        {"context_length": 4096},
        {"dtype": "bfloat16"},
        {"quantization": "fp8"},
        {"kv_cache_dtype": "fp8_e5m2"},
        {"attention_backend": "triton"},
        {"json_model_override_args": '{"rope_theta": 7}'},
        {"model_impl": "transformers"},
        {"trust_remote_code": True},
        {"mm_process_config": {"image": {"max_pixels": 100}}},
        {"limit_mm_data_per_request": {"image": 1}},
        {"disable_fast_image_processor": True},
        {"page_size": 64},
        {"tp_size": 2},
        {"forward_hooks": [{"name": "x"}]},
    ],
    ids=str,
)
def test_a_change_of_the_server_makes_another_identity(
    change: dict[str, Any], fields: Identity
) -> None:
    usual = fields()
    assert usual == fields()
    other = fields(**change)
    assert other != usual
    assert "uncertain" not in {**usual, **other}
    assert sum(len(name) + len(text) for name, text in other.items()) < 3000


@pytest.mark.parametrize(
    "name",
    [
        "hf_quant_config.json",
        "model.safetensors",
        "modeling_own.py",
        "preprocessor_config.json",
        "processor_config.json",
        "tokenizer.json",
    ],
)
def test_a_change_of_a_file_makes_another_identity(
    name: str, folder: Path, fields: Identity
) -> None:
    (folder / name).write_text("one")
    usual = fields()
    (folder / name).write_text("two")
    assert fields() != usual


def test_a_models_place_counts_only_by_the_words_that_sglang_looks_for(
    folder: Path, fields: Identity, tmp_path: Path
) -> None:
    usual, trusted = fields(), fields(trust_remote_code=True)
    moved = folder.rename(tmp_path / "another name")
    assert fields(model_path=str(moved)) == usual
    assert fields(model_path=str(moved), trust_remote_code=True) != trusted
    for word in identity.NAMES:
        (named := tmp_path / (word.upper() if word.islower() else word)).mkdir()
        moved = moved.rename(named / "model")
        assert fields(model_path=str(moved)) != usual, word
    (tokenizer := tmp_path / "tokenizer").mkdir()
    usual = fields(model_path=str(moved), tokenizer_path=str(tokenizer))
    tokenizer = tokenizer.rename(tmp_path / "other")
    assert fields(model_path=str(moved), tokenizer_path=str(tokenizer)) == usual
    tokenizer = tokenizer.rename(tmp_path / "InternVL3_5-8B")
    assert fields(model_path=str(moved), tokenizer_path=str(tokenizer)) != usual


@CHECKED
def test_sglang_looks_for_no_other_words_in_the_place_of_a_model() -> None:
    """Names of conversations and sizes of graphs change no page: see the page on identity."""
    root = Path(str(sglang.__file__)).parent / "srt"
    native = (root / "arg_groups" / "model_path_hook.py").read_text(encoding="utf-8")
    words = re.search(r"_MISTRAL_NATIVE_PATTERNS = \(([^)]*)\)", native)
    assert words is not None
    found = set(re.findall(r'"([^"]+)"', words[1]))
    places = r"(?:\w+\.)?(?:model\.lower\(\)|(?:model|tokenizer)_(?:name|path)(?:\.lower\(\))?)"
    for file in root.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        # Formats of expert packs are a doubt.
        if file.name not in {"conversation.py", "expert_pack_hook.py"}:
            found |= set(re.findall(rf'"(\w[^"]*)" in {places}(?: |:|\)|$)', text, re.MULTILINE))
    assert found == {*identity.NAMES, "llama-2"}


def test_a_line_and_a_file_name_the_input_that_differs(
    fields: Identity, caplog: pytest.LogCaptureFixture
) -> None:
    def started(**options: Any) -> tuple[set[str], set[str]]:
        caplog.clear()
        with caplog.at_level("INFO", logger="sglang.dalsegno"):
            file = report.report_file(fields(**options))
        assert file is not None
        (line,) = [one.getMessage() for one in caplog.records]
        assert str(file) in line
        return set(line.split()), set(file.read_text().splitlines())

    line, inputs = started()
    other_line, other_inputs = started(page_size=64)
    assert {one.split("=")[0] for one in line ^ other_line if "=" in one} == {"options"}
    assert {one.split()[1] for one in inputs ^ other_inputs} == {"options.page_size"}


def test_variables_count_unless_the_list_says_why_not(
    fields: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = fields()
    for name in ("SGLANG_IMAGE_MAX_PIXELS", "SGLANG_OF_A_PLUGIN", "NVIDIA_TF32_OVERRIDE"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            assert fields() != usual, name
    names = [*LISTS["environment"], *LISTS["other_environment"]]
    for name in [*names, "SGLANG_SERVICE_HOST", "SGLANG_PORT_80_TCP_ADDR"]:
        monkeypatch.setenv(name, "1")
    assert fields() == usual


def test_files_that_options_name_count_with_their_content(fields: Identity, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"1")
    (other / "config.json").write_text("{}")
    draft = {"speculative_algorithm": "EAGLE", "speculative_draft_model_path": str(other)}
    for options in (
        {"lora_paths": [f"name={other}"]},
        {"quantization_param_path": str(other)},
        {"tokenizer_path": str(other)},
        draft,
    ):
        (other / "content.json").write_text("1")
        usual = fields(**options)
        assert "uncertain" not in usual
        (other / "content.json").write_text("2")
        assert fields(**options) != usual, options


@pytest.mark.parametrize(
    "options",
    [
        {"load_format": "remote"},
        {"load_format": "dummy"},
        {"model_path": "nobody/nothing-here"},
        {"lora_paths": ["name=nobody/nothing-here"]},
        {"language_only": True},
        {"load_format": "expert_pack"},
        {"weight_cache_mode": "client"},
        {"disaggregation_transfer_backend": "fake"},
        {"tokenizer_path": "nobody/nothing-here"},
        {"enable_mm_global_cache": True},
    ],
    ids=str,
)
def test_what_cannot_be_established_is_shared_with_no_other_process(
    options: dict[str, Any], fields: Identity
) -> None:
    assert fields(**options) != fields(**options)


def test_a_model_that_changed_after_the_server_began_is_shared_with_no_other_process(
    fields: Identity, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert fields() == fields()
    monkeypatch.setattr(file_times, "engine_start_ns", lambda: BEFORE_NS)
    assert fields() != fields()
    assert "changed after the engine began to start" in caplog.text


def test_a_folder_that_leaves_its_configuration_to_a_base_is_shared_with_no_other_process(
    folder: Path, fields: Identity
) -> None:
    (folder / "head.pt").write_bytes(b"names the base")
    assert fields() == fields()
    (folder / "adapter_config.json").write_text("{}")
    assert fields() != fields()
    for name in ("head.pt", "config.json"):
        (folder / name).unlink()
    assert fields() != fields()
    (folder / "model.gguf").write_bytes(b"has its configuration")
    usual = fields(model_path=str(folder / "model.gguf"))
    assert fields(model_path=str(folder / "model.gguf")) == usual
    (folder / "config.json").write_text(json.dumps({"architectures": ["X"]}))
    assert fields(model_path=str(folder / "model.gguf"))["model"] == "X"


def test_towers_and_json_name_other_files(folder: Path, fields: Identity, tmp_path: Path) -> None:
    other = tmp_path / "tower"
    other.mkdir()
    (other / "config.json").write_text("{}")
    (folder / "config.json").write_text(json.dumps({"mm_vision_tower": str(other)}))
    assert fields() != fields(), "the tower has no weights"
    (other / "model.safetensors").write_bytes(b"1")
    adapter = {"model_loader_extra_config": json.dumps({"qlora_adapter_name_or_path": str(other)})}
    usual, with_adapter = fields(), fields(**adapter)
    assert fields() == usual
    (other / "model.safetensors").write_bytes(b"2")
    assert fields()["parts"] != usual["parts"]
    assert fields(**adapter)["options"] != with_adapter["options"]


def test_where_adapters_lie_does_not_count(fields: Identity, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_model.safetensors").write_bytes(b"1")
    one, two = ({"lora_paths": [f"name={tmp_path / name}"]} for name in ("one", "two"))
    assert fields(**one)["adapters"] == fields(**two)["adapters"]
    (tmp_path / "two" / "adapter_model.safetensors").write_bytes(b"2")
    assert fields(**one)["adapters"] != fields(**two)["adapters"]


def test_options_that_cannot_be_read_stop_no_server(
    fields: Identity, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(identity, "engine_options", lambda *_: 1 / 0)
    assert fields() != fields()
    assert "cannot be read" in caplog.text


def test_a_stated_fingerprint_stands_for_all_files_of_an_object_store(fields: Identity) -> None:
    options = {"model_path": "s3://bucket/model", "load_format": "remote"}
    assert fields("v7", **options) == fields("v7", **options)
    assert fields("v8", **options) != fields("v7", **options)
    assert fields(**options) != fields(**options)


def test_stated_weights_stand_for_files_of_weights_only(folder: Path, fields: Identity) -> None:
    stated = fields("v7")
    (folder / "model.safetensors").unlink()
    assert fields("v7") == stated
    (folder / "preprocessor_config.json").write_text("{}")
    assert fields("v7") != stated
