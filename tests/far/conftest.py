"""Shared file systems, each started once for a module and mounted twice.

With `--far-all` take part: JuiceFS and CephFS, further servers of object stores, and Mooncake.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.far.shared_fs import mounted

from dalsegno_bench.object_store.servers import MORE_SERVERS
from dalsegno_bench.shared_fs.kinds import MORE_KINDS
from dalsegno_bench.shared_fs.mounts import SharedFs

# CephFS may take a minute to start next to the others, and each change of a name has its price.
TIMEOUT_OF_MORE_S = 600


def needs_more(item: pytest.Item) -> bool:
    """Reports whether a test needs what takes part only with `--far-all`."""
    if item.path.name == "test_mooncake.py":
        return True
    spec = getattr(item, "callspec", None)
    values = spec.params.values() if spec else ()
    names = {*getattr(item, "fixturenames", ()), *(one for one in values if isinstance(one, str))}
    return not names.isdisjoint({*MORE_KINDS, *MORE_SERVERS})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps tests that need more only with `--far-all`, and gives them more time."""
    more = [item for item in items if needs_more(item)]
    if config.getoption("--far-all"):
        for item in more:
            item.add_marker(pytest.mark.timeout(TIMEOUT_OF_MORE_S))
        return
    items[:] = [item for item in items if item not in more]
    config.hook.pytest_deselected(items=more)


@pytest.fixture(scope="module")
def gluster_default() -> Iterator[SharedFs]:
    """GlusterFS with default options: a client caches what other nodes change."""
    with mounted("gluster_default") as fs:
        yield fs


@pytest.fixture(scope="module")
def gluster_tuned() -> Iterator[SharedFs]:
    """GlusterFS with caches switched off."""
    with mounted("gluster_tuned") as fs:
        yield fs


@pytest.fixture(scope="module")
def seaweed() -> Iterator[SharedFs]:
    """SeaweedFS, whose locks and exclusive creation hold on one node only."""
    with mounted("seaweed") as fs:
        yield fs


@pytest.fixture(scope="module")
def juicefs() -> Iterator[SharedFs]:
    """JuiceFS, which has no file under a name while another one is renamed over it."""
    with mounted("juicefs") as fs:
        yield fs


@pytest.fixture(scope="module")
def cephfs() -> Iterator[SharedFs]:
    """CephFS, whose nodes see each other's changes and wait for each other."""
    with mounted("cephfs") as fs:
        yield fs
