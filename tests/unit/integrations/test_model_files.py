"""What is in a model's folder, and what makes a doubt of it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.file_clock import now_ns

from dalsegno.integrations.common import (
    excluded,
    file_times,
    fingerprint,
    model_files,
    references,
)
from dalsegno.integrations.common.model_files import ModelFiles

LATER_NS = 1 << 62


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps hashes of models with the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "model-1.safetensors").write_bytes(b"x")
    (path / "model-2.safetensors").write_bytes(b"y")
    (path / "config.json").write_text("{}")
    return path


def content(path: Path) -> dict[str, str]:
    """What is read of a folder in which nothing changed."""
    files = ModelFiles(since_ns=LATER_NS)
    found = files.of_path(path)
    assert not files.doubts
    return found


def doubts(path: Path, since_ns: int) -> list[str]:
    """The doubts about a folder, for an engine that began then."""
    files = ModelFiles(since_ns=since_ns)
    files.of_path(path)
    return files.doubts


@pytest.mark.parametrize(
    "name",
    [
        "adapter_config.json",
        "config.json",
        "hf_quant_config.json",
        "model-1.safetensors",
        "modeling_own.py",
        "params.json",
        "preprocessor_config.json",
        "processor_config.json",
        "quantize_config.json",
        "sub/folder/anything",
        "tekken.json",
        "tokenizer.json",
        "video_preprocessor_config.json",
    ],
)
def test_every_file_of_the_folder_counts(folder: Path, name: str) -> None:
    before = content(folder)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"changed")
    assert content(folder) != before
    path.unlink()
    assert content(folder) != content(folder) | {name: "there"}


def test_files_on_the_list_do_not_count_in_the_top_folder(folder: Path) -> None:
    lists = excluded.load("dalsegno.integrations.common")
    before = content(folder)
    for name in lists["files"]:
        (folder / name).write_text("changed")
    for name in lists["folders"]:
        (folder / name).mkdir()
        (folder / name / "file").write_text("changed")
    assert content(folder) == before
    (folder / "sub").mkdir()
    (folder / "sub" / "README.md").write_text("{}")
    assert content(folder) != before
    assert all(reason for table in lists.values() for reason in table.values())


def test_what_the_folder_is_called_does_not_count(folder: Path, tmp_path: Path) -> None:
    before = content(folder)
    assert content(folder.rename(tmp_path / "other")) == before


def test_contents_of_two_files_are_not_interchangeable(folder: Path) -> None:
    before = content(folder)
    (folder / "model-1.safetensors").write_bytes(b"y")
    (folder / "model-2.safetensors").write_bytes(b"x")
    assert content(folder) != before


def test_a_single_file_is_a_model(folder: Path) -> None:
    path = folder / "model.gguf"
    path.write_bytes(b"one")
    before = content(path)
    path.write_bytes(b"two")
    assert content(path) != before


def test_a_file_of_a_model_in_several_files_stands_for_all_of_them(folder: Path) -> None:
    """An engine that is given the first one reads the others too."""
    names = [f"model-q4-0000{number}-of-00002.gguf" for number in (1, 2)]
    for name in (*names, "other-00001-of-00002.gguf"):
        (folder / name).write_text("one")
    usual = content(folder / names[0])
    assert set(usual) == {"config.json", *names}
    (folder / names[1]).write_text("two")
    assert content(folder / names[0]) != usual


def test_what_an_engine_reads_beside_a_file_counts(folder: Path) -> None:
    """Settings, tokenizer and projector count; other weights and subfolders do not."""
    path = folder / "model-q4.gguf"
    path.write_text("weights")
    (folder / "other").mkdir()
    for name in ("tokenizer_config.json", "generation_config.json", "mmproj-f16.gguf"):
        before = content(path)
        (folder / name).write_text("{}")
        assert content(path) != before, name
    before = content(path)
    for name in ("model-q8.gguf", "model-1.safetensors", "other/config.json"):
        (folder / name).write_text("other")
    assert content(path) == before
    # A file that an option names is no model.
    assert set(content(folder / "config.json")) == {"config.json"}


def test_stray_files_neither_block_nor_fail(folder: Path) -> None:
    before = content(folder)
    os.mkfifo(folder / "pipe")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "loop").symlink_to(folder)
    found = content(folder)
    assert found == before | {"pipe": model_files.NO_FILE, "dangling": model_files.NO_FILE}


def test_a_missing_model_and_a_folder_of_very_many_files_are_doubts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "cannot be read" in doubts(folder / "nothing", LATER_NS)[0]
    monkeypatch.setattr(model_files, "MOST_FILES", 2)
    assert "more than 2 files" in doubts(folder, LATER_NS)[0]
    for name in ("nobody/nothing-here", "x" * 300 + "/" + "y" * 5000, "a\0b"):
        files = ModelFiles(since_ns=LATER_NS)
        assert files.of_name(name) == {}
        assert "not on this machine" in files.doubts[0]


def replace_weights(folder: Path) -> None:
    (folder / "new").write_bytes(b"z")
    (folder / "new").replace(folder / "model-1.safetensors")


CHANGES: dict[str, Callable[[Path], object]] = {
    "written": lambda folder: (folder / "model-1.safetensors").write_bytes(b"z"),
    "replaced": replace_weights,
    "added": lambda folder: (folder / "preprocessor_config.json").write_bytes(b"z"),
    "removed": lambda folder: (folder / "model-2.safetensors").unlink(),
    "removed below": lambda folder: (folder / "sub" / "file").unlink(),
    "linked": lambda folder: (folder / "sub" / "link").symlink_to("file"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_after_the_engine_began_is_a_doubt(
    folder: Path, change: Callable[[Path], object]
) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_bytes(b"x")
    began_ns = now_ns(folder)
    assert not doubts(folder, began_ns)
    change(folder)
    assert "changed after the engine began to start" in " ".join(doubts(folder, began_ns))


def test_a_link_to_the_model_that_was_moved_after_the_engine_began_is_a_doubt(
    folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"z")
    link = tmp_path / "current"
    link.symlink_to(folder)
    began_ns = now_ns(folder)
    assert not doubts(link, began_ns)
    (tmp_path / "new").symlink_to(other)
    (tmp_path / "new").replace(link)
    assert "the link" in doubts(link, began_ns)[0]


def test_code_of_other_repositories_counts_or_is_a_doubt(folder: Path, tmp_path: Path) -> None:
    files = ModelFiles(since_ns=LATER_NS)
    assert files.code(str(folder), None, None) == ""
    code = tmp_path / "code"
    code.mkdir()
    (code / "modeling.py").write_text("1")
    map_ = {"AutoModel": f"{code}--modeling.Model", "AutoConfig": "configuration.Config"}
    for name, content in (
        ("config.json", {"auto_map": map_}),
        ("processor_config.json", {"auto_map": map_}),
        ("config.json", {"vision_config": {"parts": [{"auto_map": map_}]}}),
    ):
        (folder / "processor_config.json").unlink(missing_ok=True)
        (folder / "config.json").write_text("{}")
        (folder / name).write_text(json.dumps(content))
        before = files.code(str(folder), None, None)
        (code / "modeling.py").write_text(f"2 {name} {content}")
        assert files.code(str(folder), None, None) != before
    assert not files.doubts
    (folder / "config.json").write_text(json.dumps({"auto_map": {"A": ["nobody/none--m.C", None]}}))
    files.code(str(folder), None, None)
    assert "'nobody/none' is not on this machine" in files.doubts[0]


def test_models_that_a_configuration_names_are_parts_of_it() -> None:
    config = {"text_config": {"text_model_id": "a/b", "x": "c/d"}, "audio_model_id": None}
    assert list(references.named_models(config)) == ["a/b"]


def test_a_checkpoint_that_says_what_it_was_made_of_needs_no_other_model() -> None:
    origin = {"model_name_or_path": "a/b", "base_model_name_or_path": "c/d"}
    config = {"quantization_config": origin, "base_model_name_or_path": "c/d"}
    assert list(references.named_models(config)) == []
    assert list(references.named_models({"tower_model_name_or_path": "e/f"})) == ["e/f"]


def test_a_file_that_is_added_to_a_folder_behind_a_link_is_a_doubt(
    folder: Path, tmp_path: Path
) -> None:
    link = tmp_path / "current"
    link.symlink_to(folder)
    began_ns = now_ns(folder)
    assert not doubts(link, began_ns)
    (folder / "model-2.safetensors").unlink()
    assert "changed after the engine began to start" in doubts(link, began_ns)[0]


def test_a_model_behind_the_root_of_another_process_is_that_process_s(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KServe's modelcar: a link to /proc/PID/root, whose text is that of our own root."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        link = tmp_path / "models"
        link.symlink_to(f"/proc/{other.pid}/root{folder}")
        began_ns = now_ns(folder)
        assert content(link) == content(folder)
        assert not doubts(link, began_ns)
        assert not doubts(link, time.time_ns())
        # Had the text of the link been followed, this would be the model.
        magic = Path(f"/proc/{other.pid}/root")
        readlink = Path.readlink
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        monkeypatch.setattr(
            Path, "readlink", lambda one: elsewhere if one == magic else readlink(one)
        )
        assert content(link) == content(folder)
        assert magic in list(model_files._links(link / "config.json"))
        other.communicate(b"\n")
    assert "cannot be read" in doubts(link, LATER_NS)[0]


def test_the_path_of_a_file_keeps_a_link_whose_text_leads_elsewhere(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = folder / "config.json", tmp_path / "other"
    assert fingerprint.real_path(file) == file.resolve()
    other.write_text("other")
    for target in (other, tmp_path / "missing"):
        monkeypatch.setattr(Path, "resolve", lambda _, to=target: to)
        assert fingerprint.real_path(file) == file


def test_the_warning_says_what_changed_and_what_to_do(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = ModelFiles(since_ns=0)
    files.of_path(folder)
    assert list(files.certainty(logging.getLogger("test"))) == ["uncertain"]
    assert f"the folder {folder} changed after the engine began to start: at" in caplog.text
    assert "config.json changed after" in caplog.text
    assert "; and 1 more. To share blocks: put the model in place before the engine's" in (
        caplog.text
    )
    assert len(files.remedies) == 1


def test_a_file_system_whose_clock_may_be_off_is_named_in_the_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Object stores in FUSE give folders the time of the mount, shortly before the engine."""
    monkeypatch.setattr(file_times, "_mount", lambda _: ("fuse.gcsfuse", True))
    files = ModelFiles(since_ns=time.time_ns() + 1_000_000_000)
    files.of_path(folder)
    assert files.certainty(logging.getLogger("test"))
    assert "(fuse.gcsfuse), which may be a minute off" in caplog.text
    assert "start the engine a minute after its file system was mounted" in caplog.text


def test_files_that_the_user_vouches_for_are_no_doubt(folder: Path) -> None:
    files = ModelFiles(since_ns=0)
    found = files.vouched().of_path(folder)
    assert found == content(folder)
    assert not files.doubts
    files.vouched().of_path(folder / "nothing")
    assert files.doubts, "what cannot be read is a doubt"


def test_more_bytes_than_a_bound_are_not_read(folder: Path) -> None:
    files = ModelFiles(since_ns=LATER_NS)
    assert files.of_path(folder, most_bytes=4) == content(folder)
    assert files.of_path(folder, most_bytes=3) == {}
    assert "has more than 0 GiB" in files.doubts[0]
