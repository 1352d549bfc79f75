"""Engines in processes of their own. An engine is one process, so killing it kills everything."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dalsegno.integrations.vllm import demo_engine

# Never a fork: threads of the test process would be missing in it.
_SPAWN = multiprocessing.get_context("spawn")
_ENDED_S = 60.0


def _main(
    run: Callable[..., None],
    spec: dict[str, Any],
    environment: Mapping[str, str],
    orders: Connection,
    answers: Connection,
) -> None:
    """Runs an engine in its process; vLLM's messages go to the spec's `log_file`."""
    # Before vLLM is imported, which reads them then.
    os.environ.update({**demo_engine.ENVIRONMENT, **environment})
    # vLLM and the libraries below it write to the descriptors themselves.
    log = os.open(spec["log_file"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    run(spec, orders, answers)


class Program:
    """An engine's process.

    Args:
        run: What it runs, with the spec and two connections: orders to it, and answers of it.
        spec: What it gets. `log_file` names the file for its output.
        environment: Variables that it has in addition to those of this process.
    """

    def __init__(self, run: Callable[..., None], spec: dict[str, Any], **environment: str) -> None:
        orders, self._orders = _SPAWN.Pipe(duplex=False)
        self._answers, answers = _SPAWN.Pipe(duplex=False)
        self.log = Path(spec["log_file"])
        self._process = _SPAWN.Process(
            target=_main, args=(run, spec, environment, orders, answers), daemon=True
        )
        self._process.start()
        orders.close()
        answers.close()

    def order(self) -> None:
        """Lets an engine that waits continue."""
        self._orders.send_bytes(b"go on")

    def records(self) -> Iterator[dict[str, Any]]:
        """Gives what the engine answers, until it ends."""
        while True:
            try:
                yield json.loads(self._answers.recv_bytes())
            except EOFError:
                return

    def said(self) -> str:
        """Returns the end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-4000:]

    def wait(self) -> int:
        """Waits until it has ended; returns its exit code."""
        self._process.join()
        code = self._process.exitcode
        assert code is not None
        self.stop()
        return code

    def stop(self) -> None:
        """Kills it if it runs."""
        self._process.kill()
        self._process.join(_ENDED_S)
        self._orders.close()
        self._answers.close()
