"""A real `lmcache server` on the CPU, and a client that stores and retrieves through it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmcache.cli.commands.bench.server_bench.client import ServerBenchClient
from lmcache.cli.commands.bench.server_bench.command import add_server_arguments
from lmcache.cli.commands.bench.server_bench.config import parse_args_to_config

START_S = 120.0
TOKENS = 512
CHUNK_TOKENS = 64


def free_port() -> int:
    """A free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A running server.

    Attributes:
        port: Where clients connect.
        pid: Its process.
        log: What it wrote.
    """

    def __init__(self, folder: Path, adapter: dict[str, Any], *options: str) -> None:
        """Starts it; `wait` returns when it serves."""
        self.port, self._http_port = free_port(), free_port()
        self.log = folder / f"server-{self.port}.log"
        line = {
            "type": "plugin",
            "module_path": "dalsegno.integrations.lmcache",
            "class_name": "DalsegnoL2Adapter",
            "adapter_params": adapter,
        }
        command = [str(Path(sys.executable).with_name("lmcache")), "server"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--http-host", "127.0.0.1", "--http-port", str(self._http_port)]
        command += ["--prometheus-port", str(free_port()), "--l1-size-gb", "0.25"]
        command += ["--eviction-policy", "LRU"]
        command += ["--chunk-size", str(CHUNK_TOKENS), "--supported-transfer-mode", "auto"]
        command += ["--l2-adapter", json.dumps(line), *options]
        environment = {
            **os.environ,
            "LMCACHE_TRACK_USAGE": "false",
            "LMCACHE_DISABLE_BANNER": "1",
            "LMCACHE_LOG_LEVEL": "INFO",
        }
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=folder
            )
        self.pid = self._process.pid

    def wait(self) -> None:
        """Waits until it serves."""
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            try:
                self.ask("/healthcheck")
            except (OSError, urllib.error.URLError):
                time.sleep(0.2)
            else:
                return
        raise AssertionError(self.log.read_text()[-3000:])

    def exit_status(self) -> int:
        """Waits until it ends by itself."""
        return self._process.wait(START_S)

    def ask(self, path: str) -> str:
        """The reply of its HTTP interface."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}{path}") as answer:
            return str(answer.read().decode())

    def adapter(self) -> dict[str, Any]:
        """The status of our adapter on the server's page."""
        status = json.loads(self.ask("/status"))
        (one,) = status["storage_manager"]["l2_adapters"]
        return dict(one)

    def metric(self, name: str) -> float:
        """The sum of one of LMCache's own metrics over its labels."""
        lines = self.ask("/metrics").splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def stop(self, *, kill: bool = False) -> None:
        """Ends it by SIGTERM or, as a crash would, by SIGKILL."""
        if kill:
            self._process.kill()
        else:
            self._process.terminate()
        self._process.wait(START_S)


@contextmanager
def serving(folder: Path, adapter: dict[str, Any], *options: str) -> Iterator[Server]:
    """A server that serves until the block ends."""
    server = Server(folder, adapter, *options)
    try:
        server.wait()
        yield server
    finally:
        server.stop()


@contextmanager
def client(server: Server) -> Iterator[ServerBenchClient]:
    """A worker with KV caches of its own, connected to the server."""
    import argparse

    parser = argparse.ArgumentParser()
    add_server_arguments(parser)
    words = ["--rpc-url", f"tcp://127.0.0.1:{server.port}", "--mode", "cpu"]
    words += ["--num-tokens", str(TOKENS), "--num-blocks", "256"]
    words += ["--kvcache-shape-spec", "(2,256,16,2,64):bfloat16:4"]
    one = ServerBenchClient(parse_args_to_config(parser.parse_args(words)), lambda line: None)
    one.start()
    try:
        yield one
    finally:
        one.close()


def pages(of: ServerBenchClient, request: Any) -> list[bytes]:
    """The bytes of a request's blocks in every layer of the worker's KV cache."""
    import torch

    first = request.block_offset
    (worker,) = of._workers
    parts = []
    for layer in worker.kv_caches.values():
        place = next(at for at, size in enumerate(layer.shape) if size == of._num_blocks)
        blocks = layer.narrow(place, first, request.num_blocks).contiguous()
        parts.append(blocks.view(torch.uint8).numpy().tobytes())
    return parts
