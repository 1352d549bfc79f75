"""What is in the place of a server's socket, and a server that hangs or refuses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.contract.threads import threads
from tests.served import POOL, SIZES, ServerProcess, serving
from tests.unit.serve.blocks import COUNT, LIMIT_S, opened
from tests.unit.stores import start

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


def refused(path: Path, at: Path) -> str:
    """The last line of a server that must not start, and changes nothing at its socket."""
    inode = at.lstat().st_ino
    process = start("serve", path, "--socket", at, *SMALL)
    out, error = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (2, ""), error
    assert at.lstat().st_ino == inode
    assert not (path / "serve").exists()
    return str(error.splitlines()[-1])


def file(path: Path) -> None:
    path.write_text("precious")


def dangling(path: Path) -> None:
    path.symlink_to("missing")


def dead(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (file, "it is an ordinary file; remove it if nothing needs it"),
        (Path.mkdir, "it is a directory"),
        (dangling, "it is a symbolic link"),
        (os.mkfifo, "it is a pipe"),
        (dead, "is not recorded as one of this store's servers"),
    ],
)
def test_what_is_no_socket_of_this_store_is_refused_and_stays(
    make: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    make(tmp_path / "there")
    assert said in refused(tmp_path / "kv", tmp_path / "there")


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_socket_of_a_running_program_is_refused_and_works(kind: int, tmp_path: Path) -> None:
    unix = socket.AF_UNIX
    with socket.socket(unix, kind) as other, socket.socket(unix, kind) as client:
        other.bind(str(tmp_path / "there"))
        if kind != socket.SOCK_DGRAM:
            other.listen()
        assert "choose another path for the socket" in refused(tmp_path / "kv", tmp_path / "there")
        client.connect(str(tmp_path / "there"))


def test_a_socket_elsewhere_is_replaced_after_a_kill_and_by_no_other_store(tmp_path: Path) -> None:
    there = tmp_path / "there"
    for _ in range(2):
        server = ServerProcess(tmp_path / "kv", {**SIZES, **POOL}, socket=str(there))
        with opened(f"unix:{there}") as blocks:
            blocks.fill()
            assert blocks.hits() == COUNT
        server.kill()
    assert there.is_socket()
    assert "not recorded" in refused(tmp_path / "other", there)
    with serving(tmp_path / "kv", socket=str(there)) as server:
        server.close()
    assert not there.exists()


def test_a_relative_socket_and_directory_are_found_after_a_change_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path)
    settings = json.dumps({**SIZES, **POOL})
    for given in ({}, {"socket": "there"}):
        monkeypatch.chdir(tmp_path)
        server = dalsegno.Server("kv", settings, **given)  # type: ignore[arg-type]
        there = tmp_path / given.get("socket", "kv/serve/socket")
        assert server.socket == str(there)
        monkeypatch.chdir("else")
        with dalsegno.open(f"unix:{os.path.relpath(there)}") as store:
            monkeypatch.chdir("/")
            assert store.served
        server.close()
        assert not there.exists()
    assert not list((tmp_path / "else").iterdir())


def test_a_server_that_does_not_respond_is_named(server: ServerProcess) -> None:
    server.pause()
    said = rf"its server \(pid {server.pid}\) at {server.socket} does not respond"
    for call in (dalsegno.open, dalsegno.info, dalsegno.verify):
        with pytest.raises(dalsegno.UnavailableError, match=said):
            call(server.path)
    ready = start("serve", server.path, "--ready")
    out, _ = ready.communicate(timeout=LIMIT_S)
    assert (ready.returncode, out) == (
        1,
        f"{server.socket}: the server (pid {server.pid}) does not respond\n",
    )
    server.go_on()
    with pytest.raises(dalsegno.UnavailableError, match=f"a server shares it at {server.socket}"):
        dalsegno.info(server.path)


def test_a_server_at_another_socket_is_named(tmp_path: Path) -> None:
    there = tmp_path / "there"
    with serving(tmp_path / "kv", socket=str(there)):
        said = f"in use by pid .*; a server shares it at unix:{there}"
        for call in (dalsegno.open, dalsegno.info):
            with pytest.raises(dalsegno.UnavailableError, match=said):
                call(tmp_path / "kv")
        ready = start("serve", tmp_path / "kv", "--ready")
        assert ready.communicate(timeout=LIMIT_S)[0] == f"unix:{there}: ready\n"
        assert ready.returncode == 0


def test_ready_finds_the_server_of_a_directory_that_has_another_path_here(tmp_path: Path) -> None:
    with serving(tmp_path / "kv"):
        (tmp_path / "kv").rename(tmp_path / "moved")
        found = dalsegno.server_socket(tmp_path / "moved")
        assert found == tmp_path / "moved" / "serve" / "socket"
        assert dalsegno.server_trouble(found) is None


def test_a_directory_whose_server_has_another_version_is_named(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    with dalsegno.open(path), socket.socket(socket.AF_UNIX) as other:
        (path / "serve").mkdir()
        other.bind(str(path / "serve" / "socket"))
        other.listen()

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"\2\0\0\0\0\xff\xff")

        said = "does not speak our language"
        with threads([answer]), pytest.raises(dalsegno.IncompatibleError, match=said):
            dalsegno.open(path)


def test_ready_says_whether_a_server_is_missing_or_refuses(tmp_path: Path) -> None:
    assert dalsegno.server_trouble(tmp_path / "none") == "no server is there"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "there"))
        assert dalsegno.server_trouble(tmp_path / "there") == "no server is there"
        other.listen(0)
        said = dalsegno.server_trouble(tmp_path / "there")
        assert said == f"the server (pid {os.getpid()}) does not respond"
        # That connection still waits to be accepted.
        assert dalsegno.server_trouble(tmp_path / "there") is not None
    code = (
        "import socket, sys\n"
        "with socket.socket(socket.AF_UNIX) as here:\n"
        "    here.bind(sys.argv[1]); here.listen(); print('', flush=True)\n"
        "    while True: here.accept()[0].close()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "closes")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        said = dalsegno.server_trouble(tmp_path / "closes")
        process.send_signal(signal.SIGKILL)
    assert said is not None
    assert said.startswith(f"the server (pid {process.pid}) refuses connections")


def test_tenants_that_share_a_user_or_a_name_are_refused_before_anything_is_opened(
    tmp_path: Path,
) -> None:
    for tenants, said in [
        ([("a", {1, 2}), ("b", {2})], "user 2 is in the tenants a and b"),
        ([("a", {1}), ("a", {2})], "tenant a is given twice"),
        ([("../a", {1})], "no usable name"),
    ]:
        with pytest.raises(dalsegno.InvalidError, match=said):
            dalsegno.Server(tmp_path / "kv", json.dumps({**SIZES, **POOL}), tenants=tenants)
    assert not (tmp_path / "kv").exists()
