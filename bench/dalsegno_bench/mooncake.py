"""A Mooncake cluster on loopback: a master, and nodes that give it memory.

It comes with the environment `mooncake`, which `make test-far-all` builds.
"""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dalsegno_bench.object_store.bucket import accepts
from dalsegno_bench.shared_fs.cluster import ClusterError, opened
from dalsegno_bench.shared_fs.installed import find_program
from dalsegno_bench.shared_fs.processes import Server

__all__ = ["Mooncake", "client_folder", "missing", "running"]

MASTER_PORT, METRICS_PORT, NODE_PORT = 51061, 51062, 53001
NODE_BYTES = 512 << 20
LIBRARIES = ("ibverbs", "rdmacm", "numa", "curl")

# A node: it gives memory to the cluster until it ends.
NODE = """
import sys, time
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
code = store.setup(sys.argv[1], "P2PHANDSHAKE", int(sys.argv[2]), 16 << 20, "tcp", "", sys.argv[3])
assert code == 0, code
print("ready", flush=True)
time.sleep(1 << 20)
"""


@dataclass(frozen=True)
class Mooncake:
    """A running cluster.

    Attributes:
        address: What its servers listen on.
        master: Its master.
        nodes: The programs that give it memory.
        folder: A folder that ends with it.
    """

    address: str
    master: Server
    nodes: tuple[Server, ...]
    folder: Path

    def url(self, prefix: str) -> str:
        """Returns the URL of a prefix in it."""
        return f"mooncake://{self.address}:{MASTER_PORT}/{prefix}"


def client_folder() -> Path | None:
    """The folder of the packages with Mooncake's client, if they are there."""
    python = find_program("mooncake", "python")
    found = python.parent.parent.glob("lib/python*/site-packages") if python else ()
    return next(iter(found), None)


def missing() -> str | None:
    """What is missing to start a cluster, and how to get it; None if nothing is."""
    if client_folder() is None:
        return "Mooncake is missing: make test-far-all installs it"
    absent = [name for name in LIBRARIES if ctypes.util.find_library(name) is None]
    if absent:
        return f"lib{absent[0]} is missing: make test-far-all installs it"
    return None


@contextmanager
def running(nodes: int = 2, *, node_bytes: int = NODE_BYTES) -> Iterator[Mooncake]:
    """Starts a cluster.

    Args:
        nodes: Programs that give it memory.
        node_bytes: What each of them gives.

    Yields:
        The empty cluster.

    Raises:
        ClusterError: It does not start.
    """
    python, program = find_program("mooncake", "python"), master_program()
    if python is None or program is None:
        raise ClusterError("Mooncake is missing: make test-far-all installs it")
    with opened("mooncake") as cluster:
        listens = f"MC_TCP_BIND_ADDRESS={cluster.address}"
        where = f"{cluster.address}:{MASTER_PORT}"
        master = cluster.start("master", "env", listens, program, *master_options(cluster.address))
        cluster.wait("the master listens", lambda: accepts(cluster.address, MASTER_PORT))
        started = []
        for number in range(nodes):
            name, at = f"node-{number}", f"{cluster.address}:{NODE_PORT + number}"
            words = (python, "-c", NODE, at, str(node_bytes), where)
            started.append(cluster.start(name, "env", listens, *words))
        logs = [cluster.path("log") / f"node-{number}.log" for number in range(nodes)]
        cluster.wait("the nodes give memory", lambda: all(map(_is_ready, logs)))
        yield Mooncake(cluster.address, master, tuple(started), cluster.path("catalogs"))


def master_program() -> Path | None:
    """The program of the master, if it is there."""
    folder = client_folder()
    path = folder / "mooncake" / "mooncake_master" if folder else None
    return path if path is not None and os.access(path, os.X_OK) else None


def master_options(address: str) -> tuple[str, ...]:
    """How a master is started that listens on loopback only."""
    return (
        f"--rpc_address={address}",
        f"--rpc_port={MASTER_PORT}",
        f"--metrics_host={address}",
        f"--metrics_port={METRICS_PORT}",
        "--client_ttl=10",
    )


def _is_ready(log: Path) -> bool:
    return log.exists() and "ready" in log.read_text(errors="replace").splitlines()
