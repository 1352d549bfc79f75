"""Two real vLLM engines on two nodes that share a directory or a bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.dose import dose
from tests.far.shared_fs import mounted
from tests.integration.vllm.engines import QUESTIONS, connector, engines, loaded_share
from tests.skipping import skip_if_missing

import dalsegno
from dalsegno_bench.object_store.servers import seaweed_s3
from dalsegno_bench.shared_fs import seaweed
from dalsegno_bench.shared_fs.processes import until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]


# The far locations of A and of B, and how many catalogs are there.
Places = tuple[str, str, Callable[[], int]]


@contextmanager
def on_gluster() -> Iterator[Places]:
    with mounted("gluster_default") as fs:
        far = fs.a / "kv"
        far.mkdir()
        yield str(far), str(fs.b / "kv"), lambda: len(list(far.glob("*/*.catalog")))


@contextmanager
def in_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    skip_if_missing(None if seaweed.program() else "SeaweedFS is missing", "shared-fs")
    with seaweed_s3() as bucket:
        for name, value in bucket.environment().items():
            monkeypatch.setenv(name, value)
        url = bucket.url("kv")

        def catalogs() -> int:
            try:
                return sum(row["catalogs"] for row in dalsegno.far_survey(url)["writers"])
            except dalsegno.InvalidError:
                return 0

        yield url, url, catalogs


def node(path: Path, far: str) -> dict[str, Any]:
    """The connector of an engine with a local directory and a far one."""
    config = connector(str(path))
    config["kv_connector_extra_config"] |= {"capacity": "1GiB", "far": far, "far_flush_s": 0.5}
    return config


@pytest.mark.parametrize("place", ["gluster", "bucket"])
def test_a_prompt_of_a_killed_node_is_loaded_by_another_one(
    tmp_path: Path,
    small: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    # In the small dose the first engine, which computes every token, says what is right.
    computed: list[list[int]] | None = request.getfixturevalue("computed") if dose(0, 1) else None
    opened = in_bucket(monkeypatch) if place == "bucket" else on_gluster()
    with opened as (far_a, far_b, catalogs):
        with engines(tmp_path, small, a=node(tmp_path / "a", far_a)) as first:
            answer = first["a"].ask()
            right = computed[0] if computed else answer["token_ids"]
            assert answer["token_ids"] == right
            assert loaded_share(answer) == 0
            until("A has published", lambda: catalogs() > 0)
        # `engines` kills what it started. The second one has an empty local directory.
        with engines(tmp_path, small, b=node(tmp_path / "b", far_b)) as second:
            answer = second["b"].ask()
        assert answer["token_ids"] == right, QUESTIONS[0]
        assert loaded_share(answer) >= 0.95
