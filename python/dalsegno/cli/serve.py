"""``dalsegno serve``: one store for all engines of a host."""

from __future__ import annotations

import json
import os
import re
import signal
import socket as sockets
from pathlib import Path
from typing import Annotated, Any

import typer

import dalsegno
from dalsegno import DalsegnoError, InvalidError, Server
from dalsegno.cli import output, serve_metrics, show
from dalsegno.cli.options import StoreDirectory
from dalsegno.paths import SOCKET_PREFIX, far_place, local_path
from dalsegno.settings import merged

NOT_READY = 1
STOPPING = {signal.SIGTERM, signal.SIGINT}
# The number behind it means "no user" to the kernel.
MOST_UID = 2**32 - 2


def _socket(text: str) -> Path:
    return local_path(text.removeprefix(SOCKET_PREFIX), "--socket")


_Socket = Annotated[
    Path | None,
    typer.Option(
        parser=_socket, metavar="PATH", help="Path of the socket. Default: DIR/serve/socket."
    ),
]
_PoolFile = Annotated[
    Path | None,
    typer.Option(
        parser=local_path,
        metavar="FILE",
        help="File on tmpfs or hugetlbfs for the pool. Default: none.",
    ),
]
_Metrics = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS:]PORT", help="Serve Prometheus metrics there. Default address: loopback."
    ),
]
_Far = Annotated[
    str | None,
    typer.Option(
        parser=far_place,
        metavar="DIR|URL",
        help="What the stores of all hosts share: a directory or a URL, s3:, gs:, az:, mooncake:.",
    ),
]
_FarCapacity = Annotated[
    str | None,
    typer.Option(help="Most bytes of this store there. Default: 10%, 1 TiB of a bucket."),
]
_Tenants = Annotated[
    list[str] | None,
    typer.Option(metavar="GROUP=UIDS", help="Give users a store and a pool of their own."),
]
_LeaseShare = Annotated[
    float | None,
    typer.Option(help="Part of the pool that may be leased in place, at most 0.75. Default: 0.5."),
]


def serve(  # noqa: PLR0913 - one argument for each option
    directory: StoreDirectory,
    *,
    socket: _Socket = None,
    pool: Annotated[str, typer.Option(help="Memory for blocks, shared by all clients.")] = "1GiB",
    pool_file: _PoolFile = None,
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
    lease_share: _LeaseShare = None,
    metrics: _Metrics = None,
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
      dalsegno serve /var/cache/kv --far s3://bucket/kv --set far_options='{"region": "eu-west-1"}'
      dalsegno serve /var/cache/kv --ready && echo it runs
      dalsegno serve /var/cache/kv --tenant blue=1001,1002 --metrics 9400

    Exit codes: 0 stopped, or ready; 1 not ready; 2 it could not start.
    """
    directory = directory.absolute()
    if ready:
        _say_ready(socket or dalsegno.server_socket(directory))
        return
    own = {"capacity": capacity, "far": far, "far_capacity": far_capacity}
    given = _together(own, dict(_pair(one) for one in setting or ()))
    if "dram" in given:
        raise InvalidError("--set dram: the pool is the memory of a server; use --pool")
    settings = {"dram_admission": "put", **merged(given), "dram": _pool_bytes(pool)}
    tenants = [_tenant(one) for one in tenant or ()]
    at = serve_metrics.endpoint(metrics) if metrics else None
    # Before any thread starts: they inherit it, so that this one gets the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    output.queue_streams()
    dalsegno.show_events("info")
    options = {
        "socket": socket,
        "pool_file": pool_file,
        "tenants": tenants,
        "lease_share": lease_share,
    }
    if server := _started(directory, settings, options):
        _run(directory, server, at, settings.get("far"))


def _started(
    directory: Path, settings: dict[str, object], options: dict[str, Any]
) -> Server | None:
    """Starts the server; `None` if a signal came first."""
    try:
        return Server(directory, json.dumps(settings), stopped=_is_stopped, **options)
    except DalsegnoError as error:
        if not _is_stopped():
            raise _in_options(error) from error
        output.complain("stopped before it was ready")
        return None


def _run(directory: Path, server: Server, at: tuple[str, int] | None, far: object) -> None:
    """Waits for a signal, then closes the server."""
    try:
        with serve_metrics.serving(server, at):
            _announce(directory, server, at, far)
            _notify("READY=1")
            signal.sigwait(STOPPING)
            _notify("STOPPING=1")
    finally:
        server.close()


def _say_ready(socket: Path) -> None:
    trouble = dalsegno.server_trouble(socket)
    print(f"{SOCKET_PREFIX}{socket}: {trouble or 'ready'}")
    if trouble:
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
    if value.startswith("{"):
        return name, _object(name, value)
    if value.isdecimal():
        return name, int(value)
    # Seconds and other fractions, such as 0.5.
    return name, float(value) if value.replace(".", "", 1).isdecimal() else value


def _object(name: str, value: str) -> dict[str, object]:
    try:
        return dict(json.loads(value))
    except ValueError as error:
        raise InvalidError(f"--set {name}=… is no JSON object: {error}") from error


def _tenant(text: str) -> tuple[str, set[int]]:
    name, equals, uids = text.partition("=")
    wanted = "GROUP=UIDS, for example --tenant blue=1001,1002"
    if not equals:
        raise InvalidError(f"--tenant {text} is not {wanted}")
    found = [uid.strip() for uid in uids.split(",")]
    for uid in found:
        if not uid.isdecimal() or len(uid) > len(str(MOST_UID)) or int(uid) > MOST_UID:
            raise InvalidError(
                f"--tenant {text}: {uid!r} is no user id, a number from 0 to {MOST_UID}; "
                f"give {wanted}"
            )
    return name, {int(uid) for uid in found}


def _announce(directory: Path, server: Server, at: tuple[str, int] | None, far: object) -> None:
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
            *([("metrics", serve_metrics.url(*at))] if at else []),
            ("engines", f"set their path to {SOCKET_PREFIX}{server.socket} or {directory}"),
        ]
    )


def _notify(state: str) -> None:
    """Reports to systemd, if it started this process."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        with sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM) as line:
            line.settimeout(1)
            line.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)
    except (OSError, ValueError) as error:
        output.complain(f"{state} was not reported to NOTIFY_SOCKET={address}: {error}")


def _is_stopped() -> bool:
    return bool(signal.sigpending() & STOPPING)


def _in_options(error: DalsegnoError) -> DalsegnoError:
    """The error with the options of this command in the place of settings."""
    own = {
        "dram": "pool",
        "capacity": "capacity",
        "far": "far",
        "far_capacity": "far-capacity",
        "lease_share": "lease-share",
    }
    text = str(error).replace("a DRAM tier", "a pool")
    names = "|".join(map(re.escape, {*dalsegno.config_keys(), *own}))

    def option(found: re.Match[str]) -> str:
        name = found["name"]
        return f"--{own[name]}" if name in own else f"--set {name}"

    for quoted in (rf"setting \"(?P<name>{names})\"", rf"`(?P<name>{names})`"):
        text = re.sub(quoted, option, text)
    return type(error)(re.sub(rf"^(?P<name>{names})(?= )", option, text))
