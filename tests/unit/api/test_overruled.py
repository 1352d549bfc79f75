"""Settings of a client that its server does not have."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

import dalsegno


def test_settings_that_differ_from_the_servers_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dalsegno")
    path = tmp_path / "kv"
    server = dalsegno.Server(path, json.dumps({"capacity": "64MiB", "dram": "1MiB"}))
    with dalsegno.open(path, capacity="64MiB", dram=1 << 20, durability="none"):
        assert not caplog.records
    with dalsegno.open(path, capacity="128MiB", dram=0, durability="batch"):
        (record,) = caplog.records
    server.close()
    text = record.getMessage()
    assert "capacity is 67108864, not '128MiB'" in text
    assert "dram is 1048576, not 0" in text
    assert "durability is 'none', not 'batch'" in text
