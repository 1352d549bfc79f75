"""Which options and variables count, and as what."""

from __future__ import annotations

import dataclasses
import enum
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dalsegno.integrations.common import options
from dalsegno.integrations.common.fields import rope_depends_on_length
from dalsegno.integrations.common.model_files import ModelFiles
from dalsegno.integrations.common.options import Options, libraries, variables

LATER_NS = 1 << 62


class Backend(enum.Enum):
    ONE = "one"
    TWO = "two"


@dataclass
class Part:
    depth: int = 1
    port: int = 80


@dataclass
class Noise:
    level: int = 1


class HfConfig:
    """As much of a Hugging Face configuration as is read."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def to_dict(self) -> dict[str, Any]:
        return {"_name_or_path": str(id(self)), "hidden_size": 8, **self.values}


@dataclass
class Config:
    """Every kind of value that an engine's configuration has."""

    number: float = 1.5
    text: str = "a"
    backend: Backend | None = Backend.ONE
    kind: type = Part
    items: list[Any] = field(default_factory=lambda: [1, (2, "b")])
    names: set[str] = field(default_factory=lambda: {"a", "b"})
    table: dict[Any, Any] = field(default_factory=lambda: {"x": 1, 2: {"y": None}})
    part: Part = field(default_factory=Part)
    hf: HfConfig = field(default_factory=HfConfig)
    noise: Noise = field(default_factory=Noise)
    path: str = ""
    scale_path: str | None = None


EXCLUDED = {"Part": {"port": "a port"}, "Noise": {"*": "noise"}}


def counted(config: Config) -> object:
    files = ModelFiles(since_ns=LATER_NS)
    value = Options(files, EXCLUDED).value(config)
    assert not files.doubts
    return value


@pytest.mark.parametrize(
    "change",
    [
        {"number": 2},
        {"text": "b"},
        {"backend": Backend.TWO},
        {"backend": None},
        {"kind": Noise},
        {"items": [1, (2, "c")]},
        {"names": {"a"}},
        {"table": {"x": 1, 2: {"y": 0}}},
        {"part": Part(depth=2)},
        {"hf": HfConfig(text_config={"rope_theta": 7})},
    ],
    ids=str,
)
def test_every_kind_of_value_counts(change: dict[str, Any]) -> None:
    usual = counted(Config())
    assert usual == counted(Config())
    assert usual != counted(dataclasses.replace(Config(), **change))


@pytest.mark.parametrize(
    "change",
    [
        {"part": Part(port=81)},
        {"noise": Noise(level=2)},
        {"table": {2: {"y": None}, "x": 1}},
        {"hf": HfConfig(transformers_version="6", text_config={})},
    ],
    ids=str,
)
def test_what_is_excluded_and_the_order_of_names_do_not_count(change: dict[str, Any]) -> None:
    usual = dataclasses.replace(Config(), hf=HfConfig(text_config={"_name_or_path": "x"}))
    changed = dataclasses.replace(usual, **change)
    assert counted(usual) == counted(changed)


def test_an_option_that_names_a_file_counts_with_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    one, two = tmp_path / "one" / "scales.json", tmp_path / "two" / "scales.json"
    for path in (one, two):
        path.parent.mkdir()
        path.write_text("1")
    for name in ("path", "scale_path"):
        config, moved = Config(), Config()
        setattr(config, name, str(one))
        setattr(moved, name, str(two))
        before = counted(config)
        assert counted(moved) == before
        two.write_text("2")
        assert counted(moved) != before
        two.write_text("1")
    (tmp_path / "scales").write_text("1")
    before = counted(Config(scale_path="scales"))
    (tmp_path / "scales").write_text("2")
    assert counted(Config(scale_path="scales")) != before
    # A stray file with the name of a value.
    before = counted(Config())
    (tmp_path / "a").write_text("x")
    assert counted(Config()) == before


def test_a_value_of_which_nothing_is_known_is_a_doubt() -> None:
    files = ModelFiles(since_ns=LATER_NS)
    Options(files, EXCLUDED).value(Config(table={"x": object()}))
    assert "the option table.x is <object" in files.doubts[0]


NO_FILES = ModelFiles(since_ns=1 << 62)


def test_variables_count_by_their_beginnings_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "ENGINE_MODE": "1",
        "ENGINE_PLACE": "2",
        "OTHER": "3",
        "NVIDIA_TF32_OVERRIDE": "4",
        "ENGINE_SERVICE_HOST": "10.0.0.1",
        "ENGINE_PORT_8000_TCP_ADDR": "10.0.0.1",
        "ENGINE_PORT": "tcp://10.0.0.1:80",
        "UNKNOWN": "5",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = dict(variables(NO_FILES, ("ENGINE_",), ["OTHER"], ["ENGINE_PLACE"]))
    assert {name: found[name] for name in given if name in found} == {
        "ENGINE_MODE": "1",
        "OTHER": "3",
        "NVIDIA_TF32_OVERRIDE": "4",
    }


def test_credentials_in_variables_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENGINE_API_KEY", "ENGINE_HF_TOKEN", "ENGINE_PASSWORD", "ENGINE_MAX_TOKENS"):
        monkeypatch.setenv(name, "1")
    found = [name for name, _ in variables(NO_FILES, ("ENGINE_",), ["ENGINE_API_KEY"], [])]
    assert [name for name in found if name.startswith("ENGINE_")] == ["ENGINE_MAX_TOKENS"]


def test_an_empty_option_names_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log").write_text("1")
    assert Options(NO_FILES, {}).value({"hf_config_path": ""}) == {"hf_config_path": ""}


def test_each_entry_of_a_mapping_counts_by_its_name() -> None:
    options = Options(ModelFiles(since_ns=1 << 62), {})
    assert options.value({"b": {"token": 1}, 2: "x"}) == {"b": {"token": 1}, "2": "x"}
    assert options.value({1: "x", "1": "y"}) != options.value({1: "y", "1": "x"})


def test_versions_of_installed_libraries_count() -> None:
    found = libraries(("console_scripts",))
    assert any(name.startswith("console_scripts ") for name in found)
    assert "dalsegno" not in " ".join(found.values())


@pytest.mark.parametrize(
    ("depends", "config"),
    [
        (False, {}),
        (False, {"rope_scaling": None}),
        (False, {"rope_scaling": {"rope_type": "yarn", "factor": 2}}),
        (False, {"rope_parameters": {"rope_type": "default"}}),
        (False, {"quantization": {"type": "other"}}),
        (True, {"rope_scaling": {"type": "dynamic"}}),
        (True, {"rope_parameters": {"full_attention": {"rope_type": "longrope"}}}),
        (True, {"rope_parameters": {"rope_type": "a new one"}}),
        (True, {"text_config": {"rope_scaling": {"type": "su"}}}),
    ],
    ids=str,
)
def test_rotary_embeddings_that_may_depend_on_the_longest_context_are_known(
    *, depends: bool, config: dict[str, Any]
) -> None:
    assert rope_depends_on_length(config) is depends


def test_an_option_that_names_too_many_bytes_is_a_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sparse = tmp_path / "scales"
    with sparse.open("wb") as file:
        file.truncate(options.MOST_BYTES + 1)
    files = ModelFiles(since_ns=LATER_NS)
    Options(files, EXCLUDED).value(Config(scale_path=str(sparse)))
    assert f"{sparse}, which an option names, has more than 16 GiB" in files.doubts[0]


def test_an_option_that_names_a_socket_or_a_device_counts_as_text(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = counted(Config(path="/dev/null"))
    assert counted(Config(path=str(tmp_path / "pipe"))) != before
