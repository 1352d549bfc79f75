"""S3 servers on loopback, each with a bucket.

SeaweedFS comes with the environment `far`. versitygw needs Go to be built once, and takes part
where it is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from dalsegno_bench.shared_fs import seaweed
from dalsegno_bench.shared_fs.cluster import Cluster, opened

__all__ = ["Bucket", "seaweed_s3"]

S3_PORT = 18333
NAME = "dalsegno"
# Credentials of a server that nobody else reaches. Tests look for them in all that is written.
KEY_ID, SECRET = "DALSEGNOTESTKEYID", "dalsegno-test-secret-0123456789"


@dataclass(frozen=True)
class Bucket:
    """A bucket of a server.

    Attributes:
        endpoint: URL of the server.
        name: Name of the bucket.
        key_id: Whose it is.
        secret: What signs requests.
    """

    endpoint: str
    name: str = NAME
    key_id: str = KEY_ID
    secret: str = SECRET

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
    seaweed.start_storage(cluster)
    seaweed.start_s3(cluster, S3_PORT, config)
    seaweed.make_bucket(cluster, bucket.name)
    return bucket
