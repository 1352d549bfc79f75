"""`Store.stats()` has exactly the keys and the types that `dalsegno.stats.Stats` declares."""

from __future__ import annotations

import os
import types
import typing
from pathlib import Path
from typing import Any

import pytest

import dalsegno
from dalsegno.stats import IndexDecision, Stats

MIB = 1 << 20


def disagreements(value: Any, wanted: Any, at: str) -> list[str]:
    """Returns where a value does not have the declared type."""
    if typing.is_typeddict(wanted):
        hints = typing.get_type_hints(wanted)
        if not isinstance(value, dict):
            return [f"{at}: {type(value).__name__}, not a dict"]
        if set(value) != set(hints):
            return [f"{at}: keys {sorted(set(value) ^ set(hints))}"]
        return [
            text for key in hints for text in disagreements(value[key], hints[key], f"{at}.{key}")
        ]
    return _generic_disagreements(value, wanted, at)


def _generic_disagreements(value: Any, wanted: Any, at: str) -> list[str]:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is dict:
        missing = set(value) ^ set(typing.get_args(arguments[0]))
        return [f"{at}: keys {sorted(missing)}"] if missing else []
    if origin is list:
        return [text for one in value for text in disagreements(one, arguments[0], f"{at}[]")]
    if origin is typing.Literal:
        return [] if value in arguments else [f"{at}: {value!r}"]
    if origin in (types.UnionType, typing.Union):
        found = [disagreements(value, one, at) for one in arguments]
        return min(found, key=len)
    return [] if type(value) is wanted else [f"{at}: {type(value).__name__}, not {wanted}"]


@pytest.mark.parametrize("index", ["memory", "lsm"])
@pytest.mark.parametrize("engine", ["psync", "auto"])
def test_stats_have_the_declared_keys_and_types(tmp_path: Path, index: str, engine: str) -> None:
    settings = {"capacity": "64MiB", "index": index, "io_engine": engine, "dram": "8MiB"}
    with dalsegno.open(tmp_path / "store", **settings) as store:
        space = store.namespace({"model": "m"}, layers=1, slice_bytes=MIB, codec="zstd")
        hashes = [os.urandom(32) for _ in range(4)]
        space.put_batch(hashes, [bytes(MIB)] * 4)
        assert space.get_batch(hashes, [bytearray(MIB) for _ in hashes]) == 4
        stats = store.stats()
    assert disagreements(stats, Stats, "stats") == []
    assert (stats["index"] is None) == (index == "memory")
    assert stats["put_stored_blocks"] == 4


def test_a_decision_of_the_index_has_the_declared_keys(tmp_path: Path) -> None:
    row = {"operations": 1, "from": "8,3,1", "to": "8,1,1", "reason": "fewer reads"}
    assert disagreements(row, IndexDecision, "decision") == []


def test_a_wrong_key_or_type_is_seen() -> None:
    row: dict[str, Any] = {"operations": True, "from": "a", "to": "b", "reason": "c"}
    assert disagreements(row, IndexDecision, "d") == ["d.operations: bool, not <class 'int'>"]
    del row["to"]
    assert disagreements(row, IndexDecision, "d") == ["d: keys ['to']"]
