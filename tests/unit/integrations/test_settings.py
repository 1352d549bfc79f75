"""Settings that the integrations share."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dalsegno
from dalsegno.integrations.common.settings import StoreSettings, byte_count, element_bytes
from dalsegno.integrations.lmcache.settings import AdapterSettings
from dalsegno.integrations.sglang.settings import HiCacheSettings
from dalsegno.integrations.vllm.settings import TierSettings, expand


@pytest.mark.parametrize(
    ("dtype", "width"),
    [
        ("bfloat16", 2),
        ("torch.bfloat16", 2),
        ("float16", 2),
        ("half", 2),
        ("float32", 4),
        ("float", 4),
        ("fp8", 1),
        ("fp8_e5m2", 1),
        ("fp8_ds_mla", 1),
        ("float8_e4m3fn", 1),
        ("int8_per_token_head", 1),
        ("nvfp4", None),
        ("int4_per_token_head", None),
        ("turboquant_k8v4", None),
        ("auto", None),
        ("", None),
    ],
)
def test_the_width_of_a_number_comes_from_the_caches_dtype(dtype: str, width: int | None) -> None:
    assert element_bytes(dtype) == width


def test_byte_counts_are_read() -> None:
    assert [byte_count("x", one) for one in (7, "7", "1.5KiB", "2 TB")] == [7, 7, 1536, 2 * 10**12]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("32Gi", 32 << 30),
        ("500Mi", 500 << 20),
        ("1Ti", 1 << 40),
        ("32G", 32 * 10**9),
        ("64k", 64_000),
        ("9007199254740993B", 2**53 + 1),
    ],
)
def test_regression_quantities_of_kubernetes_are_byte_counts(
    text: str, count: int, tmp_path: Path
) -> None:
    assert byte_count("x", text) == dalsegno.parse_bytes(text) == count
    settings = StoreSettings.read({"path": "/x", "capacity": text}, "here", "it")
    assert settings.capacity == count
    given = {"capacity": "16Mi", "segment": "1Mi", "index_rate": text}
    dalsegno.open(tmp_path / "store", **given).close()


@pytest.mark.parametrize("text", ["500m", "32g", "Gi", "1Pi", "-1", "inf", "nan", "", "1e3Gi"])
def test_an_invalid_byte_count_is_refused_with_its_name(text: str, tmp_path: Path) -> None:
    """`500m` is half a byte in Kubernetes, `32g` is 32 GiB in other programs."""
    with pytest.raises(dalsegno.InvalidError, match=re.escape(f"x is {text!r}")):
        byte_count("x", text)
    with pytest.raises(dalsegno.InvalidError, match='"capacity" cannot be'):
        dalsegno.open(tmp_path / "store", capacity=text)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), object(), [float("inf")]])
def test_regression_a_setting_that_is_not_a_number_is_refused_with_its_name(
    value: object, tmp_path: Path
) -> None:
    with pytest.raises(dalsegno.InvalidError, match=r"^merge_rate must be a finite number or text"):
        dalsegno.open(tmp_path / "store", merge_rate=value)


FAR = {
    "far": "/mnt/shared/kv",
    "far_capacity": "1TiB",
    "far_workers": 8,
    "far_write": "evict",
    "far_flush_s": 0.5,
}


def test_settings_of_the_far_tier_reach_the_store_from_every_engine() -> None:
    base = {"path": "/x", "weights_fingerprint": "w", **FAR}
    for kind in (StoreSettings, HiCacheSettings, AdapterSettings, TierSettings):
        settings = kind.read(base, "here", "it").store_settings()
        assert settings == {"dram": 0, **FAR, "far_capacity": 1 << 40}
    tier = expand({"cpu_bytes_to_use": "1GiB", **base}, on_cpu=True)["secondary_tiers"][0]
    assert FAR.items() <= tier.items()


def test_a_home_directory_is_found_behind_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/kv")
    assert StoreSettings.read({"path": "/x", "far": "~/far"}, "here", "it").far == "/home/kv/far"


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("far", 7, "must be text"),
        ("far_capacity", "lots", "must be bytes"),
        ("far_workers", 65, "from 1 to 64"),
        ("far_write", "always", "put, second-put, evict"),
        ("far_flush_s", 0, "seconds above 0"),
    ],
)
def test_a_wrong_setting_of_the_far_tier_is_refused_with_what_is_allowed(
    name: str, value: object, allowed: str
) -> None:
    with pytest.raises(dalsegno.InvalidError, match=rf"^{name} is .*{allowed}"):
        StoreSettings.read({"path": "/x", name: value}, "here", "it")


def test_a_setting_that_has_two_values_is_refused() -> None:
    given = {"path": "/x", "capacity": "1GiB", "store": {"capacity": "1024MiB", "far": "/a"}}
    assert StoreSettings.read(given, "here", "it").store_settings()["capacity"] == 1 << 30
    for name, value in (("far", "/b"), ("capacity", "2GiB")):
        message = f"^{name} has two values in here: .* give one$"
        with pytest.raises(dalsegno.InvalidError, match=message):
            StoreSettings.read({**given, name: value}, "here", "it")
