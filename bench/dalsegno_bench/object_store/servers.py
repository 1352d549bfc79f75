"""Servers of object stores on loopback, each with a bucket.

SeaweedFS comes with the environment `far`, and versitygw too, which is built there once where Go is
installed. `make test-far-all` installs the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dalsegno_bench.object_store import more_servers
from dalsegno_bench.object_store.bucket import SERVER_PORT, VIRTUAL_DOMAIN, Bucket, accepts
from dalsegno_bench.shared_fs import seaweed
from dalsegno_bench.shared_fs.cluster import Cluster, ClusterError, opened
from dalsegno_bench.shared_fs.installed import find_program
from dalsegno_bench.shared_fs.mounts import SharedFs

__all__ = [
    "MORE_SERVERS",
    "SERVERS",
    "Bucket",
    "buckets_as_files",
    "missing",
    "running",
]

INSTALL, INSTALL_MORE = "make far-packages", "make test-far-all"

versitygw = partial(find_program, "far", "versitygw")


@dataclass(frozen=True)
class Kind:
    """A server that can be started.

    Attributes:
        find: Returns its program, if it is there.
        start: Starts it.
        install: What installs it.
    """

    find: Callable[[], Path | None]
    start: Callable[[Cluster, Path], Bucket]
    install: str = INSTALL


def _seaweed(cluster: Cluster, _program: Path) -> Bucket:
    bucket = Bucket(f"http://{cluster.address}:{SERVER_PORT}")
    credentials = {"accessKey": bucket.key_id, "secretKey": bucket.secret}
    identity = {"name": "tests", "credentials": [credentials], "actions": ["Admin"]}
    config = cluster.folder / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    storage = seaweed.start_storage(cluster)
    gateway = seaweed.start_s3(cluster, SERVER_PORT, config)
    seaweed.make_bucket(cluster, bucket.name)
    return replace(bucket, servers=(gateway, *storage))


def _versitygw(cluster: Cluster, program: Path) -> Bucket:
    bucket = Bucket(f"http://{cluster.address}:{SERVER_PORT}")
    storage = cluster.path("storage")
    # A folder of the gateway is a bucket of its root account.
    (storage / bucket.name).mkdir()
    of_root = (f"--access={bucket.key_id}", f"--secret={bucket.secret}")
    listens = (f"--port={cluster.address}:{SERVER_PORT}", "--quiet")
    domain = f"--virtual-domain={VIRTUAL_DOMAIN}:{SERVER_PORT}"
    server = cluster.start("versitygw", program, *of_root, *listens, domain, "posix", storage)
    cluster.wait("versitygw listens", lambda: accepts(cluster.address))
    return replace(bucket, servers=(server,))


_KINDS = {
    "seaweed": Kind(seaweed.program, _seaweed),
    "versitygw": Kind(versitygw, _versitygw),
    "minio": Kind(more_servers.minio, more_servers.start_minio, INSTALL_MORE),
    "moto": Kind(more_servers.moto, more_servers.start_moto, INSTALL_MORE),
    "s3proxy": Kind(more_servers.s3proxy, more_servers.start_s3proxy, INSTALL_MORE),
    "fake-gcs-server": Kind(more_servers.fake_gcs, more_servers.start_fake_gcs, INSTALL_MORE),
    "azurite": Kind(more_servers.azurite, more_servers.start_azurite, INSTALL_MORE),
}
SERVERS = ("seaweed", "versitygw")
# Only `make test-far-all` starts these. CI has not the time to install them.
MORE_SERVERS = tuple(name for name in _KINDS if name not in SERVERS)


def missing(server: str) -> str | None:
    """What is missing to start a server, and how to get it; None if nothing is."""
    kind = _KINDS[server]
    return None if kind.find() else f"{server} is missing: {kind.install} installs it"


@contextmanager
def running(server: str) -> Iterator[Bucket]:
    """Starts one of `SERVERS` or `MORE_SERVERS`.

    Yields:
        An empty bucket.

    Raises:
        ClusterError: It does not start.
    """
    kind = _KINDS[server]
    program = kind.find()
    if program is None:
        raise ClusterError(missing(server))
    with opened("s3" if server == "seaweed" else server) as cluster:
        yield kind.start(cluster, program)


@contextmanager
def buckets_as_files() -> Iterator[tuple[Bucket, SharedFs]]:
    """Starts versitygw, whose buckets are folders, and objects are files.

    Yields:
        An empty bucket, and the folder of all buckets as a file system of two nodes, whose clients
        are the server. Each folder that is made there is a bucket.

    Raises:
        ClusterError: It does not start.
    """
    program = versitygw()
    if program is None:
        raise ClusterError(missing("versitygw"))
    with opened("versitygw") as cluster:
        bucket = _versitygw(cluster, program)
        folder, (server,) = cluster.path("storage"), bucket.servers
        yield bucket, SharedFs("bucket", folder, folder, bucket.servers, (server, server), cluster)
