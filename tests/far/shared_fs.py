"""Shared file systems for tests: each is real, and mounted twice.

Each kind is a fixture of `tests/far`, which starts it once for a module. A test that kills servers
starts its own with :func:`mounted`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.skipping import skip_if_missing

from dalsegno_bench.shared_fs.kinds import missing, started
from dalsegno_bench.shared_fs.mounts import SharedFs


@contextmanager
def mounted(kind: str) -> Iterator[SharedFs]:
    """A file system with two mounts. It ends with the block, also if its servers were paused.

    Skips the test where something is missing. In CI the test fails, unless `DALSEGNO_MAY_SKIP`
    has `shared-fs`.

    Args:
        kind: A key of `KINDS`.

    Yields:
        The mounts.

    Raises:
        ClusterError: It does not start; the message has the logs.
        TimeoutError: It does not end.
    """
    skip_if_missing(missing(kind), "shared-fs")
    with started(kind) as fs:
        yield fs
