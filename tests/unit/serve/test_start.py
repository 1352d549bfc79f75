"""`dalsegno serve`: it starts and says when it is ready, or says why not and exits with 2."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.served import SIZES, ServerProcess, serving
from tests.unit.serve.blocks import COUNT, HASHES, LIMIT_S, Blocks, opened, wait_until
from tests.unit.stores import start

import dalsegno

CAPACITY = ["--capacity", "24MiB", "--set", "segment=1MiB", "--set", "staging=16MiB"]


def refused(*arguments: object) -> str:
    """Runs `dalsegno serve`, which must refuse. Returns what it said."""
    process = start("serve", *arguments)
    try:
        out, error = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (2, "")
    # What the store logged before comes first.
    return str(error.splitlines()[-1])


@contextmanager
def command(path: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """`dalsegno serve`, after it said that it is ready."""
    process = start("serve", path, "--pool", "16MiB", *CAPACITY, *arguments)
    try:
        assert process.stdout is not None
        line = ""
        while not line.startswith("engines"):
            line = process.stdout.readline()
            assert line, process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_until_a_signal_ends_it(ending: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with command(path) as process, opened(f"unix:{path}/serve/socket") as blocks:
        blocks.fill()
        assert blocks.hits() == COUNT
        process.send_signal(ending)
        assert process.wait(LIMIT_S) == 0
        assert blocks.hits() == 0
    assert not (path / "serve" / "socket").exists()
    assert dalsegno.verify(path)["findings"] == []
    # The directory is free again.
    with dalsegno.open(path, **SIZES) as store:
        assert not store.served
        space = store.namespace(blocks.space.fields, layers=2, slice_bytes=blocks.space.slice_bytes)
        assert Blocks(store, space).hits() == COUNT


def test_ready_says_whether_a_server_is_there(tmp_path: Path) -> None:
    path = tmp_path / "store"

    def ready() -> int:
        process = start("serve", path, "--ready")
        process.communicate(timeout=LIMIT_S)
        return int(process.returncode)

    assert ready() == 1
    assert not path.exists()
    with command(path) as process:
        assert ready() == 0
        process.kill()
        process.wait(LIMIT_S)
        assert ready() == 1


def test_a_second_server_is_refused_and_names_the_first(server: ServerProcess) -> None:
    said = refused(server.path, "--pool", "16MiB", *CAPACITY)
    assert re.search(rf"\bpid {server.pid}\b", said), said
    assert str(server.path) in said
    with opened(server.socket) as blocks:
        blocks.fill()
        assert blocks.hits() == COUNT


def test_a_server_is_refused_while_a_process_has_the_store(tmp_path: Path) -> None:
    with dalsegno.open(tmp_path / "store", **SIZES):
        said = refused(tmp_path / "store", "--pool", "16MiB", *CAPACITY)
    assert f"pid {os.getpid()}" in said


def test_a_socket_that_another_server_listens_on_is_refused(
    server: ServerProcess, tmp_path: Path
) -> None:
    socket = server.path / "serve" / "socket"
    said = refused(tmp_path / "other", "--socket", socket, "--pool", "16MiB", *CAPACITY)
    assert str(socket) in said
    with opened(server.socket) as blocks:
        blocks.fill()
        assert blocks.hits() == COUNT


def test_a_socket_of_a_killed_server_is_replaced(server: ServerProcess) -> None:
    socket = server.path / "serve" / "socket"
    server.kill()
    assert socket.exists()
    with serving(server.path), opened(server.socket) as blocks:
        blocks.fill()
        assert blocks.hits() == COUNT


def test_a_pool_larger_than_memory_is_refused_in_words(tmp_path: Path) -> None:
    said = refused(tmp_path / "store", "--pool", "64TiB", *CAPACITY)
    # What, how much, and how much there is.
    assert "64 TiB" in said
    assert re.search(r"of which \d+ are available", said), said
    assert "Traceback" not in said


def test_an_impossible_pool_file_is_refused_in_words(tmp_path: Path) -> None:
    file = tmp_path / "missing" / "pool"
    said = refused(tmp_path / "store", "--pool", "16MiB", "--pool-file", file, *CAPACITY)
    assert str(file) in said
    said = refused(tmp_path / "store", "--pool", "16MiB", "--pool-file", tmp_path, *CAPACITY)
    assert str(tmp_path) in said


def test_a_full_memory_file_system_is_refused_in_words(tmp_path: Path) -> None:
    """In a mount namespace of its own, where a small tmpfs may be mounted."""
    unshare = shutil.which("unshare")
    small = tmp_path / "small"
    small.mkdir()
    mount = f"mount -t tmpfs -o size=4m none {small}"
    inside = [str(unshare), "--user", "--map-root-user", "--mount", "sh", "-c"]
    if unshare is None or subprocess.run([*inside, mount], check=False).returncode != 0:
        pytest.skip("this system lets no user mount a tmpfs")
    serve = f"{sys.executable} -m dalsegno.cli serve {tmp_path}/store {' '.join(CAPACITY)}"
    script = f"{mount} && exec {serve} --pool 16MiB --pool-file {small}/pool"
    done = subprocess.run(
        [*inside, script], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "16 MiB" in done.stderr, done.stderr
    assert "No space left" in done.stderr, done.stderr


def test_a_pool_file_serves_blocks(tmp_path: Path) -> None:
    file = Path("/dev/shm", f"dalsegno-test-{os.getpid()}")
    try:
        for _ in range(2):
            with serving(tmp_path / "store", pool_file=str(file)) as server:
                with opened(server.socket) as blocks:
                    blocks.fill()
                    assert blocks.hits() == COUNT
                assert file.stat().st_size >= server.tenant()["pool_bytes"]
                assert file.stat().st_mode & 0o077 == 0
                server.close()
    finally:
        file.unlink(missing_ok=True)


def test_a_pool_file_of_another_server_is_refused(tmp_path: Path) -> None:
    file = Path("/dev/shm", f"dalsegno-test-{os.getpid()}")
    try:
        with (
            serving(tmp_path / "one", pool_file=str(file)) as server,
            opened(server.socket) as blocks,
        ):
            blocks.fill()
            with (
                pytest.raises(dalsegno.UnavailableError),
                serving(tmp_path / "other", pool_file=str(file)),
            ):
                # What the second server wrote is no block of the first.
                wait_until(lambda: blocks.hits() < COUNT, "a miss")
            assert blocks.space.contains(HASHES) == [True] * COUNT
    finally:
        file.unlink(missing_ok=True)
