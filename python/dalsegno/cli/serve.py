"""``dalsegno serve``: one store for all engines of a host."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket as sockets
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import dalsegno
from dalsegno import InvalidError, Server, UnavailableError
from dalsegno.cli import output, show
from dalsegno.cli.options import Directory
from dalsegno.paths import SOCKET_PREFIX, local_path, socket_of
from dalsegno.settings import merged

NOT_READY = 1
STOPPING = {signal.SIGTERM, signal.SIGINT}

_Far = Annotated[
    Path | None,
    typer.Option(
        parser=local_path, metavar="DIR", help="Directory that the stores of all hosts share."
    ),
]
_FarCapacity = Annotated[
    str | None, typer.Option(help="Most bytes of this store there. Default: 10% of it.")
]
_Tenants = Annotated[
    list[str] | None,
    typer.Option(metavar="GROUP=UIDS", help="Give users a store and a pool of their own."),
]


def serve(  # noqa: PLR0913 - one argument for each option
    directory: Directory,
    *,
    socket: Annotated[
        Path | None,
        typer.Option(parser=local_path, help="Path of the socket. Default: DIR/serve/socket."),
    ] = None,
    pool: Annotated[str, typer.Option(help="Memory for blocks, shared by all clients.")] = "1GiB",
    pool_file: Annotated[
        Path | None,
        typer.Option(
            parser=local_path, help="File on tmpfs or hugetlbfs for the pool. Default: none."
        ),
    ] = None,
    capacity: Annotated[
        str | None, typer.Option(help="Most bytes of disk. Default: 80% of what is free.")
    ] = None,
    far: _Far = None,
    far_capacity: _FarCapacity = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Another setting of the store."),
    ] = None,
    tenant: _Tenants = None,
    metrics: Annotated[
        int | None, typer.Option(metavar="PORT", help="Serve Prometheus metrics on this port.")
    ] = None,
    ready: Annotated[
        bool, typer.Option("--ready", help="Only say whether a server answers there.")
    ] = False,
) -> None:
    """Share one store and one pool of memory between engines.

    It runs until SIGTERM or SIGINT, and then closes the store. Engines that use DIR as their path
    become its clients: what one of them computed, the others load without a copy in between.

    Example:
      dalsegno serve /var/cache/kv --pool 64GiB --capacity 1TiB
      dalsegno serve /var/cache/kv --far /mnt/shared/kv
      dalsegno serve /var/cache/kv --ready && echo it runs
      dalsegno serve /var/cache/kv --tenant blue=1001,1002 --metrics 9400

    Exit codes: 0 stopped, or ready; 1 not ready; 2 it could not start.
    """
    if ready:
        _say_ready(f"{SOCKET_PREFIX}{socket or socket_of(directory)}")
        return
    own = {"capacity": capacity, "far": str(far) if far else None, "far_capacity": far_capacity}
    given = _together(own, dict(_pair(one) for one in setting or ()))
    if "dram" in given:
        raise InvalidError("--set dram: the pool is the memory of a server; use --pool")
    settings = {"dram_admission": "put", **merged(given), "dram": _pool_bytes(pool)}
    tenants = [_tenant(one) for one in tenant or ()]
    # Before any thread starts: they inherit it, so that this one gets the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    output.queue_streams()
    dalsegno.show_events("info")
    server = Server(
        directory, json.dumps(settings), socket=socket, pool_file=pool_file, tenants=tenants
    )
    _run(directory, server, metrics, settings.get("far"))


def _run(directory: Path, server: Server, metrics: int | None, far: object) -> None:
    """Waits for a signal, then closes the server."""
    try:
        with _metrics(server, metrics):
            _announce(directory, server, metrics, far)
            _notify("READY=1")
            signal.sigwait(STOPPING)
            _notify("STOPPING=1")
    finally:
        server.close()


def _say_ready(path: str) -> None:
    with dalsegno.open(path) as store:
        is_ready = store.served
    print(f"{path}: {'ready' if is_ready else 'no server answers'}")
    if not is_ready:
        raise typer.Exit(NOT_READY)


def _pool_bytes(text: str) -> int:
    try:
        return dalsegno.parse_bytes(text)
    except InvalidError as error:
        raise InvalidError(f"--pool {text}: {error}") from error


def _together(own: dict[str, str | None], others: dict[str, object]) -> dict[str, object]:
    """Settings that have an option of their own, and those of `--set`."""
    given = {name: value for name, value in own.items() if value is not None}
    for name in given.keys() & others.keys():
        option = f"--{name.replace('_', '-')}"
        raise InvalidError(f"{option} and --set {name} are given; use {option} only")
    return {**given, **others}


def _pair(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise InvalidError(f"--set {text} has no NAME=VALUE; for example --set durability=batch")
    if value.isdecimal():
        return name, int(value)
    # Seconds and other fractions, such as 0.5.
    return name, float(value) if value.replace(".", "", 1).isdecimal() else value


def _tenant(text: str) -> tuple[str, set[int]]:
    name, _, uids = text.partition("=")
    try:
        found = {int(uid) for uid in uids.split(",")}
    except ValueError:
        found = set()
    if not name.isidentifier() or not found:
        raise InvalidError(
            f"--tenant {text} has no GROUP=UIDS; for example --tenant blue=1001,1002"
        )
    return name, found


def _announce(directory: Path, server: Server, metrics: int | None, far: object) -> None:
    stats = server.stats()["tenants"][0]
    store = stats["store"]
    direct = "around the page cache" if store["io_direct"] else "through the page cache"
    show.facts(
        [
            ("serving", directory),
            ("socket", server.socket),
            ("pool", show.byte_count(stats["pool_bytes"])),
            ("disk", f"at most {show.byte_count(store['capacity_bytes'])}"),
            *([("far", far)] if far else []),
            ("I/O", f"{store['io_engine']}, {direct}"),
            *([("metrics", f"http://localhost:{metrics}/metrics")] if metrics else []),
            ("engines", f"set their path to {SOCKET_PREFIX}{server.socket} or {directory}"),
        ]
    )


@contextlib.contextmanager
def _metrics(server: Server, port: int | None) -> Iterator[None]:
    """Serves the counters on a port of this host while the block runs."""
    if port is None:
        yield
        return
    try:
        from prometheus_client import CollectorRegistry, start_http_server
        from prometheus_client.core import UnknownMetricFamily
    except ImportError as error:
        raise UnavailableError("--metrics needs the package prometheus-client") from error

    class Collector:
        def collect(self) -> Iterator[Any]:
            stats = server.stats()
            yield UnknownMetricFamily("dalsegno_requests", "requests", stats["requests"])
            families: dict[str, Any] = {}
            for tenant in stats["tenants"]:
                for name, value in _numbers("dalsegno", tenant):
                    family = families.setdefault(
                        name, UnknownMetricFamily(name, name, labels=["tenant"])
                    )
                    family.add_metric([tenant["tenant"]], value)
            yield from families.values()

    registry = CollectorRegistry()
    registry.register(Collector())
    try:
        httpd, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise UnavailableError(f"--metrics {port}: {error}") from error
    try:
        yield
    finally:
        httpd.shutdown()
        thread.join()


def _numbers(prefix: str, value: object) -> Iterator[tuple[str, float]]:
    """The numbers of nested counters, named by their paths."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _numbers(f"{prefix}_{name}", part)
    elif isinstance(value, int | float):
        yield prefix, float(value)


def _notify(state: str) -> None:
    """Reports to systemd, if it started this process."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        address = "\0" + address[1:] if address.startswith("@") else address
        with sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM) as line:
            line.sendto(state.encode(), address)
