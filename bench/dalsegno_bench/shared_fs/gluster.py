"""GlusterFS: `glusterd`, a replicated volume on two bricks, and a FUSE client for each mount.

With default options its clients cache what other nodes change. The tuned volume switches off what
caches, on both sides.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path

from dalsegno_bench.shared_fs.cluster import Cluster
from dalsegno_bench.shared_fs.mounts import SharedFs, mount_both
from dalsegno_bench.shared_fs.processes import Server, processes_of

PROGRAMS = ("glusterd", "gluster", "glusterfs", "glusterfsd")
VOLUME = "far"

# Which of these cures stale reads has not been measured one by one.
TUNED_VOLUME = (
    "quick-read",
    "io-cache",
    "stat-prefetch",
    "read-ahead",
    "open-behind",
    "write-behind",
)
TUNED_MOUNT = ("--entry-timeout=0", "--attribute-timeout=0", "--direct-io-mode=enable")

# All state is in the folder of the cluster. `cluster-test-mode` is the folder of the bricks' logs.
# Gluster refuses 127.0.0.1 as the host of a brick and accepts all others of 127.0.0.0/8.
MANAGEMENT = """volume management
    type mgmt/glusterd
    option working-directory {folder}/glusterd
    option run-directory {folder}/run
    option glusterd-sockfile {folder}/glusterd.sock
    option cluster-test-mode {folder}/log
    option transport-type socket
    option transport.address-family inet
    option transport.socket.bind-address {address}
    option transport.socket.listen-port 24007
    option transport.socket.keepalive-time 10
    option transport.socket.keepalive-interval 2
    option ping-timeout 0
    option event-threads 1
    option max-port 60999
end-volume
"""


def start(cluster: Cluster, kind: str, *, tuned: bool) -> SharedFs:
    """Starts GlusterFS and mounts it twice.

    Args:
        cluster: An empty cluster.
        kind: The name of the file system.
        tuned: Whether clients cache nothing; else options are the defaults.

    Returns:
        The mounts.

    Raises:
        ClusterError: It does not start.
    """
    _start_management(cluster)
    bricks = [cluster.path(name) for name in ("brick-1", "brick-2")]
    places = [f"{cluster.address}:{brick}" for brick in bricks]
    # The bricks are on the file system of the root, which Gluster accepts only when forced.
    _manage(cluster, "create", VOLUME, "replica", "2", *places, "force")
    if tuned:
        settings = [word for name in TUNED_VOLUME for word in (f"performance.{name}", "off")]
        _manage(cluster, "set", VOLUME, *settings)
    _manage(cluster, "start", VOLUME)
    storage = tuple(_adopt(cluster, brick.name, str(brick)) for brick in bricks)
    _adopt(cluster, "self-heal", "glustershd")
    return mount_both(cluster, kind, storage, partial(_client, cluster, tuned=tuned))


def _start_management(cluster: Cluster) -> None:
    cluster.path("run")
    volfile = cluster.folder / "glusterd.vol"
    volfile.write_text(MANAGEMENT.format(folder=cluster.folder, address=cluster.address))
    log = cluster.path("log") / "management.log"
    pid_file = cluster.folder / "glusterd.pid"
    options = (f"--volfile={volfile}", f"--log-file={log}", f"--pid-file={pid_file}")
    cluster.start("glusterd", "glusterd", "--no-daemon", *options)
    socket = cluster.folder / "glusterd.sock"
    cluster.wait("glusterd listens", socket.is_socket)


def profile(cluster: Cluster, *words: str) -> str:
    """Runs `gluster volume profile`, such as `start` and `info`; returns its XML."""
    return _manage(cluster, "profile", VOLUME, *words)


def _manage(cluster: Cluster, *words: str) -> str:
    """Runs a command of `gluster volume`; returns its XML."""
    options = (
        "--xml",
        "--mode=script",
        f"--glusterd-sock={cluster.folder}/glusterd.sock",
        f"--log-file={cluster.folder}/log/commands.log",
    )
    return cluster.run("gluster", *options, "volume", *words)


def _adopt(cluster: Cluster, name: str, word: str) -> Server:
    """Adds a process that `glusterd` has started, and that has a word in its command line."""
    found: list[tuple[int, list[str]]] = []

    def ready() -> bool:
        for pid in processes_of(cluster.folder):
            # It may have ended: a daemon's parent has the same words for a moment.
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                if word in words and "-S" in words and os.getsid(pid) == pid:
                    found.append((pid, words))
        return bool(found)

    cluster.wait(f"{name} runs", ready)
    pid, words = found[-1]
    # Gluster keeps these sockets in a fixed folder.
    cluster.remove_too(Path(words[words.index("-S") + 1]))
    return cluster.adopt(name, pid)


def _client(cluster: Cluster, point: Path, *, tuned: bool) -> list[str | Path]:
    return [
        "glusterfs",
        "--no-daemon",
        "--process-name=fuse",
        f"--volfile-server={cluster.address}",
        f"--volfile-id={VOLUME}",
        f"--log-file={cluster.folder}/log/{point.name}.log",
        *(TUNED_MOUNT if tuned else ()),
        point,
    ]
