"""Tenants of a server: the users of each have a store and a pool of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.checkout import ROOT
from tests.served import ServerProcess, serving
from tests.unit.serve.blocks import COUNT, LIMIT_S, opened

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs programs of other users")

USER, STRANGER = 65_534, 65_533

# It prints how many hits it has before and after it put the same blocks.
AS_USER = """
import os, sys
from tests.unit.serve.blocks import opened
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
with opened(sys.argv[1]) as blocks:
    if not blocks.store.served:
        print("away")
    else:
        before = blocks.hits()
        blocks.fill()
        print(before, blocks.hits())
"""


def as_user(user: int, socket: str) -> str:
    """What the program prints as a user."""
    command = [sys.executable, "-c", AS_USER, socket, str(user)]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S
    )
    return done.stdout.strip()


def test_tenants_share_no_far_directory(tmp_path: Path) -> None:
    """What users of no tenant published, those of a tenant neither find nor remove."""
    far = tmp_path / "far"
    far.mkdir()
    with tempfile.TemporaryDirectory(prefix="dalsegno-") as folder:
        Path(folder).chmod(0o755)
        socket = Path(folder, "socket")
        tenants = [("blue", [USER])]
        settings = {"far": str(far), "far_flush_s": 0.1}
        store = tmp_path / "store"
        with serving(store, settings, socket=str(socket), tenants=tenants) as server:
            socket.chmod(0o666)
            with opened(f"unix:{socket}") as blocks:
                blocks.fill()
                until(lambda: published(server, 0) >= COUNT)
                blue = far / "tenants" / "blue"
                assert [path.stat().st_mode & 0o777 for path in (blue.parent, blue)] == [0o700] * 2
                assert as_user(USER, f"unix:{socket}") == f"0 {COUNT}"
                until(lambda: published(server, 1) >= COUNT)
            assert len(list(far.glob("*-*/*.pack"))) >= 1
            assert len(list(blue.glob("*-*/*.pack"))) >= 1


def published(server: ServerProcess, tenant: int) -> int:
    return int(server.stats()["tenants"][tenant]["store"]["far"]["published"]["blocks"])


def until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_users_of_a_tenant_share_a_store_that_no_other_user_has(tmp_path: Path) -> None:
    # Others may enter this folder; the folder of a test is private.
    with tempfile.TemporaryDirectory(prefix="dalsegno-") as folder:
        Path(folder).chmod(0o755)
        socket = Path(folder, "socket")
        tenants = [("blue", [USER])]
        with serving(tmp_path / "store", socket=str(socket), tenants=tenants) as server:
            assert as_user(USER, f"unix:{socket}") == "away"
            socket.chmod(0o666)
            with opened(f"unix:{socket}") as blocks:
                blocks.fill()
                assert as_user(USER, f"unix:{socket}") == f"0 {COUNT}"
                assert as_user(USER, f"unix:{socket}") == f"{COUNT} {COUNT}"
                # Users of no tenant share the store of the server's user.
                assert as_user(STRANGER, f"unix:{socket}") == f"{COUNT} {COUNT}"
                assert blocks.hits() == COUNT
            names = [tenant["tenant"] for tenant in server.stats()["tenants"]]
            assert names == ["", "blue"]
