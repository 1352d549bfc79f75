"""Shared file systems, each started once for a module and mounted twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.far.shared_fs import mounted

from dalsegno_bench.shared_fs.mounts import SharedFs


@pytest.fixture(scope="module")
def gluster_default() -> Iterator[SharedFs]:
    """GlusterFS with default options: a client caches what other nodes change."""
    with mounted("gluster_default") as fs:
        yield fs


@pytest.fixture(scope="module")
def gluster_tuned() -> Iterator[SharedFs]:
    """GlusterFS with caches switched off."""
    with mounted("gluster_tuned") as fs:
        yield fs


@pytest.fixture(scope="module")
def seaweed() -> Iterator[SharedFs]:
    """SeaweedFS, whose locks and exclusive creation hold on one node only."""
    with mounted("seaweed") as fs:
        yield fs
