"""Settings of the vLLM integration. They need no vLLM, but run where there is one."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import dalsegno
from dalsegno.integrations.vllm.settings import TierSettings, expand

pytestmark = pytest.mark.engine

FLAT = {"path": "/kv", "capacity": "2GiB", "cpu_bytes_to_use": "512MiB"}


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
    on_gpu = expand(FLAT, on_cpu=False)
    assert (on_gpu["spec_name"], on_gpu["spec_module_path"]) == (
        "DalsegnoSpec",
        extra["spec_module_path"],
    )


def test_vllms_own_settings_reach_vllm_and_not_the_tier() -> None:
    """Those of 0.33 too: `sync_load_budget_bytes` loads small hits inside the step."""
    theirs = {
        "backpressure": {"backpressure_cls": "EMABackpressureDetector"},
        "cache_policy_module_path": "site.policy",
        "canonical_layout": True,
        "eviction_policy": "arc",
        "sync_load_budget_bytes": "64MiB",
        "tier_poll_interval_s": 0.01,
    }
    extra = expand({**FLAT, **theirs}, on_cpu=False)
    tier = extra["secondary_tiers"][0]
    assert {name: extra[name] for name in theirs} == {**theirs, "sync_load_budget_bytes": 64 << 20}
    assert not set(tier) & set(theirs)
    assert expand(extra, on_cpu=False) == extra


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"pth": "/x"}, "did you mean 'path'"),
        ({"cpu_bytes_to_use": None}, "cpu_bytes_to_use"),
        ({"cpu_bytes_to_use": 0}, "cpu_bytes_to_use is 0"),
        ({"sync_load_budget_bytes": "much"}, "sync_load_budget_bytes is 'much'"),
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


def test_the_stores_own_settings_are_passed_on() -> None:
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
