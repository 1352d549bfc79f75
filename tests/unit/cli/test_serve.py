"""``dalsegno serve`` as its users see it: what it prints, reports and refuses."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import dalsegno

WAIT_S = 60.0


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "dalsegno.cli", "serve", *map(str, arguments)]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=WAIT_S, check=False
    )


@contextmanager
def serving(path: Path, *options: object, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A server that answers."""
    settings = {**os.environ, **environment}
    small = ("--pool", "1MiB", "--capacity", "64MiB", *options)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command(path, *small), stdout=pipe, stderr=pipe, text=True, env=settings
    ) as server:
        try:
            until = time.monotonic() + WAIT_S
            while run(path, "--ready", *options[2:]).returncode:
                assert server.poll() is None, server.stderr and server.stderr.read()
                assert time.monotonic() < until
            yield server
        finally:
            server.kill()


def stopped(server: subprocess.Popen[str], by: signal.Signals = signal.SIGTERM) -> tuple[str, str]:
    """What a server said until a signal ended it."""
    server.send_signal(by)
    out, err = server.communicate(timeout=WAIT_S)
    assert server.returncode == 0
    return out, err


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_it_says_what_to_configure_logs_clients_and_stops(
    tmp_path: Path, by: signal.Signals
) -> None:
    path = tmp_path / "kv"
    assert run(path, "--ready").returncode == 1
    with serving(path) as server:
        with dalsegno.open(path) as store:
            assert store.served
        out, err = stopped(server, by)
    assert f"unix:{path}/serve/socket or {path}" in " ".join(out.split())
    assert "1 MiB" in out
    assert "client connected" in err
    assert "store opened" in err
    assert run(path, "--ready").returncode == 1
    assert dalsegno.verify(str(path))["findings"] == []
    assert not (path / "serve" / "socket").exists()


def test_the_socket_is_for_its_user_and_group(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    with serving(path):
        folder = path / "serve"
        assert folder.stat().st_mode & 0o777 == 0o750
        assert (folder / "socket").stat().st_mode & 0o777 == 0o660


def test_a_directory_in_use_is_refused_with_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    with dalsegno.open(path, capacity="64MiB"):
        refused = run(path)
    assert refused.returncode == 2
    assert f"is in use by pid {os.getpid()} (" in refused.stderr
    with serving(path) as server:
        refused = run(path)
        assert refused.returncode == 2
        assert f"is in use by pid {server.pid} (" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--pool", "1KiB"), "at least 64 KiB"),
        (("--pool", "64EiB"), "--pool 64EiB"),
        (("--set", "durability"), "has no NAME=VALUE"),
        (("--set", "durabilty=none"), 'did you mean "durability"'),
        (("--tenant", "blue"), "is not GROUP=UIDS"),
        (("--tenant", "blue=x"), "'x' is no user id"),
        (("--tenant", "blue=-1"), "'-1' is no user id"),
        (("--tenant", "blue=1,4294967295"), "'4294967295' is no user id"),
        (("--tenant", "a/b=1"), "use letters, digits, `_` and `-`"),
        (("--pool", "8TiB"), "cannot provide a pool of 8 TiB"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    refused = run(tmp_path / "kv", "--capacity", "64MiB", *arguments)
    assert refused.returncode == 2
    assert said in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--capacity", "1KiB"), "--capacity 1 KiB holds 0 segments"),
        (("--capacity", "xx"), '--capacity cannot be "xx"'),
        (("--set", "segment=3"), "--set segment is 3 B"),
        (("--set", "io_depth=x"), "--set io_depth cannot be"),
        (("--pool", "8TiB"), "a pool of 8 TiB; set --pool to less"),
        (("--far", "/nonexistent"), "create it, or leave --far out"),
        (("--tenant", "a=1", "--tenant", "b=1"), "user 1 is in the tenants a and b"),
        (("--tenant", "a=1", "--tenant", "a=2"), "tenant a is given twice"),
        (("--lease-share", "0.8"), "--lease-share is 0.8; it must be above 0 and at most 0.75"),
        (("--metrics", "x"), "'x' is no port from 1 to 65535"),
        (("--metrics", "70000"), "is no port"),
        (("--metrics", "host:9400"), "'host' is no IP address"),
        (("--metrics", "::1:9400"), "only an IPv6 address needs brackets"),
        (("--metrics", "[127.0.0.1]:9400"), "only an IPv6 address needs brackets"),
        (("--metrics", "192.0.2.1:9400"), "cannot serve http://192.0.2.1:9400/metrics"),
    ],
)
def test_messages_name_the_options_of_the_command(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    small = () if "--capacity" in arguments else ("--capacity", "64MiB")
    refused = run(tmp_path / "kv", *small, *arguments)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert not (tmp_path / "kv" / "serve" / "socket").exists()


def test_a_socket_given_as_directory_is_refused_with_what_was_meant(tmp_path: Path) -> None:
    refused = run(f"unix:{tmp_path}/socket")
    assert refused.returncode == 2
    assert "the socket of a server; give the directory that it owns" in refused.stderr


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_pool_is_provided_ends_it_cleanly(
    tmp_path: Path, by: signal.Signals
) -> None:
    """The signal is sent before the process starts, and stays pending until it looks."""
    path, file = tmp_path / "kv", Path("/dev/shm", f"dalsegno-stopped-{os.getpid()}")
    arguments = ("--pool", "1GiB", "--capacity", "64MiB", "--pool-file", file)
    program = (
        "import os, signal, sys\n"
        f"signal.pthread_sigmask(signal.SIG_BLOCK, {{{by.value}}})\n"
        f"os.kill(os.getpid(), {by.value})\n"
        "os.execv(sys.argv[1], sys.argv[1:])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *command(path, *arguments)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    left = file.exists()
    file.unlink(missing_ok=True)
    assert (done.returncode, done.stdout, left) == (0, "", False), done.stderr
    assert "stopped before it was ready" in done.stderr
    assert not (path / "serve").exists()
    with dalsegno.open(path, capacity="64MiB") as store:
        assert store.stats()["blocks"] == 0


@pytest.mark.parametrize("address", ["missing", "vsock:2:1", "x" * 200, "@" + "x" * 200])
def test_an_unusable_notify_socket_is_a_warning(tmp_path: Path, address: str) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / "none") if address == "missing" else address}
    with serving(tmp_path / "kv", **environment) as server:
        out, err = stopped(server)
    assert "socket" in out
    assert "READY=1 was not reported to NOTIFY_SOCKET=" in err


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]", "0.0.0.0"])
def test_metrics_at_another_address(tmp_path: Path, address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((address.strip("[]"), 0))
            port = probe.getsockname()[1]
    except OSError:
        pytest.skip("this system has no IPv6")
    with serving(tmp_path / "kv", "--metrics", f"{address}:{port}") as server:
        url = f"http://{address.replace('0.0.0.0', '127.0.0.1')}:{port}/metrics"
        until = time.monotonic() + WAIT_S
        while True:
            try:
                with urllib.request.urlopen(url, timeout=WAIT_S) as reply:
                    text = reply.read().decode()
                break
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.05)
        out, _ = stopped(server)
    assert "dalsegno_lost_log_lines 0.0" in text
    assert f"http://{address}:{port}/metrics" in out


def test_metrics_and_the_report_to_systemd(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notified.bind(str(tmp_path / "notify"))
    notified.settimeout(WAIT_S)
    path = tmp_path / "kv"
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    with serving(path, "--metrics", port, **environment) as server:
        assert notified.recv(100) == b"READY=1"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as reply:
            text = reply.read().decode()
        stopped(server)
    assert 'dalsegno_pool_bytes{tenant=""} 1.048576e+06' in text
    assert 'dalsegno_store_blocks{tenant=""} 0.0' in text
    assert notified.recv(100) == b"STOPPING=1"
    notified.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_tenant_has_a_store_of_its_own(tmp_path: Path) -> None:
    path, other = Path(f"/tmp/dalsegno-tenant-{os.getpid()}"), 65_534
    program = (
        "import os, sys, dalsegno\n"
        "os.setgid(int(sys.argv[2]))\n"
        "os.setuid(int(sys.argv[2]))\n"
        "with dalsegno.open('unix:' + sys.argv[1]) as store:\n"
        "    space = store.namespace({'m': '1'}, layers=1, slice_bytes=9)\n"
        "    print(store.served, space.probe([bytes(32)]), len(store.namespaces()))\n"
    )
    with serving(
        tmp_path / "kv", "--tenant", f"blue={other}", "--socket", path / "socket"
    ) as server:
        with dalsegno.open(f"unix:{path}/socket") as store:
            space = store.namespace({"m": "1"}, layers=1, slice_bytes=9)
            assert space.put_batch([bytes(32)], [b"some text"]).stored == 1
        os.chown(path, other, other)
        os.chown(path / "socket", other, other)
        done = subprocess.run(
            [sys.executable, "-c", program, str(path / "socket"), str(other)],
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_S,
        )
        stopped(server)
    path.rmdir()
    assert done.stdout.split() == ["True", "0", "1"], done.stderr
    assert dalsegno.info(str(tmp_path / "kv" / "tenants" / "blue"))["blocks"] == 0


def test_the_far_directory_is_an_option_and_is_announced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    options = ("--far", tmp_path / "far", "--far-capacity", "1GiB")
    with serving(tmp_path / "kv", *options) as server:
        out, _ = stopped(server)
    assert f"far {tmp_path / 'far'}" in " ".join(out.split())


def test_settings_with_fractions_and_a_far_directory_in_the_store(tmp_path: Path) -> None:
    far = tmp_path / "far"
    far.mkdir()
    options = ("--far", far, "--set", "far_flush_s=0.5", "--set", "far_write=second-put")
    with serving(tmp_path / "kv", *options) as server:
        stopped(server)
    for wrong in (tmp_path / "kv", tmp_path):
        refused = run(tmp_path / "new", "--pool", "1MiB", "--capacity", "64MiB", "--far", wrong)
        assert refused.returncode == 2
        assert "apart from the" in refused.stderr
    assert not (tmp_path / "new").exists()


def test_an_option_and_the_same_setting_are_refused_together(tmp_path: Path) -> None:
    far = tmp_path / "far"
    done = run(tmp_path / "kv", "--far", far, "--set", f"far={far}")
    assert done.returncode == 2
    assert "--far and --set far are given; use --far only" in done.stderr
