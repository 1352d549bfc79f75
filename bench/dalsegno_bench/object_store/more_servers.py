"""Servers of object stores that only `make test-far-all` starts.

1. MinIO keeps every promise. Of s3proxy two creations of one key may both succeed. moto takes any
   credentials, and its checksums are not those of the bytes.
2. fake-gcs-server and Azurite stand in for Google Cloud Storage and Azure Blob Storage.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from email.utils import formatdate
from functools import partial
from pathlib import Path

from dalsegno_bench.object_store import gcs_front
from dalsegno_bench.object_store.bucket import (
    ACCOUNT,
    ACCOUNT_KEY,
    SERVER_PORT,
    Bucket,
    accepts,
)
from dalsegno_bench.shared_fs.cluster import Cluster, ClusterError
from dalsegno_bench.shared_fs.installed import find_program

# Where fake-gcs-server listens, behind what adds to it.
BEHIND_PORT = 18444

minio = partial(find_program, "far-all", "minio")
fake_gcs = partial(find_program, "far-all", "fake-gcs-server")
moto = partial(find_program, "far-all", "moto_server")
azurite = partial(find_program, "far-all", "azurite-blob")
_s3proxy_jars = partial(find_program, "far-all", "s3proxy.classpath")

S3PROXY = """s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={bucket.key_id}
s3proxy.credential={bucket.secret}
s3proxy.endpoint={bucket.endpoint}
jclouds.provider=filesystem
jclouds.filesystem.basedir={storage}
"""


def s3proxy() -> Path | None:
    """The file that names the jars of s3proxy, if they and Java are there."""
    return _s3proxy_jars() if shutil.which("java") else None


def _bucket(cluster: Cluster, *path: str) -> Bucket:
    return Bucket("/".join((f"http://{cluster.address}:{SERVER_PORT}", *path)))


def _listens(cluster: Cluster, name: str) -> None:
    cluster.wait(f"{name} listens", lambda: accepts(cluster.address))


def start_minio(cluster: Cluster, program: Path) -> Bucket:
    """Starts MinIO on one folder."""
    bucket = _bucket(cluster)
    storage = cluster.path("storage")
    (storage / bucket.name).mkdir()
    of_root = (f"MINIO_ROOT_USER={bucket.key_id}", f"MINIO_ROOT_PASSWORD={bucket.secret}")
    # Its console would listen, too.
    words = ("env", *of_root, "MINIO_BROWSER=off", program, "server", "--quiet")
    listens = ("--address", f"{cluster.address}:{SERVER_PORT}")
    server = cluster.start("minio", *words, *listens, storage)
    _listens(cluster, "minio")
    return replace(bucket, servers=(server,))


def start_moto(cluster: Cluster, program: Path) -> Bucket:
    """Starts moto, which keeps all in memory."""
    bucket = _bucket(cluster)
    listens = ("-H", cluster.address, "-p", str(SERVER_PORT))
    server = cluster.start("moto", program, *listens)
    _listens(cluster, "moto")
    # It takes what is not signed.
    _request(cluster, "PUT", f"/{bucket.name}", {})
    return replace(bucket, servers=(server,), checks_credentials=False)


def start_s3proxy(cluster: Cluster, classpath: Path) -> Bucket:
    """Starts s3proxy on a folder."""
    bucket = _bucket(cluster)
    storage = cluster.path("storage")
    (storage / bucket.name).mkdir()
    properties = cluster.folder / "s3proxy.conf"
    properties.write_text(S3PROXY.format(bucket=bucket, storage=storage))
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    words = ("java", "-Xmx512m", quiet, "-cp", classpath.read_text().strip())
    main = ("org.gaul.s3proxy.Main", "--properties", properties)
    server = cluster.start("s3proxy", *words, *main)
    _listens(cluster, "s3proxy")
    return replace(bucket, servers=(server,))


def start_fake_gcs(cluster: Cluster, program: Path) -> Bucket:
    """Starts fake-gcs-server, which keeps all in memory and knows no credentials."""
    bucket = replace(_bucket(cluster), scheme="gs", checks_credentials=False)
    listens = ("-host", cluster.address, "-port", str(BEHIND_PORT), "-scheme", "http")
    public = ("-public-host", f"{cluster.address}:{SERVER_PORT}", "-external-url", bucket.endpoint)
    words = (program, "-backend", "memory", "-log-level", "error", *listens, *public)
    server = cluster.start("fake-gcs-server", *words)
    cluster.wait("fake-gcs-server listens", lambda: accepts(cluster.address, BEHIND_PORT))
    ports = (cluster.address, str(SERVER_PORT), str(BEHIND_PORT))
    found = f"PYTHONPATH={os.pathsep.join(sys.path)}"
    front = cluster.start(
        "gcs-front", "env", found, sys.executable, "-m", gcs_front.__name__, *ports
    )
    _listens(cluster, "gcs-front")
    headers = {"Content-Type": "application/json"}
    _request(
        cluster, "POST", "/storage/v1/b?project=tests", headers, f'{{"name": "{bucket.name}"}}'
    )
    return replace(bucket, servers=(front, server))


def start_azurite(cluster: Cluster, program: Path) -> Bucket:
    """Starts the blob server of Azurite with an account of its own."""
    named = replace(_bucket(cluster, ACCOUNT), key_id=ACCOUNT, secret=ACCOUNT_KEY, scheme="az")
    accounts = f"AZURITE_ACCOUNTS={ACCOUNT}:{ACCOUNT_KEY}"
    listens = ("--blobHost", cluster.address, "--blobPort", str(SERVER_PORT))
    options = ("--silent", "--skipApiVersionCheck", "--disableTelemetry", "--inMemoryPersistence")
    server = cluster.start("azurite", "env", accounts, program, *listens, *options)
    _listens(cluster, "azurite")
    path = f"/{ACCOUNT}/{named.name}"
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    resource = f"/{ACCOUNT}{path}\nrestype:container"
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{_signature('PUT', headers, resource)}"
    _request(cluster, "PUT", f"{path}?restype=container", headers)
    return replace(named, servers=(server,))


def _signature(method: str, headers: Mapping[str, str], resource: str) -> str:
    """The signature of a request without a body, by Azure's shared key."""
    lines = [method, *[""] * 11, *(f"{name}:{headers[name]}" for name in sorted(headers)), resource]
    key = base64.b64decode(ACCOUNT_KEY)
    digest = hmac.new(key, "\n".join(lines).encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def _request(
    cluster: Cluster, method: str, path: str, headers: Mapping[str, str], body: str = ""
) -> None:
    """Makes the bucket.

    Raises:
        ClusterError: The server refuses.
    """
    connection = http.client.HTTPConnection(cluster.address, SERVER_PORT, timeout=30)
    try:
        connection.request(method, path, body=body, headers=dict(headers))
        answer = connection.getresponse()
        said = answer.read().decode(errors="replace")
        if answer.status >= http.client.BAD_REQUEST:
            raise ClusterError(f"no bucket: {answer.status} {said}\n{cluster.logs()}")
    finally:
        connection.close()
