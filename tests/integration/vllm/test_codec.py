"""`DalsegnoTier` with a codec: how it stores is seen in the store, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")

from tests.contract import reference_store
from tests.integration.vllm import tiers
from tests.integration.vllm.tiers import HIT, ROW_BYTES, Primary, Request, finished, keys

import dalsegno
from dalsegno.integrations.common import opening
from dalsegno.integrations.vllm import spaces
from dalsegno.integrations.vllm import tier as tier_module
from dalsegno.integrations.vllm.connector import configure
from dalsegno.integrations.vllm.tier import DalsegnoTier

pytestmark = pytest.mark.engine
COUNT = 8


def halves(count: int) -> np.ndarray:
    """Rows of numbers in bf16: their upper bytes vary little."""
    values = np.random.default_rng(1).standard_normal(count * ROW_BYTES // 2)
    upper = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return upper.view(np.int8).reshape(count, ROW_BYTES)


def in_bf16() -> Any:
    return tiers.config(dtype="bfloat16")


def store_rows(tier: DalsegnoTier, primary: Primary, rows: np.ndarray) -> None:
    """Stores the first rows of the primary tier, and takes them from there."""
    primary.array[: len(rows)] = rows
    Request(tier, "keeps", keys(len(rows))).store(1)
    assert finished(tier)[0].success
    primary.array[:] = 0


def loads(tier: DalsegnoTier, primary: Primary, rows: np.ndarray) -> bool:
    """Whether the tier finds the rows and brings them back as they were."""
    asked = Request(tier, "asks", keys(len(rows)))
    assert asked.lookup_all() == [HIT] * len(rows)
    places = list(range(20, 20 + len(rows)))
    asked.load(2, rows=places)
    assert finished(tier)[0].success
    return bool((primary.array[places] == rows).all())


def codec_counters(tier: DalsegnoTier) -> Any:
    opened = tier._backend.current
    assert opened is not None
    return opened.store.stats()["log"]["codec"]


def test_blocks_are_stored_compressed_and_come_back_unchanged(
    make_tier: Callable[..., DalsegnoTier], primary: Primary, tmp_path: Path
) -> None:
    rows = halves(COUNT)
    tier = make_tier(of=in_bf16(), codec="zstd")
    store_rows(tier, primary, rows)
    assert loads(tier, primary, rows)
    result = codec_counters(tier)
    assert result["encoded_bytes"] == rows.nbytes
    assert result["encoded_stored_bytes"] * 1.25 < rows.nbytes
    tier.shutdown()
    row = dalsegno.info(str(tmp_path / "store"))["namespaces"][0]
    assert (row["codec"], row["element_bytes"]) == ("zstd", 2)
    assert row["stored_bytes"] * 1.2 < row["bytes"] == rows.nbytes


@pytest.mark.parametrize(("first", "then"), [("zstd", "none"), ("none", "zstd")])
def test_tiers_with_and_without_a_codec_share_their_blocks(
    make_tier: Callable[..., DalsegnoTier],
    primary: Primary,
    tmp_path: Path,
    first: str,
    then: str,
) -> None:
    rows = halves(COUNT)
    tier = make_tier(of=in_bf16(), codec=first)
    store_rows(tier, primary, rows)
    tier.shutdown()
    tier = make_tier(of=in_bf16(), codec=then)
    assert loads(tier, primary, rows)
    # What is stored from now on is stored as this tier says, whatever the namespace remembers.
    more = keys(2, prompt="more")
    Request(tier, "more", more).store(3, rows=[20, 21])
    assert finished(tier)[0].success
    assert (codec_counters(tier)["encoded_bytes"] > 0) == (then == "zstd")
    tier.shutdown()
    assert len(dalsegno.info(str(tmp_path / "store"))["namespaces"]) == 1


class Noticing(reference_store.Store):
    """A store that notes how its namespaces are opened."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "{}")
        self.asked: list[tuple[object, object]] = []

    def namespace(self, *arguments: Any, **options: Any) -> Any:
        self.asked.append((options.get("codec"), options.get("element_bytes")))
        return super().namespace(*arguments, **options)


@pytest.fixture
def noticing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Noticing:
    """The store of every tier of this test."""
    store = Noticing(str(tmp_path / "noticing"))
    monkeypatch.setattr(opening, "open_store", lambda path, settings: store)
    return store


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the tier warns of; vLLM's logger hands nothing on to that of pytest."""
    lines: list[str] = []
    monkeypatch.setattr(
        tier_module.logger, "warning", lambda text, *values: lines.append(text % values)
    )
    return lines


@pytest.mark.parametrize(
    ("given", "dtype", "asked"),
    [
        ({"codec": "zstd"}, "fp8_e4m3", ("zstd", 1)),
        ({"codec": "zstd"}, "bfloat16", ("zstd", 2)),
        ({"codec": "zstd"}, "float32", ("zstd", 4)),
        ({"codec": "zstd"}, "nvfp4", ("none", None)),
        ({"codec": "none"}, "bfloat16", ("none", None)),
        ({}, "nvfp4", ("none", None)),
    ],
)
def test_every_group_is_stored_as_the_caches_dtype_allows(
    make_tier: Callable[..., DalsegnoTier],
    noticing: Noticing,
    warnings: list[str],
    given: dict[str, str],
    dtype: str,
    asked: tuple[object, object],
) -> None:
    tier = make_tier(of=tiers.config(groups=2, dtype=dtype), **given)
    # Other namespaces after a reset: opened alike, and warned of no more.
    tier.drain_jobs()
    assert noticing.asked == [asked] * 4
    refused = given.get("codec", "none") != asked[0]
    assert len(warnings) == refused
    assert all(dtype in line for line in warnings)


def test_a_codec_reaches_the_tier_of_the_connector_and_no_identity() -> None:
    extra = {"path": "/kv", "cpu_bytes_to_use": 1 << 20, "codec": "zstd"}
    transfer = type("Transfer", (), {"kv_connector_extra_config": extra})()
    tier = configure(type("Config", (), {"kv_transfer_config": transfer})())
    assert tier["codec"] == "zstd"
    fields = spaces.namespace_fields({}, in_bf16(), 0, ROW_BYTES, "")
    assert not any("codec" in name or "zstd" in value for name, value in fields.items())
