"""The fingerprint of a model's weights."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

import dalsegno
from dalsegno.integrations.common import fingerprint

OLD = 1_600_000_000_000_000_000


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps hashes of weights with the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def model(folder: Path, *files: bytes) -> Path:
    """A model whose weight files are old enough to be remembered."""
    folder.mkdir()
    for number, content in enumerate(files):
        path = folder / f"model-{number}.safetensors"
        path.write_bytes(content)
        os.utime(path, ns=(OLD, OLD))
    (folder / "config.json").write_text("{}")
    return folder


def test_the_fingerprint_depends_on_content_and_names_not_on_the_folder(tmp_path: Path) -> None:
    one = fingerprint.weights_fingerprint(model(tmp_path / "a", b"x" * 100, b"y"))
    assert one == fingerprint.weights_fingerprint(model(tmp_path / "b", b"x" * 100, b"y"))
    assert one != fingerprint.weights_fingerprint(model(tmp_path / "c", b"x" * 100, b"z"))
    assert one != fingerprint.weights_fingerprint(model(tmp_path / "d", b"y", b"x" * 100))
    with pytest.raises(dalsegno.IncompatibleError, match="no weight file"):
        fingerprint.weights_fingerprint(model(tmp_path / "e"))


def test_replaced_weights_of_the_same_size_and_mtime_have_another_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pretend that two seconds are over, so that the first hash is remembered.
    monkeypatch.setattr(fingerprint, "_SETTLED_NS", -(10**18))
    folder = model(tmp_path / "m", b"a" * 5_000_000)
    path = folder / "model-0.safetensors"
    before = fingerprint.weights_fingerprint(folder)
    assert str(path) in json.loads(fingerprint.cache_file().read_text())["files"]
    content = bytearray(path.read_bytes())
    content[2_500_000] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(OLD, OLD))
    changed = fingerprint.weights_fingerprint(folder)
    assert changed != before
    other = folder / "new"
    other.write_bytes(b"a" * 5_000_000)
    os.utime(other, ns=(OLD, OLD))
    other.replace(path)
    assert fingerprint.weights_fingerprint(folder) == before


def test_a_file_with_a_cached_hash_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model(tmp_path / "m", b"a")
    monkeypatch.setattr(fingerprint, "_SETTLED_NS", -(10**18))
    before = fingerprint.weights_fingerprint(folder)

    def refuse(path: Path) -> Any:
        raise AssertionError(f"{path} was read again")

    monkeypatch.setattr(fingerprint, "_hash", refuse)
    assert fingerprint.weights_fingerprint(folder) == before


def test_the_hash_of_a_file_that_changed_just_now_is_not_cached(tmp_path: Path) -> None:
    fingerprint.weights_fingerprint(model(tmp_path / "m", b"a"))
    assert not fingerprint.cache_file().exists()


def test_a_file_that_changes_while_it_is_read_has_no_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model(tmp_path / "m", b"a")
    monkeypatch.setattr(fingerprint, "_stamp", lambda path: [time.perf_counter_ns(), 0, 0, 0, 0])
    with pytest.raises(dalsegno.UnavailableError, match="changed while"):
        fingerprint.weights_fingerprint(folder)


def test_a_damaged_or_unwritable_cache_of_hashes_costs_only_time(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", b"a")
    target = fingerprint.cache_file()
    target.parent.mkdir(parents=True)
    target.write_text("{")
    before = fingerprint.weights_fingerprint(folder)
    target.unlink()
    target.mkdir()
    assert fingerprint.weights_fingerprint(folder) == before
