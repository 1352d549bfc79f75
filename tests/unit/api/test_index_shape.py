"""The shape of an index in files: how it is set, and how a person sees why it is what it is."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tests.unit.stores import Run

import dalsegno


def test_info_shows_the_index_shape_and_its_reasons(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "store"
    with dalsegno.open(path, capacity="256MiB", index="lsm", index_memory="1MiB") as store:
        space = store.namespace({"model": "m"}, layers=1, slice_bytes=64)
        for prompt in range(400):
            hashes = [hashlib.sha256(f"{prompt} {at}".encode()).digest() for at in range(256)]
            space.put_batch(hashes, [bytes(64)] * 256)
        index = store.stats()["index"]
    assert index is not None
    asked = index["asked"]
    # Some windows, so that it has decided however far its thread is behind.
    assert asked["written_entries"] > 102_400
    result = run("info", path, "--json").json()["index"]
    assert result["decisions"][-1]["to"] == result["shape"]
    out = run("info", path).out
    assert f"shape {result['shape']}, runs per level: " in out
    assert result["decisions"][-1]["reason"] in out


def test_an_in_memory_index_has_no_shape(tmp_path: Path, run: Run) -> None:
    with dalsegno.open(tmp_path / "store", capacity="64MiB") as store:
        assert store.stats()["index"] is None
    assert run("info", tmp_path / "store", "--json").json()["index"] is None


def test_a_pinned_shape_holds(tmp_path: Path) -> None:
    pinned = {"index": "lsm", "index_tuning": "T=6,K=2,Z=1"}
    with dalsegno.open(tmp_path / "store", capacity="64MiB", **pinned) as store:
        assert store.limits()["index_tuning"] == "T=6,K=2,Z=1"
        index = store.stats()["index"]
        assert index is not None
        assert index["shape"] == {"size_ratio": 6, "runs": 2, "last_runs": 1}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("T=6,K=6", "runs per level 6 is out of bounds: with size ratio 6 give 1 to 5"),
        ("T=99,K=1", "size ratio 99 is out of bounds"),
        ("T=6", "write it like"),
        ("automatic", "give `auto`, `off` or a shape"),
    ],
)
def test_an_invalid_shape_is_refused(text: str, result: str, tmp_path: Path) -> None:
    with pytest.raises(dalsegno.InvalidError, match=result):
        dalsegno.open(tmp_path / "store", index_tuning=text)
