"""JuiceFS: Redis for names, a local directory for bytes, and a FUSE client for each mount.

Names and bytes are in different places. A client asks Redis what a file consists of, and reads its
blocks from the directory, which stands for the object storage that all nodes of a real cluster use.
"""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path

from dalsegno_bench.shared_fs.cluster import Cluster
from dalsegno_bench.shared_fs.installed import find_program
from dalsegno_bench.shared_fs.mounts import SharedFs, mount_both

PROGRAMS = ("redis-server",)
REDIS, METRICS = 6379, 9567

program = partial(find_program, "far-all", "juicefs")


def start(cluster: Cluster, kind: str) -> SharedFs:
    """Starts Redis, makes a volume and mounts it twice.

    Args:
        cluster: An empty cluster.
        kind: The name of the file system.

    Returns:
        The mounts. The storage is Redis: a client that does not reach it finds no block.

    Raises:
        ClusterError: It does not start.
    """
    juicefs = program()
    assert juicefs is not None, "JuiceFS is missing"
    redis = cluster.start("redis", "redis-server", *_redis_options(cluster))
    cluster.wait("redis responds", lambda: _responds(cluster.address))

    volume = f"redis://{cluster.address}:{REDIS}/0"
    # Removed files free their space immediately, as on the other file systems.
    storage = ("--storage", "file", "--bucket", f"{cluster.path('objects')}/", "--trash-days", "0")
    cluster.run(juicefs, "format", *storage, volume, "far")

    return mount_both(cluster, kind, (redis,), partial(_client, cluster, juicefs, volume))


def _redis_options(cluster: Cluster) -> list[str | Path]:
    # Its title would take the place of the environment, by which a process belongs to a cluster.
    here = ("--bind", cluster.address, "--port", str(REDIS), "--set-proc-title", "no")
    # Nothing outlives the process.
    return [*here, "--dir", cluster.path("redis"), "--save", "", "--appendonly", "no"]


def _responds(address: str) -> bool:
    try:
        with socket.create_connection((address, REDIS), timeout=5) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _client(cluster: Cluster, juicefs: Path, volume: str, point: Path) -> list[str | Path]:
    return [
        # Without it the process of the mount is a child, and is started again when it is killed.
        *("env", "JFS_SUPERVISOR=1"),
        *(juicefs, "mount", "--no-usage-report", "--no-syslog", "--no-agent"),
        # The second client takes the next free port.
        f"--metrics={cluster.address}:{METRICS}",
        f"--cache-dir={cluster.path(f'cache-{point.name}')}",
        *(volume, point),
    ]
