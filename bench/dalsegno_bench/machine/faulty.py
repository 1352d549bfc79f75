"""A folder behind a file system that hangs and fails on command.

The program ``faulty-mount`` of ``crates/sim`` serves it through FUSE, so ``io_uring`` and direct
I/O meet the faults too. It is built on first use, and needs root.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Faulty", "missing", "mounted"]

_BUILD_S = 1800


def missing() -> str | None:
    """Says what is missing to mount a folder like this here; ``None`` if nothing is known to be."""
    if os.geteuid() != 0:
        return "only root may mount a file system"
    if not Path("/dev/fuse").exists():
        return "there is no /dev/fuse"
    if shutil.which("cargo") is None:
        return "the file system is a program to be compiled: https://rustup.rs"
    return None


def _program(checkout: Path) -> Path:
    """Builds the program if needed, as the tests of the crate do: it only hands bytes through."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", checkout / "target"))
    # With the selection of the tests: of one crate alone, cargo would build others again.
    chosen = ["--workspace", "--bin=faulty-mount"]
    command = ["cargo", "build", "--quiet", "--locked", *chosen]
    subprocess.run(command, cwd=checkout, check=True, timeout=_BUILD_S, text=True)
    return target / "debug" / "faulty-mount"


class Faulty:
    """A mounted folder.

    Attributes:
        path: Where the files are used.
        below: The same files without faults.
    """

    def __init__(self, path: Path, below: Path, control: Path) -> None:
        """Refers to what :func:`mounted` made."""
        self.path, self.below, self._control = path, below, control

    def send(self, command: str) -> str:
        """Sends a command, such as ``add all hang``, ``add read error=EIO`` or ``clear``.

        Returns:
            The program's answer.

        Raises:
            ValueError: The program does not understand it.
        """
        with socket.socket(socket.AF_UNIX) as talk:
            talk.connect(str(self._control))
            talk.sendall(f"{command}\n".encode())
            answer = talk.makefile().readline().strip()
        if not answer.startswith("ok"):
            raise ValueError(f"{command}: {answer}")
        return answer.removeprefix("ok").strip()


@contextmanager
def mounted(folder: Path, checkout: Path) -> Iterator[Faulty]:
    """Mounts an empty folder; calls that hang end with the context.

    Args:
        folder: An existing folder; ``below``, ``path`` and ``control`` are made in it.
        checkout: The project's source, where the program is built.

    Yields:
        The mount.

    Raises:
        RuntimeError: It cannot be mounted, with what the program says.
    """
    below, path, control = folder / "below", folder / "path", folder / "control"
    below.mkdir()
    path.mkdir()
    command = [str(_program(checkout)), str(below), str(path)]
    command += ["--control", str(control), "--until-eof"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stderr is not None
        try:
            if program.stdout.readline() != "ready\n":
                raise RuntimeError(program.stderr.read().strip())
            yield Faulty(path, below, control)
        finally:
            # It ends with its input, and then hanging calls end.
            program.stdin.close()
            program.wait(timeout=60)
