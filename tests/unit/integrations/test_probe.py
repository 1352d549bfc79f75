"""Short measurements at the start of an engine."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from dalsegno.integrations.common import probe

OPEN_FILES = Path("/proc/self/fd")


def test_a_disk_is_measured_and_keeps_nothing(tmp_path: Path) -> None:
    measured = probe.disk(tmp_path)
    assert measured is not None
    latency_s, bytes_per_s = measured
    assert 0 < latency_s < 1
    assert 1e5 < bytes_per_s < 1e12
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_measured_is_left_out(tmp_path: Path) -> None:
    assert probe.disk(tmp_path / "missing") is None
    assert probe.disk(Path("/proc")) is None
    assert set(probe.tiers("unix:/run/dalsegno.sock")) == {"dram"}
    assert set(probe.tiers(str(tmp_path))) == {"dram", "log"}
    assert set(probe.tiers(str(tmp_path / "missing"))) == {"dram"}


def test_a_full_disk_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = len(list(OPEN_FILES.iterdir()))
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    assert probe.disk(tmp_path) is None
    assert len(list(OPEN_FILES.iterdir())) == files


def test_a_slow_disk_is_measured_by_what_it_has_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(probe, "MOST_DISK_S", 0.0)
    measured = probe.disk(tmp_path)
    assert measured is None or measured[1] < 1e12


def test_a_disk_that_writes_slowly_is_measured_by_what_it_has_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(probe, "MOST_WRITE_S", 0.0)
    written, write = list[int](), os.pwrite

    def pwrite(file: int, data: Any, at: int) -> int:
        written.append(at)
        return write(file, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    assert probe.disk(tmp_path) is not None
    assert written == [0]


def test_nobody_waits_for_a_disk_that_hangs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    responds = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda _: responds.wait(60))
    monkeypatch.setattr(probe, "MOST_WAIT_S", 0.1)
    assert set(probe.tiers(str(tmp_path))) == {"dram"}
    responds.set()


def test_memory_is_measured() -> None:
    assert 1e7 < probe.memory() < 1e13
