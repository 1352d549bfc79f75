"""Stores share blocks through real servers of object stores, also ones that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.dose import dose
from tests.far.nodes import COUNT, Node, chain, check_conformance, pair
from tests.skipping import skip_if_missing

from dalsegno_bench.object_store.faults import FaultProxy
from dalsegno_bench.object_store.servers import (
    MORE_SERVERS,
    SERVERS,
    Bucket,
    missing,
    running,
)
from dalsegno_bench.shared_fs.processes import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# A call with a deadline has ended by then, however busy the machine is.
AT_MOST_S = 30.0


@pytest.fixture(scope="module", params=[*SERVERS, *MORE_SERVERS])
def bucket(request: pytest.FixtureRequest) -> Iterator[Bucket]:
    """A bucket of a real server."""
    skip_if_missing(missing(request.param), "shared-fs")
    with running(request.param) as bucket:
        yield bucket


@pytest.fixture
def credentials(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment has them, as it would for a user."""
    for name, value in bucket.credentials().items():
        monkeypatch.setenv(name, value)


def nodes(
    bucket: Bucket, folder: Path, name: str, **settings: object
) -> AbstractContextManager[tuple[Node, Node]]:
    """Two nodes with a prefix of their own."""
    return pair(folder, bucket.url(name), far_options=bucket.far_options(), **settings)


def test_a_bucket_does_what_every_tier_must(bucket: Bucket) -> None:
    check_conformance({**bucket.environment(), "DALSEGNO_FAR_URLS": bucket.url("tests")})


@pytest.mark.usefixtures("credentials")
def test_what_one_node_stored_another_one_loads(bucket: Bucket, tmp_path: Path) -> None:
    hashes = chain("share")
    with nodes(bucket, tmp_path, "share") as (a, b):
        a.put(hashes)
        until("B finds what A stored", lambda: b.finds(hashes))
        assert b.get(hashes) == COUNT
        assert b.store.stats()["get_far_blocks"] == COUNT
        a.namespace.remove(hashes[5:6])
        until("what A removed is gone on B", lambda: b.namespace.probe(hashes) == 5)
        a.store.close()
        assert b.get(hashes) == 5, "what A stored is there without A"


FAULTS: Mapping[str, float] = {
    "drop": 0.03,
    "lost": 0.03,
    "cut": 0.03,
    "delay": 0.02,
    "drip": 0.01,
    "503": 0.05,
    "500": 0.03,
    "409": 0.01,
    "error-in-200": 0.01,
    "whole": 0.02,
    "flip": 0.02,
}


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize("seed", range(dose(1, 6)))
def test_faults_cost_misses_and_no_byte(bucket: Bucket, tmp_path: Path, seed: int) -> None:
    near, parts = chain(f"near {seed}"), [chain(f"far {seed} {number}", 8) for number in range(20)]
    with (
        FaultProxy(bucket.origin, FAULTS, seed=seed) as proxy,
        nodes(bucket.behind(proxy.endpoint), tmp_path, f"faults-{seed}") as (a, b),
    ):
        b.put(near)
        for hashes in parts:
            a.put(hashes)
            for found in parts:
                b.get(found, timeout_s=5.0)
            began = time.monotonic()
            assert b.get(near) == COUNT, "what is stored here is served"
            assert time.monotonic() - began < AT_MOST_S
            time.sleep(0.5)
        assert len(proxy.met) > len(FAULTS) // 2, proxy.met
        proxy.chances = {}

        # A store gives up a block that arrived damaged. One that comes now finds all.
        c = Node(tmp_path / "c", bucket.url(f"faults-{seed}"), far_options=bucket.far_options())

        def are_found() -> bool:
            missing = [hashes for hashes in parts if not c.finds(hashes)]
            for hashes in missing:
                a.put_again(hashes)
            time.sleep(1)
            return not missing

        try:
            until("all is found", are_found, limit_s=150.0)
            assert all(c.get(hashes) == len(hashes) for hashes in parts)
        finally:
            c.store.close()


HOST = """
import json, sys, time, dalsegno
dalsegno.show_events("debug")
path, url, options = sys.argv[1:]
options = json.loads(options)
store = dalsegno.open(path, capacity="64MiB", dram=0, far=url, far_flush_s=0.1,
                      far_options=options)
namespace = store.namespace({"test": "secrets"}, layers=1, slice_bytes=65536)
namespace.put_batch([b"a" * 32], [bytearray(65536)])
time.sleep(3)
print(store.stats(), store.info() if hasattr(store, "info") else "")
try:
    dalsegno.far_survey(url, options=options)
except dalsegno.DalsegnoError as error:
    print(error, error.__cause__)
store.close()
"""


@pytest.mark.parametrize("right", [True, False])
def test_no_secret_is_in_anything_that_a_run_writes(
    bucket: Bucket, tmp_path: Path, *, right: bool
) -> None:
    if not right and not bucket.checks_credentials:
        pytest.skip("this server takes any credentials")
    # Of the same length, and base64 if the right one is.
    wrong = bucket.secret[:8][::-1] + bucket.secret[8:]
    signer = bucket if right else replace(bucket, secret=wrong)
    options = json.dumps(bucket.far_options())
    ran = subprocess.run(
        [sys.executable, "-c", HOST, str(tmp_path / "kv"), bucket.url("secrets"), options],
        env={**os.environ, **signer.credentials()},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    written = [ran.stdout.encode(), ran.stderr.encode()]
    written += [path.read_bytes() for path in (tmp_path / "kv").rglob("*") if path.is_file()]
    # The name of an account of Azure is no secret: it is in the endpoint.
    hidden = [bucket.secret, signer.secret, *([] if bucket.scheme == "az" else [bucket.key_id])]
    for what in written:
        assert not [one for one in hidden if one.encode() in what]
    if not right:
        assert "credentials" in ran.stdout + ran.stderr
