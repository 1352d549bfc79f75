"""The shared file systems that can be started here: each is real, and mounted twice."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from dalsegno_bench.shared_fs import gluster, seaweed
from dalsegno_bench.shared_fs.cluster import Cluster, opened
from dalsegno_bench.shared_fs.mounts import SharedFs

__all__ = ["KINDS", "missing", "started"]

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
def started(kind: str) -> Iterator[SharedFs]:
    """A file system with two mounts. It ends with the block, also if its servers were paused.

    Args:
        kind: A key of `KINDS`, of which :func:`missing` says nothing.

    Yields:
        The mounts.

    Raises:
        ClusterError: It does not start; the message has the logs.
        TimeoutError: It does not end.
    """
    with opened(kind) as cluster:
        yield KINDS[kind](cluster, kind)
