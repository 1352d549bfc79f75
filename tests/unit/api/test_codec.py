"""Namespaces with a codec, from Python."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

import dalsegno

FIELDS = {"model": "codec"}
LAYERS, SLICE = 3, 8192


def chain(count: int) -> list[bytes]:
    return [hashlib.sha256(str(number).encode()).digest() for number in range(count)]


def halves(count: int) -> np.ndarray:
    """Numbers like bf16 ones: the upper bytes vary little."""
    values = np.random.default_rng(1).standard_normal(count * LAYERS * SLICE // 2)
    upper = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return upper.view(np.uint8).reshape(count, LAYERS, SLICE)


def test_a_codec_saves_space_is_remembered_and_changes_no_byte(tmp_path: Path) -> None:
    blocks = halves(40)
    with dalsegno.open(tmp_path / "kv", capacity="64MiB", dram=0) as store:
        coded = store.namespace(FIELDS, layers=LAYERS, slice_bytes=SLICE, codec="zstd")
        assert coded.put_batch(chain(40), list(blocks[:40])).stored == 40
        result = store.stats()["log"]["codec"]
        assert result["encoded_bytes"] == blocks.nbytes
        assert result["encoded_stored_bytes"] * 1.25 < blocks.nbytes
        assert result["encode_ns"] > 0
    row = dalsegno.info(str(tmp_path / "kv"))["namespaces"][0]
    assert (row["codec"], row["element_bytes"]) == ("zstd", 2)
    assert row["stored_bytes"] * 1.2 < row["bytes"]
    with dalsegno.open(tmp_path / "kv", dram=0) as store:
        again = store.namespace(FIELDS, layers=LAYERS, slice_bytes=SLICE)
        out = np.zeros_like(blocks)
        assert again.get_batch(chain(40), list(out)) == 40
        assert (out == blocks).all()
        out = np.zeros_like(blocks)
        load = again.load(chain(40)[5:15], list(out[5:15]), timeout_s=10)
        assert load.wait_layer(1, timeout_s=20)
        assert load.wait(20)
        assert (out[5:15] == blocks[5:15]).all()
        assert store.stats()["log"]["codec"]["decode_ns"] > 0
    assert dalsegno.verify(str(tmp_path / "kv"))["findings"] == []


def test_unknown_codecs_and_widths_are_refused(tmp_path: Path) -> None:
    with dalsegno.open(tmp_path / "kv", capacity="64MiB") as store:
        for codec, width, result in (("lz4", 2, "zstd"), ("zstd", 3, "1, 2 or 4")):
            with pytest.raises(dalsegno.InvalidError, match=result):
                store.namespace(FIELDS, layers=1, slice_bytes=64, codec=codec, element_bytes=width)
        assert store.namespace(FIELDS, layers=1, slice_bytes=64, codec="none").layers == 1
