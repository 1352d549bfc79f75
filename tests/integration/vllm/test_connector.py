"""`DalsegnoConnector` without an engine: what it makes of vLLM's settings, and a refused start."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.integration.vllm import tiers
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

import dalsegno
from dalsegno.integrations.vllm import connector, identity, shared_memory
from dalsegno.integrations.vllm.connector import DalsegnoConnector, configure

pytestmark = pytest.mark.engine


def transfer(extra: dict[str, Any] | None = None, **changes: Any) -> KVTransferConfig:
    """vLLM's own configuration object."""
    flat = {"path": "/kv", "capacity": "2GiB", "cpu_bytes_to_use": "512MiB", **(extra or {})}
    return KVTransferConfig(
        kv_connector="DalsegnoConnector",
        kv_role="kv_both",
        kv_connector_module_path="dalsegno.integrations.vllm",
        kv_connector_extra_config=flat,
        **changes,
    )


def policy(of: KVTransferConfig) -> str:
    """The policy after the processes of an engine configured it, one after the other."""
    for _ in range(3):
        configure(SimpleNamespace(kv_transfer_config=of))
    return str(of.kv_load_failure_policy)


def test_failed_loads_are_computed_unless_the_user_chose_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text("kv-transfer-config:\n  kv_load_failure_policy: fail\n")
    other = tmp_path / "other.yaml"
    other.write_text("dtype: float32\n")
    json_text = '{"kv_connector": "DalsegnoConnector", "kv_load_failure_policy": "fail"}'
    for arguments, expected in (
        ([], "recompute"),
        (["serve", "m", "--kv-transfer-config", '{"kv_connector": "X"}'], "recompute"),
        (["serve", "m", "--config", str(other)], "recompute"),
        (["serve", "m", "--config", str(tmp_path / "missing")], "recompute"),
        (["serve", "m", "--config"], "recompute"),
        (["serve", "m", "--kv-transfer-config", json_text], "fail"),
        (["serve", "m", "--kv-transfer-config.kv-load-failure-policy", "fail"], "fail"),
        (["serve", "m", "--config", str(file)], "fail"),
        (["serve", "m", f"--config={file}"], "fail"),
    ):
        monkeypatch.setattr(sys, "argv", ["vllm", *arguments])
        assert policy(transfer()) == expected, arguments
    monkeypatch.setattr(sys, "argv", ["vllm"])
    assert policy(transfer(kv_load_failure_policy="recompute")) == "recompute"
    assert policy(transfer({"kv_load_failure_policy": "fail"})) == "fail"
    assert policy(transfer({"kv_load_failure_policy": "recompute"})) == "recompute"
    with pytest.raises(dalsegno.InvalidError, match="must be fail or recompute"):
        configure(SimpleNamespace(kv_transfer_config=transfer({"kv_load_failure_policy": "no"})))


@pytest.mark.parametrize(("chosen", "warnings"), [("fail", 1), (None, 0)])
def test_who_chose_to_fail_is_warned_once(
    chosen: str | None, warnings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(connector.logger, "warning", lambda text, *_: said.append(text))
    monkeypatch.setattr(identity, "engine_identity", lambda *_: {"a": "b"})
    monkeypatch.setattr(OffloadingConnector, "__init__", lambda *_: None)
    config = SimpleNamespace(
        kv_transfer_config=transfer({"kv_load_failure_policy": chosen} if chosen else {})
    )
    for role in (KVConnectorRole.WORKER, KVConnectorRole.SCHEDULER):
        DalsegnoConnector(config, role, None)
    assert len(said) == warnings
    assert all("Set it to recompute" in text for text in said)


def test_a_start_that_the_identity_refuses_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise dalsegno.IncompatibleError("this model cannot be used")

    monkeypatch.setattr(identity, "engine_identity", refuse)
    config = SimpleNamespace(kv_transfer_config=transfer())
    worker = tiers.region(config.kv_transfer_config.engine_id, 2, 0, 4096)
    shared_memory.quiet_cleanup(worker)
    path = Path(worker.mmap_path)
    assert path.exists()
    with pytest.raises(dalsegno.IncompatibleError, match="cannot be used"):
        DalsegnoConnector(config, KVConnectorRole.SCHEDULER, None)
    assert not path.exists()
    worker.cleanup()
