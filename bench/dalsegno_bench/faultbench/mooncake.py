"""Mooncake Store with its disk tier: a master and one client, over TCP on this machine.

The client provides memory for objects. A put writes there, and the client moves objects to files in
the background. The master starts with the first client. It lives on when a client is killed, as it
would on another node, and ends with the suite's processes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from mooncake.store import MooncakeDistributedStore

from dalsegno_bench.faultbench.adapter import Adapter
from dalsegno_bench.faultbench.disk import MIB
from dalsegno_bench.object_store.bucket import accepts

__all__ = ["Store"]

HOST = "127.0.0.1"
# Mooncake's own defaults are ten seconds each, and buckets of 256 MiB: more than a probe puts.
LEASE_MS, HEARTBEAT_S, CLIENT_S = 1000, 1, 2
MASTER_LIMIT_S = 15.0
# What of the capacity is memory; the files get the rest.
MEMORY_SHARE = 0.5
BUCKET_BLOCKS = 8


class Store(Adapter):
    """A client with memory and files."""

    settings: ClassVar[str] = (
        "half of the capacity in memory, half in files; lease and offload every second,"
        " buckets of 8 blocks, LRU"
    )
    settle_s: ClassVar[float] = 3.3

    def __init__(self, directory: Path, *, capacity_bytes: int, block_bytes: int) -> None:
        files = directory / "files"
        files.mkdir(exist_ok=True)
        memory = int(MEMORY_SHARE * capacity_bytes)
        os.environ |= {
            "MC_TCP_BIND_ADDRESS": HOST,
            "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(files),
            "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": str(HEARTBEAT_S),
            "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT": str(BUCKET_BLOCKS),
            "MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES": str(BUCKET_BLOCKS * block_bytes),
            "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE": str(capacity_bytes - memory),
            "MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY": "lru",
            "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": str(64 * MIB),
        }
        self._store: Any = MooncakeDistributedStore()
        code = self._store.setup(
            {
                "local_hostname": HOST,
                "metadata_server": "P2PHANDSHAKE",
                "global_segment_size": str(memory),
                "local_buffer_size": str(64 * MIB),
                "protocol": "tcp",
                "rdma_devices": "",
                "master_server_addr": f"{HOST}:{_master(directory)}",
                "enable_ssd_offload": "true",
                "ssd_offload_path": str(files),
            }
        )
        if code != 0:
            raise RuntimeError(f"setup answered {code}")
        # It reports the files that it found to the master.
        self.settle()

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> list[bool]:
        """See :class:`Adapter`."""
        return [
            self._store.put(key.hex(), block) == 0 for key, block in zip(keys, blocks, strict=True)
        ]

    def exists(self, keys: Sequence[bytes]) -> list[bool]:
        """See :class:`Adapter`."""
        return [one == 1 for one in self._store.batch_is_exist([key.hex() for key in keys])]

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See :class:`Adapter`; an empty answer is a miss."""
        return [bytes(self._store.get(key.hex())) or None for key in keys]

    def close(self) -> None:
        """See :class:`Adapter`; first objects reach the files, then the master notices."""
        self.settle()
        self._store.close()
        self.settle()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        port: int = taken.getsockname()[1]
        return port


def _master(directory: Path) -> int:
    """Starts the master of a directory if it has none; returns its port."""
    known = directory.with_name(directory.name + ".master")
    if known.exists():
        return int(known.read_text())
    port = _free_port()
    subprocess.Popen(
        [
            str(Path(sys.executable).parent / "mooncake_master"),
            f"--rpc_address={HOST}",
            f"--rpc_port={port}",
            f"--metrics_port={_free_port()}",
            "--enable_offload=true",
            f"--default_kv_lease_ttl={LEASE_MS}",
            f"--client_ttl={CLIENT_S}",
        ],
        stdin=subprocess.DEVNULL,
    )
    end = time.monotonic() + MASTER_LIMIT_S
    while time.monotonic() < end:
        if accepts(HOST, port):
            known.write_text(str(port))
            return port
        time.sleep(0.1)
    raise RuntimeError("mooncake_master does not answer")
