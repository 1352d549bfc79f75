"""A backend in a process of its own, so that its CPU time, threads and memory are its own too."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dalsegno_bench.disk.log import aligned
from dalsegno_bench.dynamic import backends
from dalsegno_bench.machine import kernel
from dalsegno_bench.workload import Prompt

# Prompts between two reports of progress.
REPORT_EVERY = 5


@dataclass(frozen=True)
class Setup:
    """What a backend is and may use.

    Attributes:
        system: One of ``backends.SYSTEMS``.
        directory: Where it writes; made if it is missing.
        block_bytes: Size of a block.
        blocks: Most blocks of a prompt.
        disk_bytes: Budget of disk.
        memory_bytes: Budget of memory.
    """

    system: str
    directory: Path
    block_bytes: int
    blocks: int
    disk_bytes: int
    memory_bytes: int


@dataclass
class Served:
    """How some prompts were served.

    Attributes:
        hit_blocks: Leading blocks that were loaded, prompt by prompt.
        load_s: Seconds until they were in the caller's memory, prompt by prompt.
        save_s: Seconds of all puts.
        saved_blocks: Blocks given to puts.
        failed_blocks: Those of them that could not be written.
        wrong_blocks: Loaded blocks that were not the ones asked for.
        user_s: CPU seconds of the whole process since it was asked last.
        system_s: Those of the kernel on its behalf.
        rss_bytes: Resident memory afterwards.
        disk_bytes: Bytes of disk in use afterwards.
    """

    hit_blocks: list[int] = field(default_factory=list)
    load_s: list[float] = field(default_factory=list)
    save_s: float = 0.0
    saved_blocks: int = 0
    failed_blocks: int = 0
    wrong_blocks: int = 0
    user_s: float = 0.0
    system_s: float = 0.0
    rss_bytes: int = 0
    disk_bytes: int = 0


class Server:
    """Serves prompts from a backend; each block begins with its name, so a wrong one is seen.

    Args:
        backend: The backend.
        setup: Sizes.
    """

    def __init__(self, backend: backends.Backend, setup: Setup) -> None:
        self._backend = backend
        memory = aligned(setup.blocks * setup.block_bytes)
        self._buffers = [
            memory[at : at + setup.block_bytes] for at in range(0, len(memory), setup.block_bytes)
        ]
        self._cpu_s = kernel.cpu_s()

    def serve(self, prompts: list[Prompt], report: Callable[[int], None]) -> Served:
        """Serves prompts one after the other: load what is there, save the rest.

        Args:
            prompts: The prompts.
            report: Called with the number of prompts served since the last call.
        """
        served = Served()
        for number, prompt in enumerate(prompts, 1):
            self._serve_one(prompt.chain, served)
            if number % REPORT_EVERY == 0:
                report(REPORT_EVERY)
        report(len(prompts) % REPORT_EVERY)
        before, self._cpu_s = self._cpu_s, kernel.cpu_s()
        served.user_s, served.system_s = (
            after - then for after, then in zip(self._cpu_s, before, strict=True)
        )
        served.rss_bytes = kernel.rss_bytes()
        served.disk_bytes = self._backend.disk_bytes()
        return served

    def _serve_one(self, chain: list[bytes], served: Served) -> None:
        buffers = self._buffers[: len(chain)]
        start = time.perf_counter()
        hits = self._backend.load(chain, buffers)
        served.load_s.append(time.perf_counter() - start)
        served.hit_blocks.append(hits)
        served.wrong_blocks += sum(
            buffer[: len(name)] != name
            for name, buffer in zip(chain[:hits], buffers[:hits], strict=True)
        )
        for name, buffer in zip(chain[hits:], buffers[hits:], strict=True):
            buffer[: len(name)] = name
        start = time.perf_counter()
        served.failed_blocks += self._backend.save(chain, buffers[hits:], hits)
        served.save_s += time.perf_counter() - start
        served.saved_blocks += len(chain) - hits


class Process:
    """A server in a process of its own.

    Args:
        setup: Its backend.

    Raises:
        RuntimeError: The backend could not be opened, here and in :meth:`serve`, or it failed.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(theirs, setup), daemon=True)
        self._process.start()
        theirs.close()
        self._receive()

    def serve(self, prompts: list[Prompt], report: Callable[[int], None]) -> Served:
        """As :meth:`Server.serve`."""
        self._pipe.send(prompts)
        while not isinstance(got := self._receive(), Served):
            report(got)
        return got

    def close(self) -> None:
        """Ends the process; its files stay."""
        self._pipe.close()
        self._process.join(60)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _receive(self) -> Any:
        try:
            got = self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"the process of {self.setup.system} ended") from None
        if not isinstance(got, str):
            return got
        raise RuntimeError(f"{self.setup.system}: {got}")


def _main(pipe: Connection, setup: Setup) -> None:
    """What the process does: say that it is ready, then serve until the pipe is closed."""
    # Ctrl-C reaches the whole group; the parent decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    backend = None
    try:
        setup.directory.mkdir(exist_ok=True)
        backend = backends.make(
            setup.system,
            setup.directory,
            setup.block_bytes,
            disk_bytes=setup.disk_bytes,
            memory_bytes=setup.memory_bytes,
        )
        server = Server(backend, setup)
        pipe.send(os.getpid())
        while True:
            pipe.send(server.serve(pipe.recv(), pipe.send))
    except (EOFError, BrokenPipeError):
        pass
    except Exception as error:  # noqa: BLE001 - the parent raises it
        pipe.send(f"{type(error).__name__}: {error}")
    finally:
        if backend is not None:
            backend.close()
