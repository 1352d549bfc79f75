"""The Prometheus metrics of a server."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator
from typing import Any

from dalsegno import InvalidError, Server, UnavailableError

LOOPBACK = "127.0.0.1"
MOST_PORT = 65_535


def endpoint(text: str) -> tuple[str, int]:
    """Returns the address and the port of ``PORT`` or ``ADDRESS:PORT``.

    Raises:
        InvalidError: It is neither; an IPv6 address needs brackets.
    """
    address, colon, port = text.rpartition(":")
    wanted = "give PORT or ADDRESS:PORT, such as 9400, 0.0.0.0:9400 or [::]:9400"
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= MOST_PORT):
        raise InvalidError(f"--metrics {text}: {port!r} is no port from 1 to {MOST_PORT}; {wanted}")
    if not colon:
        return LOOPBACK, int(port)
    bare = address[1:-1] if address.startswith("[") and address.endswith("]") else address
    try:
        version = ipaddress.ip_address(bare).version
    except ValueError as error:
        raise InvalidError(f"--metrics {text}: {address!r} is no IP address; {wanted}") from error
    if (version == 6) != (bare != address):
        raise InvalidError(f"--metrics {text}: only an IPv6 address needs brackets; {wanted}")
    return bare, int(port)


def url(address: str, port: int) -> str:
    """Returns where the metrics are found."""
    return f"http://{f'[{address}]' if ':' in address else address}:{port}/metrics"


@contextlib.contextmanager
def serving(server: Server, at: tuple[str, int] | None) -> Iterator[None]:
    """Serves the counters on a port of this host while the block runs."""
    if at is None:
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
            for name in ("requests", "lost_log_lines"):
                yield UnknownMetricFamily(f"dalsegno_{name}", name, stats[name])
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
    address, port = at
    try:
        httpd, thread = start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        raise UnavailableError(f"--metrics: cannot serve {url(address, port)}: {error}") from error
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
