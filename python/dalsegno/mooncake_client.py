"""The client of a Mooncake cluster, as the far tier calls it.

1. Every call returns a code of Mooncake and raises nothing for what the cluster does.
2. Memory is registered for the time of a call. Over TCP that takes microseconds; over RDMA it pins
   the memory.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from dalsegno._native import UnavailableError

__all__ = ["MooncakeClient"]

# Memory of the client itself. Reads and writes go from and to ours.
LOCAL_BUFFER_BYTES = 16 << 20
# How long a master may take to accept a connection. Mooncake tries for 90 s.
CONNECT_S = 2.0
# How long connecting may take in a process that only tries it.
TRIAL_S = 10.0
TRIAL = """
import json, os, sys
from mooncake.store import MooncakeDistributedStore
code = MooncakeDistributedStore().setup(*json.loads(sys.argv[1]))
print("code", code, end="", flush=True)
os._exit(1 if code else 0)
"""
# Read by Mooncake when it is imported, unless they are set. A master that hangs would keep a call
# for 30 s otherwise.
ENVIRONMENT = {
    "MC_RPC_TIMEOUT_MS": "3000",
    "MC_RPC_CONNECT_TIMEOUT_MS": "1000",
    "MC_LOG_LEVEL": "ERROR",
    "GLOG_minloglevel": "3",
}
# `ErrorCode` of Mooncake.
NOT_FOUND, RPC_FAIL = -704, -900


class MooncakeClient:
    """A connection to a cluster. Any thread may call it.

    Attributes:
        address: What other nodes know this one by.
    """

    def __init__(
        self, *, master: str, metadata_server: str, protocol: str, devices: str, replicas: int
    ) -> None:
        """Connects to a cluster, and gives it no memory of this host.

        Args:
            master: Host and port of its master.
            metadata_server: The metadata service of the transfer engine, or ``P2PHANDSHAKE``.
            protocol: ``tcp`` or ``rdma``.
            devices: RDMA devices, separated by commas; empty for all.
            replicas: Copies of each object that is put.

        Raises:
            UnavailableError: Mooncake's client is not installed, or does not connect.
        """
        self.address = _own_address(master)
        # Nobody connects to this host, which gives no memory: it need not listen on all addresses.
        for name, value in {**ENVIRONMENT, "MC_TCP_BIND_ADDRESS": self.address}.items():
            os.environ.setdefault(name, value)
        try:
            from mooncake.store import (
                MooncakeDistributedStore,
                ReplicateConfig,
            )
        except ImportError as error:
            raise UnavailableError(
                f"Mooncake's client cannot be imported ({error}); install it with "
                "pip install mooncake-transfer-engine, or mooncake-transfer-engine-non-cuda on a "
                "host without CUDA, and the libraries libibverbs1 and libnuma1"
            ) from error
        self._config = ReplicateConfig()
        self._config.replica_num = replicas
        self._store: Any = MooncakeDistributedStore()
        if not hasattr(self._store, "get_into_ranges"):
            raise UnavailableError(
                "this version of Mooncake's client reads no ranges; install 0.3.13 or later"
            )
        setup = (self.address, metadata_server, 0, LOCAL_BUFFER_BYTES, protocol, devices, master)
        code = _tried(setup) or self._store.setup(*setup)
        if code:
            raise UnavailableError(
                f"Mooncake's client does not connect to {master} ({code}); check that "
                "mooncake_master listens there, and protocol, devices and metadata_server of "
                "far_options"
            )

    def put(self, key: str, pieces: Sequence[tuple[int, int]]) -> int:
        """Stores pieces of memory, each an address and a size in bytes, as one object."""
        with _registered(self._store, pieces) as code:
            if code:
                return code
            addresses, sizes = _split(pieces)
            codes = self._store.batch_put_from_multi_buffers(
                [key], [addresses], [sizes], self._config
            )
            return min(0, int(codes[0]))

    def get(self, key: str, offset: int, pieces: Sequence[tuple[int, int]]) -> int:
        """Fills pieces of memory, in order, with the bytes of an object from an offset on."""
        with _registered(self._store, pieces) as code:
            if code:
                return code
            addresses, sizes = _split(pieces)
            offsets = []
            for size in sizes:
                offsets.append([[offset]])
                offset += size
            read = self._store.get_into_ranges(
                addresses,
                [[key]] * len(pieces),
                [[[0]]] * len(pieces),
                offsets,
                [[[size]] for size in sizes],
            )
            # Bytes that were read, or a code, of each piece.
            for ((got,),), size in zip(read, sizes, strict=True):
                if got != size:
                    return int(got) if got < 0 else RPC_FAIL
            return 0

    def sizes(self, keys: list[str]) -> list[int]:
        """Returns the size of each object in bytes, or a code."""
        found = self._store.batch_is_exist(keys)
        there = [key for key, one in zip(keys, found, strict=True) if one == 1]
        described = self._store.batch_get_replica_desc(there) if there else {}
        codes = []
        for key, one in zip(keys, found, strict=True):
            if one < 0:
                codes.append(int(one))
            elif one == 1 and key not in described:
                # Any failure leaves it out.
                codes.append(RPC_FAIL)
            else:
                codes.append(_size(described.get(key)))
        return codes

    def remove(self, key: str) -> int:
        """Removes an object, also one that is being read."""
        # Without force a read of the last seconds keeps it.
        return int(self._store.remove(key, True))

    def close(self) -> None:
        """Leaves the cluster, if its master responds.

        Otherwise to leave would take a minute, all threads of Python would wait for it, and for the
        destructor too. So the client stays until the process ends.
        """
        if self._store.batch_is_exist(["dalsegno"])[0] < 0:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._store))
            return
        self._store.close()


@contextmanager
def _registered(store: Any, pieces: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Registers pieces of memory while it is entered; gives 0 or a code."""
    with ExitStack() as registered:
        code = 0
        for address, size in pieces:
            code = int(store.register_buffer(address, size))
            if code:
                break
            registered.callback(store.unregister_buffer, address)
        yield code


def _tried(setup: tuple[str | int, ...]) -> str:
    """Connects in a process that ends; returns why that fails, or nothing.

    Mooncake lets no other thread of Python run while it connects, and waits a minute for a master
    that hangs.
    """
    path = os.pathsep.join(one for one in sys.path if one)
    try:
        tried = subprocess.run(
            [sys.executable, "-c", TRIAL, json.dumps(setup)],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TRIAL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no response within {TRIAL_S:.0f} s"
    except OSError as error:
        return f"no process can be started to try it: {error}"
    return tried.stdout.rpartition("\n")[2] or "it failed" if tried.returncode else ""


def _split(pieces: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [address for address, _ in pieces], [size for _, size in pieces]


def _size(replicas: Any) -> int:
    """The size of an object by its replicas; a code if there is none that is complete."""
    for replica in replicas or ():
        if replica.is_memory_replica():
            return int(replica.get_memory_descriptor().buffer_descriptor.size)
        return int(replica.get_disk_descriptor().object_size)
    return NOT_FOUND


def _own_address(master: str) -> str:
    """The address of this host on the way to the master.

    Raises:
        UnavailableError: Nobody accepts a connection there.
    """
    host, _, port = master.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_S) as connection:
            return str(connection.getsockname()[0])
    except OSError as error:
        raise UnavailableError(
            f"no mooncake_master accepts connections at {master} ({error})"
        ) from error
