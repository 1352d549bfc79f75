"""A client and a server that do not see each other's process numbers, as in containers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.checkout import ROOT
from tests.served import ServerProcess, serving
from tests.unit.serve.blocks import COUNT, LIMIT_S, Blocks, opened, wait_until

CLIENT = """
import sys
from tests.unit.serve.blocks import opened
with opened(sys.argv[1]) as blocks:
    print(blocks.hits())
"""


@pytest.fixture
def inside() -> list[str]:
    """What starts a program with process numbers of its own."""
    command = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, *command, "true"], check=False).returncode != 0:
        pytest.skip("this system lets no user start a process namespace")
    return [unshare, *command]


def test_a_client_in_a_container_is_served(
    inside: list[str], server: ServerProcess, blocks: Blocks
) -> None:
    command = [*inside, sys.executable, "-c", CLIENT, server.socket]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S
    )
    assert done.stdout.strip() == str(COUNT)
    assert blocks.hits() == COUNT


def test_a_server_in_a_container_serves(inside: list[str], tmp_path: Path) -> None:
    with serving(tmp_path / "store", prefix=inside) as server, opened(server.socket) as blocks:
        blocks.fill()
        assert blocks.hits() == COUNT
        # Each process has an account of its own here, too.
        command = [*inside, sys.executable, "-c", CLIENT, server.socket]
        subprocess.run(command, cwd=ROOT, check=True, timeout=LIMIT_S)
        wait_until(lambda: server.tenant()["clients"] == 1, "the process is forgotten")
