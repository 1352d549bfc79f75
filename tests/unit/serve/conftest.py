"""A server, and a client of it in the test's process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.served import ServerProcess, serving
from tests.unit.serve.blocks import Blocks, opened


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server without blocks. The test may kill it."""
    with serving(tmp_path / "store") as running:
        yield running


@pytest.fixture
def blocks(server: ServerProcess) -> Iterator[Blocks]:
    """A client that has put blocks."""
    with opened(server.socket) as client:
        client.fill()
        yield client
