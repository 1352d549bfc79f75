"""Shared file systems for tests: each is real, and mounted twice.

Each kind is a fixture of `tests/far`, which starts it once for a module. A test that kills servers
starts its own with :func:`mounted`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.far import gluster, seaweed
from tests.far.cluster import Cluster, opened
from tests.far.mounts import SharedFs
from tests.skipping import skip_if_missing

INSTALL = "install it as root with: make far-packages"
CAP_SYS_ADMIN = 21

KINDS: dict[str, Callable[[Cluster, str], SharedFs]] = {
    "gluster_default": partial(gluster.start, tuned=False),
    "gluster_tuned": partial(gluster.start, tuned=True),
    "seaweed": seaweed.start,
}


def missing(kind: str) -> str | None:
    """Says what is missing to mount a kind of file system; `None` if nothing is known to be."""
    if os.geteuid() != 0 or not _may_mount():
        return "only root with CAP_SYS_ADMIN may mount a file system"
    if not Path("/dev/fuse").exists():
        return "there is no /dev/fuse"
    if shutil.which("setpriv") is None:
        return "setpriv is missing: it is part of util-linux"
    if kind == "seaweed":
        return f"SeaweedFS is missing: {INSTALL}" if seaweed.program() is None else None
    lacking = [name for name in gluster.PROGRAMS if shutil.which(name) is None]
    return f"GlusterFS is missing ({', '.join(lacking)}): {INSTALL}" if lacking else None


def _may_mount() -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> CAP_SYS_ADMIN & 1)
    return False


@contextmanager
def mounted(kind: str) -> Iterator[SharedFs]:
    """A file system with two mounts. It ends with the block, also if its servers were paused.

    Skips the test where something is missing. In CI the test fails, unless `DALSEGNO_MAY_SKIP`
    has `shared-fs`.

    Args:
        kind: A key of `KINDS`.

    Yields:
        The mounts.

    Raises:
        ClusterError: It does not start; the message has the logs.
        TimeoutError: It does not end.
    """
    skip_if_missing(missing(kind), "shared-fs")
    with opened(kind) as cluster:
        yield KINDS[kind](cluster, kind)
