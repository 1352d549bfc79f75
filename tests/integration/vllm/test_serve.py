"""`vllm serve` as the guide starts it without a GPU, and what is left after `kill -9`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.dose import long_dose

import dalsegno
from dalsegno.demo import primer

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]
PATIENCE_S = 900.0
COUNTER = re.compile(r"^vllm:kv_offload_dalsegno_stored_blocks_total\{.*\} (\S+)$", re.MULTILINE)


def until(what: str, ask: Any) -> Any:
    """Asks again until there is an answer."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if (answer := ask()) is not None:
            return answer
        time.sleep(0.2)
    raise AssertionError(f"{what}: nothing within {PATIENCE_S:.0f} s")


class Server:
    """A server with a store behind it, and whatever processes it starts."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self._log = process, log
        self._url = f"http://127.0.0.1:{port}"

    def text(self, path: str, body: Any = None) -> str | None:
        """The answer to a request; None as long as nobody listens."""
        assert self.process.poll() is None, self._log.read_text(errors="replace")[-4000:]
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}{path}", data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read()) from error
        except urllib.error.URLError:
            return None

    def stored(self) -> float | None:
        """How many blocks the server has stored; None as long as there is none."""
        return max(map(float, COUNTER.findall(self.text("/metrics") or "")), default=0) or None


@contextmanager
def serving(folder: Path, store: Path) -> Iterator[Server]:
    """A server that listens; every process of it is gone when the block is left."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    connector = {
        "kv_connector": "DalsegnoConnector",
        "kv_connector_module_path": "dalsegno.integrations.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "path": str(store),
            "capacity": "1Gi",
            "cpu_bytes_to_use": "256Mi",
            "load_policy": "always",
            "keep_profile": False,
        },
    }
    command = [str(Path(sys.executable).with_name("vllm")), "serve", str(folder)]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "2048"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--kv-transfer-config", json.dumps(connector)]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    log = store.with_name("serve.log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **settings},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        server = Server(process, port, log)
        until("the server does not listen", lambda: server.text("/health"))
        yield server
    finally:
        # The engine is a process of its own, in the group of the server.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# `vllm serve` below would end the same way.
@long_dose
def test_regression_vllm_finds_its_own_version() -> None:
    """`vllm serve` ended with PackageNotFoundError: only `vllm-cpu` was in the metadata."""
    command = [str(Path(sys.executable).with_name("vllm")), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    version = metadata.version("vllm")
    assert (done.returncode, done.stdout.split()[-1:]) == (0, [version]), done.stderr


@long_dose
def test_the_engine_of_a_killed_server_is_found_by_the_lock_and_ended(
    small: Path, tmp_path: Path
) -> None:
    """Runs the steps that the guide gives for the time after `kill -9`."""
    store = tmp_path / "store"
    with serving(small, store) as server:
        body = {"prompt": primer.document()[:3000], "max_tokens": 2}
        assert json.loads(server.text("/v1/completions", body) or "")["choices"]
        until("nothing is stored", server.stored)
        server.process.kill()
        server.process.wait()
        with pytest.raises(dalsegno.UnavailableError, match="in use by pid") as refused:
            dalsegno.info(store)
        owner = re.search(r"in use by pid (\d+) \(VLLM::EngineCor", str(refused.value))
        assert owner is not None, refused.value
        os.kill(int(owner[1]), signal.SIGTERM)

        def blocks() -> Any:
            try:
                return dalsegno.info(store)["blocks"]
            except dalsegno.UnavailableError:
                return None

        assert until("the store stays locked", blocks) > 0
