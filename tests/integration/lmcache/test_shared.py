"""Several of LMCache's servers on one store, through `dalsegno serve`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("lmcache")

from tests.integration.lmcache.objects import Driver, content, filled, keys, layout, memory
from tests.integration.shared_store import SharedStore

if TYPE_CHECKING:
    from dalsegno.integrations.lmcache import DalsegnoL2Adapter

pytestmark = pytest.mark.engine
Make = Callable[..., "DalsegnoL2Adapter"]


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedStore]:
    store = SharedStore(tmp_path / "served")
    yield store
    store.kill()


def test_what_one_adapter_stores_another_loads_also_after_the_server_was_killed(
    make_adapter: Make, shared: SharedStore
) -> None:
    ours = keys(9)
    one, other = (Driver(make_adapter(Path(path))) for path in (str(shared.path), shared.socket))
    assert other.lookup(ours, layout()) == [False] * 9
    assert one.store(ours, filled(ours)).is_successful()
    for described in (layout(), None):
        assert other.lookup(ours, described) == [True] * 9
    objects = [memory() for _ in ours]
    assert all(other.load(ours, objects))
    for of, loaded in zip(ours, objects, strict=True):
        assert bytes(loaded.raw_data.numpy()) == content(of)
    shared.kill()
    assert other.lookup(ours, layout()) == [False] * 9
    assert not other.store(keys(2, "b"), filled(keys(2, "b"))).is_successful()
    shared.start()
    assert other.lookup(ours, layout()) == [True] * 9
    assert one.holds(ours) == [True] * 9
