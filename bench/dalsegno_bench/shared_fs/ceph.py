"""CephFS: a monitor, a manager, two OSDs, a metadata server, and a `ceph-fuse` for each mount.

Its clients have capabilities: the metadata server lets one cache what it reads or writes, and asks
for it back when another one needs it. So nodes see each other's changes, and wait for each other.
"""

from __future__ import annotations

import json
import uuid
from functools import partial
from pathlib import Path
from typing import Any

from dalsegno_bench.shared_fs.cluster import Cluster
from dalsegno_bench.shared_fs.mounts import SharedFs, mount_both
from dalsegno_bench.shared_fs.processes import Server

PROGRAMS = ("ceph-mon", "ceph-mgr", "ceph-osd", "ceph-mds", "ceph-fuse", "ceph", "monmaptool")
OSDS = 2
# A sparse file: what is written takes space, and the rest does not.
OSD_BYTES = 8 << 30
# With the default of 5 s, a read of what another node has just written can take seconds.
MDS_TICK_S = 0.1

# All state is in the folder of the cluster. Nobody else reaches its address, so nobody signs in.
# Its servers would stop being root where they can, and then not find their folders.
CONFIGURATION = """[global]
fsid = {fsid}
mon host = [v2:{address}:3300,v1:{address}:6789]
public addr = {address}
cluster addr = {address}
ms bind ipv6 = false
auth cluster required = none
auth service required = none
auth client required = none
keyring = {folder}/keyring
setuser match path = {folder}/nobody
run dir = {folder}/run
admin socket = {folder}/run/$name.$pid.asok
pid file =
log file = {folder}/log/$name-messages.log
crash dir = {folder}/crash
mon data = {folder}/mon
mgr data = {folder}/mgr
mds data = {folder}/mds
osd data = {folder}/osd-$id
osd crush chooseleaf type = 0
osd memory target = 939524096
osd pool default size = 2
osd pool default min size = 1
osd pool default pg autoscale mode = off
bluestore block size = {osd_bytes}
bluestore block create = true
mds tick interval = {mds_tick_s}
"""


def start(cluster: Cluster, kind: str) -> SharedFs:
    """Starts CephFS and mounts it twice.

    Args:
        cluster: An empty cluster.
        kind: The name of the file system.

    Returns:
        The mounts.

    Raises:
        ClusterError: It does not start.
    """
    _configure(cluster)
    _start_monitor(cluster)
    _start(cluster, "mgr", "a")
    storage = tuple(_start_osd(cluster, number) for number in range(OSDS))
    cluster.wait("the OSDs are up", lambda: _asked(cluster, "osd", "stat")["num_up_osds"] == OSDS)
    _run(cluster, "osd", "pool", "create", "names", "8")
    _run(cluster, "osd", "pool", "create", "bytes", "16")
    _run(cluster, "fs", "new", "far", "names", "bytes")
    _start(cluster, "mds", "a")
    cluster.wait("the metadata server is active", lambda: _is_active(cluster))

    return mount_both(cluster, kind, storage, partial(_client, cluster))


def _configure(cluster: Cluster) -> None:
    for name in ("run", "crash", "mon", "mgr", "mds"):
        cluster.path(name)
    (cluster.folder / "keyring").touch()
    text = CONFIGURATION.format(
        fsid=uuid.uuid4(),
        address=cluster.address,
        folder=cluster.folder,
        osd_bytes=OSD_BYTES,
        mds_tick_s=MDS_TICK_S,
    )
    _configuration(cluster).write_text(text)


def _start_monitor(cluster: Cluster) -> None:
    monitors = cluster.folder / "monitors"
    addresses = f"[v2:{cluster.address}:3300,v1:{cluster.address}:6789]"
    fsid = _run_program(cluster, "ceph-conf", "--lookup", "fsid").strip()
    made = ("--create", "--fsid", fsid, "--addv", "a", addresses)
    cluster.run("monmaptool", *made, monitors)
    _run_program(cluster, "ceph-mon", "--id=a", "--mkfs", f"--monmap={monitors}")
    _start(cluster, "mon", "a")
    # Waits until the monitor responds.
    _run(cluster, "status")


def _start_osd(cluster: Cluster, number: int) -> Server:
    cluster.path(f"osd-{number}")
    name = str(uuid.uuid4())
    _run(cluster, "osd", "new", name)
    _run_program(cluster, "ceph-osd", f"--id={number}", "--mkfs", f"--osd-uuid={name}")
    return _start(cluster, "osd", str(number))


def _configuration(cluster: Cluster) -> Path:
    return cluster.folder / "ceph.conf"


def _start(cluster: Cluster, what: str, name: str) -> Server:
    here = (f"--conf={_configuration(cluster)}", f"--id={name}")
    return cluster.start(f"{what}-{name}", f"ceph-{what}", "--foreground", *here)


def _client(cluster: Cluster, point: Path) -> list[str | Path]:
    log = f"--log-file={cluster.folder}/log/{point.name}-messages.log"
    return ["ceph-fuse", "--foreground", f"--conf={_configuration(cluster)}", log, point]


def _run_program(cluster: Cluster, name: str, *words: str) -> str:
    return cluster.run(name, f"--conf={_configuration(cluster)}", *words)


def _run(cluster: Cluster, *words: str) -> str:
    """Runs a command of `ceph`."""
    return _run_program(cluster, "ceph", "--connect-timeout=30", *words)


def _asked(cluster: Cluster, *words: str) -> Any:
    """Returns what a command of `ceph` responds."""
    return json.loads(_run(cluster, *words, "--format=json"))


def _is_active(cluster: Cluster) -> bool:
    ranks = _asked(cluster, "mds", "stat")["fsmap"]["filesystems"][0]["mdsmap"]["info"].values()
    return any(rank["state"] == "up:active" for rank in ranks)
