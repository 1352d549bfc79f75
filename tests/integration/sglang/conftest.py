"""Backends for the tests of SGLang's route, closed when a test ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.sglang.backend_rig import Backends

    from dalsegno_bench.sglang.rig import Rig


@pytest.fixture(scope="module")
def host() -> Iterator[Rig]:
    """A cache without storage, for its host pool."""
    from tests.integration.sglang.backend_rig import GEOMETRY

    from dalsegno_bench.sglang.rig import Rig

    made = Rig(GEOMETRY)
    yield made
    made.close()


@pytest.fixture
def make(tmp_path: Path, host: Rig) -> Iterator[Backends]:
    """Makes backends over the host pool, all with the same directory."""
    from tests.integration.sglang.backend_rig import Backends

    backends = Backends(tmp_path / "store", host)
    with backends.opened:
        yield backends
