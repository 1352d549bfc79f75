"""SeaweedFS: a master, two volume servers, a filer, and a FUSE client for each mount, or S3.

Its clients check locks and exclusive creation on their own node only. It is the file system on
which code that trusts them fails.
"""

from __future__ import annotations

import http.client
from functools import partial
from pathlib import Path

from dalsegno_bench.shared_fs.cluster import Cluster
from dalsegno_bench.shared_fs.installed import find_program
from dalsegno_bench.shared_fs.mounts import SharedFs, mount_both
from dalsegno_bench.shared_fs.processes import Server

# Each program also listens on the port plus 10000, and on 127.0.0.1 where the port is free there.
MASTER, FILER = 19333, 18888
VOLUMES = {"volume-1": 18081, "volume-2": 18082}

program = partial(find_program, "far", "weed")


def start(cluster: Cluster, kind: str) -> SharedFs:
    """Starts SeaweedFS and mounts it twice.

    Args:
        cluster: An empty cluster.
        kind: The name of the file system.

    Returns:
        The mounts.

    Raises:
        ClusterError: It does not start.
    """
    storage = start_storage(cluster)
    return mount_both(cluster, kind, storage, partial(_client, cluster))


def start_storage(cluster: Cluster) -> tuple[Server, ...]:
    """Starts all but clients; returns the servers that keep bytes.

    Raises:
        ClusterError: They do not start.
    """
    master = f"-master={cluster.address}:{MASTER}"
    state = f"-mdir={cluster.path('master-state')}"
    # A master that waits for no peers is ready immediately.
    _start(cluster, "master", MASTER, state, "-volumeSizeLimitMB=1024", "-peers=none")
    _wait(cluster, "master", MASTER, "/cluster/status")

    storage = []
    for name, port in VOLUMES.items():
        options = (f"-dir={cluster.path(name)}", "-max=100", f"-rack={name}", master)
        storage.append(_start(cluster, name, port, *options))
    for name, port in VOLUMES.items():
        _wait(cluster, name, port, "/status")

    state = f"-defaultStoreDir={cluster.path('filer-state')}"
    _start(cluster, "filer", FILER, state, f"-localSocket={cluster.folder}/filer.sock", master)
    _wait(cluster, "filer", FILER, "/")
    return tuple(storage)


def start_s3(cluster: Cluster, port: int, config: Path) -> Server:
    """Starts the S3 server of a cluster whose storage runs.

    Args:
        cluster: The cluster.
        port: Where it listens.
        config: Who may do what, in the format of SeaweedFS.

    Raises:
        ClusterError: It does not start.
    """
    server = cluster.start(
        "s3",
        *_command("s3"),
        f"-ip.bind={cluster.address}",
        f"-port={port}",
        "-port.iceberg=0",
        "-port.lance=0",
        "-iam=false",
        f"-filer={cluster.address}:{FILER}",
        f"-localSocket={cluster.folder}/s3.sock",
        f"-config={config}",
    )
    _wait(cluster, "s3", port, "/healthz")
    return server


def make_bucket(cluster: Cluster, name: str) -> None:
    """Makes an empty bucket.

    Raises:
        ClusterError: It cannot be made.
    """
    shell = " ".join(map(str, (*_command("shell"), f"-master={cluster.address}:{MASTER}")))
    cluster.run("sh", "-c", f"echo s3.bucket.create -name {name} | {shell}")


def _command(what: str) -> list[str | Path]:
    weed = program()
    assert weed is not None, "SeaweedFS is missing"
    return [weed, "-logtostderr=true", what]


def _start(cluster: Cluster, name: str, port: int, *options: str) -> Server:
    # "volume-1" is a "volume".
    command = _command(name.partition("-")[0])
    here = (f"-ip={cluster.address}", f"-ip.bind={cluster.address}", f"-port={port}")
    return cluster.start(name, *command, *here, *options)


def _client(cluster: Cluster, point: Path) -> list[str | Path]:
    return [
        *_command("mount"),
        f"-filer={cluster.address}:{FILER}",
        "-filer.path=/far",
        f"-dir={point}",
        f"-cacheDir={cluster.path(f'cache-{point.name}')}",
        f"-localSocket={cluster.folder}/{point.name}.sock",
    ]


def _wait(cluster: Cluster, name: str, port: int, path: str) -> None:
    cluster.wait(f"{name} responds", lambda: _responds(cluster.address, port, path))


def _responds(address: str, port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(address, port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
