"""The log of a server: a reader that stops or goes away costs lines, and nothing else."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.serve.blocks import COUNT, LIMIT_S, opened, wait_until

import dalsegno

SMALL = [
    "--pool",
    "16MiB",
    "--capacity",
    "24MiB",
    "--set",
    "segment=1MiB",
    "--set",
    "staging=16MiB",
]


@contextmanager
def serving(
    path: Path, *options: str, stdout: int | None = None, stderr: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """`dalsegno serve` with these streams, as soon as it answers."""
    command = [sys.executable, "-m", "dalsegno.cli", "serve", str(path), *SMALL, *options]
    with subprocess.Popen(command, stdout=stdout, stderr=stderr) as server:
        try:
            trouble = dalsegno.server_trouble
            wait_until(lambda: trouble(path / "serve" / "socket") is None, "it is ready", 0.05)
            yield server
        finally:
            server.kill()


def works(path: Path, server: subprocess.Popen[bytes]) -> None:
    """Uses the server in every way, and ends it."""
    with opened(f"unix:{path}/serve/socket") as blocks:
        blocks.fill()
        assert blocks.hits() == COUNT
        server.send_signal(signal.SIGTERM)
        assert server.wait(LIMIT_S) == 0
    assert not (path / "serve" / "socket").exists()


def shout(path: Path, count: int) -> None:
    """Makes the server log lines."""
    for _ in range(count):
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(LIMIT_S)
            line.connect(str(path / "serve" / "socket"))
            line.sendall(b"\xff" * 9)
            line.recv(1)


def full_pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"." * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    return reader, writer


def broken_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("streams", ["out", "log", "both"])
def test_a_reader_that_stopped_costs_lines_only(streams: str, tmp_path: Path) -> None:
    reader, writer = full_pipe()
    free = subprocess.DEVNULL
    out, log = (free if streams == "log" else writer), (free if streams == "out" else writer)
    with serving(tmp_path / "kv", stdout=out, stderr=log) as server:
        os.close(writer)
        shout(tmp_path / "kv", 40)
        works(tmp_path / "kv", server)
    os.close(reader)


@pytest.mark.parametrize("streams", ["out", "log", "both"])
def test_a_reader_that_went_away_costs_lines_only(streams: str, tmp_path: Path) -> None:
    writer, free = broken_pipe(), subprocess.DEVNULL
    out, log = (free if streams == "log" else writer), (free if streams == "out" else writer)
    with serving(tmp_path / "kv", stdout=out, stderr=log) as server:
        os.close(writer)
        shout(tmp_path / "kv", 10)
        works(tmp_path / "kv", server)


@pytest.mark.parametrize("closed", ["0<&- 1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_get_no_file_of_the_store(closed: str, tmp_path: Path) -> None:
    path = tmp_path / "kv"
    serve = f"exec {sys.executable} -m dalsegno.cli serve {path} {' '.join(SMALL)} {closed}"
    with subprocess.Popen(["sh", "-c", serve]) as server:
        try:
            trouble = dalsegno.server_trouble
            wait_until(lambda: trouble(path / "serve" / "socket") is None, "it is ready", 0.05)
            for number in range(3):
                assert path not in Path(f"/proc/{server.pid}/fd/{number}").readlink().parents
            works(path, server)
        finally:
            server.kill()
    assert dalsegno.verify(path)["findings"] == []


def test_lost_lines_are_counted_in_the_metrics(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    writer = broken_pipe()
    with serving(tmp_path / "kv", "--metrics", str(port), stderr=writer) as server:
        os.close(writer)

        def lost() -> float:
            url = f"http://127.0.0.1:{port}/metrics"
            try:
                with urllib.request.urlopen(url, timeout=LIMIT_S) as reply:
                    lines = reply.read().decode().splitlines()
            except OSError:
                return 0
            (line,) = [line for line in lines if line.startswith("dalsegno_lost_log_lines ")]
            return float(line.split()[1])

        wait_until(lambda: lost() >= 1, "the line of the open store is lost", 0.05)
        works(tmp_path / "kv", server)


def test_lost_lines_are_reported_when_the_reader_goes_on() -> None:
    program = (
        "import select, sys, dalsegno\n"
        "for number in range(5000): dalsegno.write_queued(2, f'line {number}\\n')\n"
        "print('full', flush=True)\n"
        "while not select.select([sys.stdin], [], [], 0.01)[0]:\n"
        "    dalsegno.write_queued(2, 'later\\n')\n"
    )
    reader, writer = full_pipe()
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=writer) as process:
        os.close(writer)
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"full\n"
        text = b""
        while b" log lines were lost\nlater\n" not in text:
            text += os.read(reader, 1 << 16)
        process.stdin.close()
    os.close(reader)
    reports = re.findall(r"^dalsegno: (\d+) log lines were lost$", text.decode(), re.MULTILINE)
    assert 2900 < sum(map(int, reports)) < 5000


def test_what_python_prints_never_waits_for_its_reader(tmp_path: Path) -> None:
    """Tracebacks of the threads that serve metrics, warnings, and the exit of the interpreter."""
    program = (
        "import sys, threading\n"
        "from dalsegno.cli import output\n"
        "output.queue_streams()\n"
        "def fails(): raise ValueError('x' * 10_000)\n"
        "for _ in range(50):\n"
        "    thread = threading.Thread(target=fails)\n"
        "    thread.start(); thread.join()\n"
        "    print('some text', flush=True)\n"
    )
    reader, writer = full_pipe()
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=writer, stderr=writer, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0
    os.close(writer)
    os.close(reader)
