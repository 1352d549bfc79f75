"""The shared file systems that can be started here: each is real, and mounted twice."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dalsegno_bench.shared_fs import ceph, gluster, juicefs, seaweed
from dalsegno_bench.shared_fs.cluster import Cluster, opened
from dalsegno_bench.shared_fs.mounts import SharedFs

__all__ = ["KINDS", "MORE_KINDS", "missing", "started"]

INSTALL = "install it as root with: make far-packages"
INSTALL_MORE = "install it as root with: python3 tools/far_packages.py --all"
CAP_SYS_ADMIN = 21


@dataclass(frozen=True)
class Kind:
    """A file system that can be started.

    Attributes:
        title: Its name for people.
        lacking: Returns the names of its programs that are not there.
        install: What to do then.
        start: Starts it and mounts it twice.
    """

    title: str
    lacking: Callable[[], list[str]]
    install: str
    start: Callable[[Cluster, str], SharedFs]


def _lacking(*programs: str, **others: Callable[[], Path | None]) -> list[str]:
    """Returns what is not there, of programs by name and of others that a function finds."""
    names = [name for name in programs if shutil.which(name) is None]
    return names + [name for name, find in others.items() if find() is None]


def _gluster(*, tuned: bool) -> Kind:
    lacking = partial(_lacking, *gluster.PROGRAMS)
    return Kind("GlusterFS", lacking, INSTALL, partial(gluster.start, tuned=tuned))


_SEAWEED = partial(_lacking, weed=seaweed.program)
_JUICEFS = partial(_lacking, *juicefs.PROGRAMS, juicefs=juicefs.program)
_CEPH = partial(_lacking, *ceph.PROGRAMS)

# Only `make test-far-all` mounts these. CI has neither their packages nor the time.
MORE_KINDS = {
    "juicefs": Kind("JuiceFS", _JUICEFS, INSTALL_MORE, juicefs.start),
    "cephfs": Kind("CephFS", _CEPH, INSTALL_MORE, ceph.start),
}

KINDS = {
    "gluster_default": _gluster(tuned=False),
    "gluster_tuned": _gluster(tuned=True),
    "seaweed": Kind("SeaweedFS", _SEAWEED, INSTALL, seaweed.start),
    **MORE_KINDS,
}


def missing(kind: str) -> str | None:
    """Says what is missing to mount a kind of file system; `None` if nothing is known to be."""
    if os.geteuid() != 0 or not _may_mount():
        return "only root with CAP_SYS_ADMIN may mount a file system"
    if not Path("/dev/fuse").exists():
        return "there is no /dev/fuse"
    if shutil.which("setpriv") is None:
        return "setpriv is missing: it is part of util-linux"
    wanted = KINDS[kind]
    lacking = wanted.lacking()
    return (
        f"{wanted.title} is missing ({', '.join(lacking)}): {wanted.install}" if lacking else None
    )


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
        yield KINDS[kind].start(cluster, kind)
