"""Two mounts of one file system, as two nodes of a real cluster have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dalsegno_bench.shared_fs.cluster import Cluster
from dalsegno_bench.shared_fs.processes import Server

PROBE = b"both mounts work"


@dataclass(frozen=True)
class SharedFs:
    """A mounted file system.

    Attributes:
        kind: Its name, such as `gluster_default`.
        a: The mount of one node.
        b: The mount of another node.
        storage: The servers that hold the bytes: bricks or volume servers.
        clients: The processes behind `a` and `b`.
        cluster: All servers by name, and the folder that they write to.
    """

    kind: str
    a: Path
    b: Path
    storage: tuple[Server, ...]
    clients: tuple[Server, Server]
    cluster: Cluster

    @property
    def pair(self) -> tuple[Path, Path]:
        """Both mounts, for :func:`mounts_env`."""
        return self.a, self.b


def mount_both(
    cluster: Cluster,
    kind: str,
    storage: tuple[Server, ...],
    client: Callable[[Path], list[str | Path]],
) -> SharedFs:
    """Starts the clients `client-a` and `client-b`, and waits until both mounts work.

    Args:
        cluster: The cluster, whose folders `a` and `b` become the mount points.
        kind: The name of the file system.
        storage: The servers that hold the bytes.
        client: Returns the command of the client for a mount point; it stays in the foreground.

    Returns:
        The mounts.

    Raises:
        ClusterError: A mount does not work.
    """
    a, b = cluster.path("a"), cluster.path("b")
    clients = (cluster.start("client-a", *client(a)), cluster.start("client-b", *client(b)))
    for point in (a, b):
        cluster.wait(f"{point.name} is mounted", partial(cluster.is_mounted, point))
    cluster.wait("B reads what A writes", lambda: _works(a, b))
    return SharedFs(kind, a, b, storage, clients, cluster)


def _works(a: Path, b: Path) -> bool:
    try:
        (a / "probe").write_bytes(PROBE)
        read = (b / "probe").read_bytes()
        (a / "probe").unlink()
    except OSError:
        return False
    return read == PROBE


def mounts_env(pairs: Iterable[tuple[Path, Path]]) -> dict[str, str]:
    """Returns the environment variable by which a program outside Python finds the mounts.

    Args:
        pairs: Two mounts of one file system each.

    Returns:
        `DALSEGNO_FAR_MOUNTS` as `A:B`, several pairs with commas between.

    Raises:
        ValueError: There is no pair, or a path has a colon or a comma.
    """
    named = [(str(a), str(b)) for a, b in pairs]
    if not named or any(mark in path for pair in named for path in pair for mark in ":,"):
        raise ValueError(f"expected pairs of paths without colons and commas, got {named}")
    return {"DALSEGNO_FAR_MOUNTS": ",".join(map(":".join, named))}
