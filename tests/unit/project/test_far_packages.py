"""Installing the file systems that tests mount (tools/far_packages.py)."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from tests.checkout import load_tool


def ended(code: int) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(["env.py"], code)


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module on a machine that has apt-get and none of the programs; nothing is installed."""
    module = load_tool("far_packages")
    lacking = {
        "GlusterFS": ["glusterd"],
        "CephFS": ["ceph-mon"],
        "Redis": ["redis-server"],
        "the libraries of Mooncake": ["ibverbs"],
    }
    monkeypatch.setattr(module.Debian, "missing_programs", lambda self: lacking[self.title])
    monkeypatch.setattr(module.os, "geteuid", lambda: 0)
    monkeypatch.setattr(module.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(module, "apt", lambda *words: "no network")
    monkeypatch.setattr(module, "programs_of", lambda _, title, __: module.say(f"{title} is there"))
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: ended(1))
    return module


def test_what_cannot_be_installed_is_reported_and_no_failure(
    tool: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main([]) == 0
    shown = capsys.readouterr().out
    assert "SKIPPED GlusterFS: glusterd missing, and no network" in shown
    assert "SKIPPED SeaweedFS: its environment could not be built" in shown
    assert not any(name in shown for name in ("CephFS", "Redis", "JuiceFS", "minio", "Mooncake")), (
        "CI needs none"
    )


def test_all_file_systems_are_installed_on_request(
    tool: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main(["--all"]) == 0
    shown = capsys.readouterr().out
    for name in ("GlusterFS", "CephFS", "Redis", "SeaweedFS", "JuiceFS and moto", "Mooncake"):
        assert f"SKIPPED {name}: " in shown
    for name in ("versitygw", "minio", "fake-gcs-server", "azurite-blob", "s3proxy.classpath"):
        assert f"{name} is there" in shown


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("os.geteuid", lambda: 1000, "only root may install packages"),
        ("shutil.which", lambda name: None, "there is no apt-get"),
    ],
)
def test_without_root_or_apt_get_nothing_is_installed(
    tool: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: object,
    reason: str,
) -> None:
    monkeypatch.setattr(name, value)
    monkeypatch.setattr(tool, "apt", lambda *words: pytest.fail("apt-get ran"))
    assert tool.main([]) == 0
    assert reason in capsys.readouterr().out


def test_what_is_there_is_not_installed_again(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool.Debian, "missing_programs", lambda self: [])
    monkeypatch.setattr(tool, "apt", lambda *words: pytest.fail("apt-get ran"))
    monkeypatch.setattr(
        tool.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess(["env.py"], 0)
    )
    assert tool.main([]) == 0
    shown = capsys.readouterr().out
    assert shown == "far-packages: GlusterFS is there\nfar-packages: versitygw is there\n"
