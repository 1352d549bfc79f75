"""Engines in processes of their own. An engine is one process, so killing it kills everything.

A program of its own, not a child of `multiprocessing`: that one would count as part of the test's
process, which began before the model was written (`file_times.engine_start_ns`).
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_ENDED_S = 60.0
# The kernel counts starts of processes in hundredths of a second. Files of the same one count as
# changed since the engine began to start.
_TICK_S = 0.05


def main(module: str, name: str, spec: str, orders: str, answers: str) -> None:
    """Runs a function of a module with a spec and the descriptors of two connections."""
    run = getattr(importlib.import_module(module), name)
    given = Connection(int(orders), writable=False)
    run(json.loads(spec), given, Connection(int(answers), readable=False))


class Program:
    """An engine's process.

    Args:
        run: What it runs, with the spec and two connections: orders to it, and answers of it.
        spec: What it gets. `log_file` names the file for its output.
        environment: Variables that it has in addition to those of this process.
    """

    def __init__(self, run: Callable[..., None], spec: dict[str, Any], **environment: str) -> None:
        from dalsegno.integrations.vllm import demo_engine

        orders, self._orders = Pipe(duplex=False)
        self._answers, answers = Pipe(duplex=False)
        self.log = Path(spec["log_file"])
        ends = (orders.fileno(), answers.fileno())
        time.sleep(_TICK_S)
        what = [run.__module__, run.__name__, json.dumps(spec), *map(str, ends)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, *what],
                env={**os.environ, **demo_engine.ENVIRONMENT, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=ends,
            )
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
        code = self._process.wait()
        self.stop()
        return code

    def stop(self) -> None:
        """Kills it if it runs."""
        self._process.kill()
        self._process.wait(_ENDED_S)
        self._orders.close()
        self._answers.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
