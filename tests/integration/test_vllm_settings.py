"""Settings and weights of the vLLM integration; needs no vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import dalsegno
from dalsegno.integrations.vllm import fingerprint
from dalsegno.integrations.vllm.settings import TierSettings, element_bytes, expand, parse_bytes

FLAT = {"path": "/kv", "capacity": "2GiB", "cpu_bytes_to_use": "512MiB"}
OLD = 1_600_000_000_000_000_000


def test_importing_the_integration_imports_no_engine() -> None:
    code = (
        "import sys, dalsegno.integrations.vllm as v\n"
        "assert not {'vllm', 'torch', 'dalsegno.integrations.vllm.tier'} & set(sys.modules)\n"
        "sys.modules['vllm'] = None\n"
        "try:\n    v.DalsegnoTier\n"
        "except ImportError as error:\n    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "DalsegnoTier needs vLLM 0.28 to 0.33" in said.stdout


def test_the_flat_configuration_becomes_vllms_own_once() -> None:
    extra = expand({**FLAT, "block_size": 256, "salt": "t", "store": {"dram": 5}}, on_cpu=True)
    tier = extra.pop("secondary_tiers")[0]
    assert extra == {
        "cpu_bytes_to_use": 512 << 20,
        "block_size": 256,
        "spec_name": "DalsegnoCpuSpec",
        "spec_module_path": "dalsegno.integrations.vllm",
    }
    assert tier["type"] == "DalsegnoTier"
    assert tier["module_path"] == "dalsegno.integrations.vllm"
    assert (tier["path"], tier["salt"], tier["store"]) == ("/kv", "t", {"dram": 5})
    whole = {**extra, "secondary_tiers": [tier]}
    assert expand(whole, on_cpu=True) == whole
    assert expand(FLAT, on_cpu=False)["spec_name"] == "TieringOffloadingSpec"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"pth": "/x"}, "did you mean 'path'"),
        ({"cpu_bytes_to_use": None}, "cpu_bytes_to_use"),
        ({"path": ""}, 'needs "path"'),
        ({"capacity": "2 Gb/s"}, "capacity is '2 Gb/s'"),
        ({"load_timeout_s": 0}, "load_timeout_s is 0"),
        ({"max_load_jobs": 1.5}, "max_load_jobs is 1.5"),
        ({"salt": 7}, "salt is 7"),
        ({"store": "x"}, "store is 'x'"),
        ({"codec": "lz4"}, 'codec is \'lz4\'; it must be "none" or "zstd"'),
        ({"codec": ["zstd"]}, "codec is"),
        ({"element_bytes": 2}, "unknown key 'element_bytes'"),
        ({"secondary_tiers": []}, "OffloadingConnector"),
        ({"identity": {"a": "b"}}, "unknown key 'identity'"),
        ({"options_fingerprint": "x"}, "unknown key 'options_fingerprint'"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name(change: dict[str, Any], says: str) -> None:
    with pytest.raises(dalsegno.InvalidError, match=says):
        expand({**FLAT, **change}, on_cpu=True)


def test_the_stores_own_settings_are_handed_on() -> None:
    plain = TierSettings.parse({"path": "~/kv"})
    assert plain.path.is_absolute()
    assert plain.store_settings() == {"dram": 0}
    given = TierSettings.parse({"path": "/kv", "capacity": "1GiB", "store": {"dram": 7}})
    assert given.store_settings() == {"dram": 7, "capacity": 1 << 30}
    with pytest.raises(dalsegno.InvalidError, match="locality"):
        TierSettings.parse({"path": "/kv", "locality": "MOON"})


def test_the_codec_is_off_unless_asked_for_and_reaches_the_tier() -> None:
    assert TierSettings.parse({"path": "/kv"}).codec == "none"
    tier = expand({**FLAT, "codec": "zstd"}, on_cpu=False)["secondary_tiers"][0]
    assert tier["codec"] == "zstd"
    del tier["type"], tier["module_path"]
    assert TierSettings.parse(tier).codec == "zstd"
    assert "codec" not in TierSettings.parse(tier).store_settings()


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
    assert [parse_bytes("x", one) for one in (7, "7", "1.5KiB", "2 TB")] == [7, 7, 1536, 2 * 10**12]


def model(folder: Path, *files: bytes) -> Path:
    """A model whose weight files are old enough to be remembered."""
    folder.mkdir()
    for number, content in enumerate(files):
        path = folder / f"model-{number}.safetensors"
        path.write_bytes(content)
        os.utime(path, ns=(OLD, OLD))
    (folder / "config.json").write_text("{}")
    return folder


def test_the_fingerprint_is_of_content_and_names_not_of_the_folder(tmp_path: Path) -> None:
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


def test_a_remembered_file_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model(tmp_path / "m", b"a")
    monkeypatch.setattr(fingerprint, "_SETTLED_NS", -(10**18))
    before = fingerprint.weights_fingerprint(folder)

    def refuse(path: Path) -> Any:
        raise AssertionError(f"{path} was read again")

    monkeypatch.setattr(fingerprint, "_hash", refuse)
    assert fingerprint.weights_fingerprint(folder) == before


def test_a_file_that_changed_just_now_is_not_remembered(tmp_path: Path) -> None:
    fingerprint.weights_fingerprint(model(tmp_path / "m", b"a"))
    assert not fingerprint.cache_file().exists()


def test_a_file_that_changes_meanwhile_has_no_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model(tmp_path / "m", b"a")
    monkeypatch.setattr(fingerprint, "_stamp", lambda path: [time.perf_counter_ns(), 0, 0, 0, 0])
    with pytest.raises(dalsegno.UnavailableError, match="changed while"):
        fingerprint.weights_fingerprint(folder)


def test_a_damaged_or_unwritable_memory_costs_only_time(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", b"a")
    target = fingerprint.cache_file()
    target.parent.mkdir(parents=True)
    target.write_text("{")
    before = fingerprint.weights_fingerprint(folder)
    target.unlink()
    target.mkdir()
    assert fingerprint.weights_fingerprint(folder) == before
