"""Two real vLLM engines on two nodes that share a directory, a bucket, or a Mooncake cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.dose import dose
from tests.far.shared_fs import mounted
from tests.integration.vllm.engines import QUESTIONS, connector, engines, loaded_share
from tests.skipping import skip_if_missing

import dalsegno
from dalsegno_bench import mooncake
from dalsegno_bench.object_store.servers import running
from dalsegno_bench.shared_fs import seaweed
from dalsegno_bench.shared_fs.processes import until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Places:
    """Where two nodes share blocks.

    Attributes:
        a: The far location of A.
        b: That of B.
        catalogs: How many catalogs are there.
        settings: Further settings of both.
    """

    a: str
    b: str
    catalogs: Callable[[], int]
    settings: dict[str, Any] = field(default_factory=dict)


@contextmanager
def on_gluster(_: pytest.MonkeyPatch) -> Iterator[Places]:
    with mounted("gluster_default") as fs:
        far = fs.a / "kv"
        far.mkdir()
        yield Places(str(far), str(fs.b / "kv"), lambda: len(list(far.glob("*/*.catalog"))))


@contextmanager
def in_mooncake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    skip_if_missing(mooncake.missing(), "shared-fs")
    with mooncake.running(2) as cluster:
        # The client alone: the engines have the packages that it needs.
        alone = cluster.folder.parent / "client"
        alone.mkdir()
        installed = mooncake.client_folder()
        assert installed is not None
        (alone / "mooncake").symlink_to(installed / "mooncake")
        monkeypatch.setenv("PYTHONPATH", str(alone), prepend=os.pathsep)
        far, options = cluster.url("kv"), {"catalogs": str(cluster.folder)}

        def catalogs() -> int:
            return len(list(cluster.folder.glob("*/*.catalog")))

        yield Places(far, far, catalogs, {"far_options": options})


@contextmanager
def in_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    skip_if_missing(None if seaweed.program() else "SeaweedFS is missing", "shared-fs")
    with running("seaweed") as bucket:
        for name, value in bucket.environment().items():
            monkeypatch.setenv(name, value)
        url = bucket.url("kv")

        def catalogs() -> int:
            try:
                return sum(row["catalogs"] for row in dalsegno.far_survey(url)["writers"])
            except dalsegno.InvalidError:
                return 0

        yield Places(url, url, catalogs)


PLACES = {"gluster": on_gluster, "bucket": in_bucket, "mooncake": in_mooncake}


def node(path: Path, far: str, places: Places) -> dict[str, Any]:
    """The connector of an engine with a local directory and a far one."""
    config = connector(str(path))
    settings = {"capacity": "1GiB", "far": far, "far_flush_s": 0.5, **places.settings}
    config["kv_connector_extra_config"] |= settings
    return config


@pytest.mark.parametrize("place", PLACES)
def test_a_prompt_of_a_killed_node_is_loaded_by_another_one(
    tmp_path: Path,
    small: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    # In the small dose the first engine, which computes every token, says what is right.
    computed: list[list[int]] | None = request.getfixturevalue("computed") if dose(0, 1) else None
    if place == "mooncake" and not request.config.getoption("--far-all"):
        pytest.skip("Mooncake takes part only with --far-all")
    with PLACES[place](monkeypatch) as places:
        with engines(tmp_path, small, a=node(tmp_path / "a", places.a, places)) as first:
            answer = first["a"].ask()
            right = computed[0] if computed else answer["token_ids"]
            assert answer["token_ids"] == right
            assert loaded_share(answer) == 0
            until("A has published", lambda: places.catalogs() > 0)
        # `engines` kills what it started. The second one has an empty local directory.
        with engines(tmp_path, small, b=node(tmp_path / "b", places.b, places)) as second:
            answer = second["b"].ask()
        assert answer["token_ids"] == right, QUESTIONS[0]
        assert loaded_share(answer) >= 0.95
