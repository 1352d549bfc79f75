"""S3 servers on loopback, each with a bucket.

SeaweedFS comes with the environment `far`, and versitygw too, which is built there once where Go is
installed.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from dalsegno_bench.shared_fs import seaweed
from dalsegno_bench.shared_fs.cluster import Cluster, ClusterError, opened
from dalsegno_bench.shared_fs.installed import find_program
from dalsegno_bench.shared_fs.processes import Server

__all__ = ["SERVERS", "Bucket", "missing", "running", "seaweed_s3"]

SERVERS = ("seaweed", "versitygw")
S3_PORT = 18333
NAME = "dalsegno"
# Credentials of a server that nobody else reaches. Tests look for them in all that is written.
KEY_ID, SECRET = "DALSEGNOTESTKEYID", "dalsegno-test-secret-0123456789"

versitygw = partial(find_program, "far", "versitygw")


@dataclass(frozen=True)
class Bucket:
    """A bucket of a server.

    Attributes:
        endpoint: URL of the server.
        name: Name of the bucket.
        key_id: Whose it is.
        secret: What signs requests.
        servers: The programs that serve it.
    """

    endpoint: str
    name: str = NAME
    key_id: str = KEY_ID
    secret: str = SECRET
    servers: tuple[Server, ...] = ()

    def url(self, prefix: str = "") -> str:
        """Returns the URL of a prefix in it."""
        return f"s3://{self.name}/{prefix}".rstrip("/")

    def environment(self) -> dict[str, str]:
        """Returns the variables by which clients find it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
        }

    def behind(self, endpoint: str) -> Bucket:
        """Returns the same bucket through another address."""
        return replace(self, endpoint=endpoint)


@contextmanager
def seaweed_s3() -> Iterator[Bucket]:
    """Starts SeaweedFS with its S3 server.

    Yields:
        An empty bucket.

    Raises:
        ClusterError: It does not start.
    """
    with opened("s3") as cluster:
        yield _started(cluster)


def _started(cluster: Cluster) -> Bucket:
    bucket = Bucket(f"http://{cluster.address}:{S3_PORT}")
    credentials = {"accessKey": bucket.key_id, "secretKey": bucket.secret}
    identity = {"name": "tests", "credentials": [credentials], "actions": ["Admin"]}
    config = cluster.folder / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    storage = seaweed.start_storage(cluster)
    gateway = seaweed.start_s3(cluster, S3_PORT, config)
    seaweed.make_bucket(cluster, bucket.name)
    return replace(bucket, servers=(gateway, *storage))


def missing(server: str) -> str | None:
    """What is missing to start a server, and how to get it; None if nothing is."""
    found = versitygw() if server == "versitygw" else seaweed.program()
    return None if found else f"{server} is missing: make far-packages installs it"


@contextmanager
def running(server: str) -> Iterator[Bucket]:
    """Starts one of `SERVERS`; see `seaweed_s3`."""
    if server == "seaweed":
        with seaweed_s3() as bucket:
            yield bucket
        return
    with opened("versitygw") as cluster:
        yield _started_versitygw(cluster)


def _started_versitygw(cluster: Cluster) -> Bucket:
    program = versitygw()
    if program is None:
        raise ClusterError("versitygw is missing: make far-packages installs it")
    bucket = Bucket(f"http://{cluster.address}:{S3_PORT}")
    storage = cluster.path("storage")
    # A folder of the gateway is a bucket of its root account.
    (storage / bucket.name).mkdir()
    of_root = (f"--access={bucket.key_id}", f"--secret={bucket.secret}")
    listens = f"--port={cluster.address}:{S3_PORT}"
    server = cluster.start("versitygw", program, *of_root, listens, "--quiet", "posix", storage)

    def listens_now() -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex((cluster.address, S3_PORT)) == 0

    cluster.wait("versitygw listens", listens_now)
    return replace(bucket, servers=(server,))
