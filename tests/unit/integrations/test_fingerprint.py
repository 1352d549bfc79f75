"""The memory of hashes: when a remembered hash is used, and when a file is read again."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

import dalsegno
from dalsegno.integrations.common import cache_folder, file_times, fingerprint

OLD = 1_600_000_000_000_000_000


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A memory of this test, which trusts the times of files that changed just now."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(file_times, "SETTLED_NS", -(10**18))
    monkeypatch.setattr(file_times, "trusted", lambda path: path.exists())
    found = fingerprint.cache_file()
    assert found is not None
    return found


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"a" * 5_000_000)
    os.utime(path, ns=(OLD, OLD))
    return path


def hashed(path: Path) -> str:
    return fingerprint.hash_files([path])[path]


def refuse(path: Path) -> Any:
    raise AssertionError(f"{path} was read again")


def test_a_hash_depends_on_every_byte_and_not_on_the_name(tmp_path: Path, weights: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(weights.read_bytes())
    assert hashed(other) == hashed(weights)
    other.write_bytes(b"a" * 4_999_999 + b"b")
    assert hashed(other) != hashed(weights)


def test_a_replaced_file_of_the_same_size_and_mtime_has_another_hash(
    weights: Path, memory: Path
) -> None:
    before = hashed(weights)
    assert str(weights) in json.loads(memory.read_text())["files"]
    content = bytearray(weights.read_bytes())
    content[2_500_000] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(OLD, OLD))
    assert hashed(weights) != before
    other = weights.parent / "new"
    other.write_bytes(b"a" * 5_000_000)
    os.utime(other, ns=(OLD, OLD))
    other.replace(weights)
    assert hashed(weights) == before


def test_a_file_with_a_remembered_hash_is_not_read_again(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = hashed(weights)
    monkeypatch.setattr(fingerprint, "_hash", refuse)
    assert hashed(weights) == before


def test_a_remembered_hash_is_not_used_where_times_cannot_be_trusted(
    weights: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a read-only image with the same times had been mounted over the folder."""
    before = hashed(weights)
    memory.write_text(memory.read_text().replace(before, "0" * 64))
    assert hashed(weights) == "0" * 64
    monkeypatch.setattr(file_times, "trusted", lambda _: False)
    assert hashed(weights) == before


def test_no_hash_is_remembered_where_times_cannot_be_trusted(
    weights: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_times, "trusted", lambda _: False)
    hashed(weights)
    assert not memory.exists()


def test_a_remembered_hash_ends_with_the_run_of_the_kernel(
    weights: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = hashed(weights)
    memory.write_text(memory.read_text().replace(before, "0" * 64))
    monkeypatch.setattr(file_times, "boot_id", lambda: "the next one")
    assert hashed(weights) == before


def test_the_hash_of_a_file_that_changed_just_now_is_not_remembered(
    weights: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_times, "SETTLED_NS", 120_000_000_000)
    hashed(weights)
    assert not memory.exists()


def test_a_file_that_changes_while_it_is_read_has_no_hash(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "_stamp", lambda _: [time.perf_counter_ns(), 0, 0, 0, 0])
    with pytest.raises(dalsegno.UnavailableError, match="changed while"):
        hashed(weights)


def test_a_damaged_or_unwritable_memory_costs_only_time(weights: Path, memory: Path) -> None:
    memory.parent.mkdir(parents=True)
    for content in ("{", "[]", '{"version": 2}', '{"version": 2, "files": {"/x": 1}}'):
        memory.write_text(content)
        before = hashed(weights)
    memory.unlink()
    memory.mkdir()
    assert hashed(weights) == before


def test_a_user_without_a_home_has_no_memory(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    before = hashed(weights)
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setattr(Path, "home", nowhere)
    assert cache_folder.cache_directory() is None
    assert hashed(weights) == before
