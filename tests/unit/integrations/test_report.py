"""How a person finds out why two engines share no block."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dalsegno.integrations.common import report
from dalsegno.integrations.common.fields import hashed

FIELDS: dict[str, object] = {
    "engine": "an engine 1.0",
    "files": {"config.json": "ab", "tokenizer.json": "cd"},
    "options": {"model_config": {"dtype": "bfloat16", "seed": 7}, "unused": {}},
    "environment": {"VLLM_MLA_DISABLE": "1"},
}
SECRETS = (
    "SGLANG_X_API_KEY",
    "VLLM_X_ACCESS_KEY_ID",
    "VLLM_X_AUTH",
    "VLLM_X_AUTH_TOKEN",
    "VLLM_X_PASSWORD",
    "VLLM_X_PWD",
    "extra.aws_secret_access_key",
    "extra.token",
    "hf_token",
)
NO_SECRETS = ("VLLM_MAX_TOKENS", "author", "cache_key", "extra.image_token", "max_num_tokens")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dalsegno" / "identities"


def lines(fields: dict[str, object]) -> list[str]:
    """Writes what an identity is made of; returns the lines of the file."""
    identity = hashed(fields)
    report.write(identity, fields)
    file = report.report_file(identity)
    assert file is not None
    return file.read_text().splitlines()


def test_the_lines_that_differ_name_the_inputs_that_differ(folder: Path) -> None:
    usual = lines(FIELDS)
    assert [line.split()[1] for line in usual] == [
        "engine",
        "environment.VLLM_MLA_DISABLE",
        "files.config.json",
        "files.tokenizer.json",
        "options.model_config.dtype",
        "options.model_config.seed",
        "options.unused",
    ]
    other = {**FIELDS, "options": {"model_config": {"dtype": "float16", "seed": 7}, "unused": {}}}
    differing = set(lines(other)) ^ set(usual)
    assert {line.split()[1] for line in differing} == {"options.model_config.dtype"}
    assert len(list(folder.iterdir())) == 2


def test_neither_values_nor_hashes_of_credentials_are_written(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {**FIELDS, "options": dict.fromkeys((*SECRETS, *NO_SECRETS), "hunter2")}
    known = lines(fields)
    hidden = {line.split()[1] for line in known if line.startswith("hidden ")}
    assert hidden == {f"options.{name}" for name in SECRETS}
    with caplog.at_level(logging.INFO):
        report.log(logging.getLogger("test"), "a model", hashed(fields), {"chunk": "16 tokens"})
    for text in (caplog.text, *(file.read_text() for file in folder.iterdir())):
        for value in ("hunter2", "bfloat16", "16 tokens", "an engine"):
            assert value not in text
    assert not any(file.stat().st_mode & 0o77 for file in folder.iterdir())


def test_a_line_break_in_a_name_does_not_make_another_line(folder: Path) -> None:
    (line,) = lines({"files": {"a\nb": "1"}})
    assert line.endswith("files.a\\nb")


def test_the_log_has_each_field_and_the_file(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    identity = hashed({**FIELDS, "draft": ""})
    report.write(identity, FIELDS)
    with caplog.at_level(logging.INFO):
        report.log(logging.getLogger("test"), "a model", identity, {"chunk": "16 tokens"})
        report.log(logging.getLogger("test"), "a model", identity, {"chunk": "32 tokens"})
    first, second = (record.getMessage() for record in caplog.records)
    names = [word.split("=")[0] for word in first.split() if "=" in word]
    assert names == ["chunk", "engine", "environment", "files", "options"]
    assert "of a model with engines" in first
    assert str(report.report_file(identity)) in first
    # `dalsegno ls` shows the same beginnings.
    assert f" files={identity['files'][:8]} " in first
    differing = set(first.split()) ^ set(second.split())
    assert {word.split("=")[0] for word in differing} == {"chunk"}


def test_only_the_newest_files_are_kept(folder: Path) -> None:
    for number in range(report.MOST_FILES + 3):
        lines({"engine": str(number)})
    assert len(list(folder.iterdir())) == report.MOST_FILES


def test_an_engine_without_a_usable_cache_folder_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    identity = hashed(FIELDS)
    report.write(identity, FIELDS)
    # A name that no file system takes, for which even the question whether it exists is an error.
    monkeypatch.setenv("XDG_CACHE_HOME", f"/{'x' * 5000}")
    report.write(identity, FIELDS)
    report.log(logging.getLogger("test"), "a model", identity)
    monkeypatch.setattr(report, "cache_directory", lambda: None)
    report.write(identity, FIELDS)
    with caplog.at_level(logging.INFO):
        report.log(logging.getLogger("test"), "a model", identity)
    assert "no cache folder" in caplog.text
