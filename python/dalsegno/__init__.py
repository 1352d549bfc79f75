"""Dalsegno: a crash-safe, tiered store for the KV cache of language models.

A prefix that was computed once is loaded, not recomputed. Failures of the store are cache misses: a
request never fails because of it, and never gets wrong bytes.

    import dalsegno

    with dalsegno.open("/var/cache/kv", capacity="200GiB") as store:
        fields = {"model": "m", "weights": "sha256:…"}
        namespace = store.namespace(fields, layers=32, slice_bytes=65536)
        namespace.put_batch(chain, blocks)
        hits = namespace.get_batch(chain, buffers)
"""

import json
import logging
import os
import sys

from dalsegno import _native
from dalsegno._native import *  # noqa: F403 - its `__all__` is the public API
from dalsegno._native import Store
from dalsegno.paths import SOCKET_PREFIX, store_path
from dalsegno.settings import merged, overruled

__all__ = ["open"]
__all__ += _native.__all__

_logger = logging.getLogger("dalsegno")


def open(path: str | os.PathLike[str], **settings: object) -> Store:  # noqa: A001 - reads as dalsegno.open
    """Opens the store in a directory; creates both if they do not exist.

    One process owns a store. Its threads may share it, its forked children may not: fork before you
    open a store. Close it, or use it as a context manager.

    If ``dalsegno serve`` owns the directory, this process becomes one of its clients. ``unix:`` and
    the path of a socket names a server that may start later: until then every block is a miss. The
    settings of a client are ignored.

    Args:
        path: The store's directory, on a local file system; a leading ``~`` is the home directory.
            Or ``unix:`` and the path of a server's socket.
        **settings: Settings that differ from the defaults; docs/guides/configuration.md lists all.
            Byte counts may be numbers or text such as ``"200GiB"`` or ``"200Gi"``. Settings given
            here override those of the file that the environment variable ``DALSEGNO_CONFIG`` names.

    Returns:
        The open store.

    Raises:
        InvalidError: A setting is unknown or invalid, the path is an address or a template, or the
            directory holds something else.
        UnavailableError: Another process owns the store, the directory cannot be written, or this
            process was forked while a store was open.
        IncompatibleError: A newer version wrote the store.
    """
    wanted = merged(settings)
    store = Store(store_path(path), json.dumps(wanted))
    if store.served and (other := overruled(wanted, store.limits())):
        _logger.info("The server of %s has other settings, which count: %s", store.path, other)
    if "capacity" not in wanted and not store.path.startswith(SOCKET_PREFIX) and not store.served:
        _print_capacity(store)
    return store


def _print_capacity(store: Store) -> None:
    """Prints the default capacity on standard error: it takes most of the disk."""
    gib = store.limits()["capacity_bytes"] / (1 << 30)
    print(  # noqa: T201 - shown whether or not logging is configured
        f"dalsegno: {store.path} may use {gib:.1f} GiB, 80% of what the disk can give;"
        ' set capacity="…GiB" to choose',
        file=sys.stderr,
    )
