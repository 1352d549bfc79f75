"""Two real vLLM engines on two nodes that share GlusterFS: what one computed, the other loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.dose import dose
from tests.far.shared_fs import mounted
from tests.integration.vllm.engines import QUESTIONS, connector, engines, loaded_share

from dalsegno_bench.shared_fs.processes import until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]


def node(path: Path, far: Path) -> dict[str, Any]:
    """The connector of an engine with a local directory and a far one."""
    config = connector(str(path))
    config["kv_connector_extra_config"] |= {
        "capacity": "1GiB",
        "far": str(far),
        "far_flush_s": 0.5,
    }
    return config


def catalogs(far: Path) -> int:
    return len(list(far.glob("*/*.catalog")))


def test_a_prompt_of_a_killed_node_is_loaded_by_another_one(
    tmp_path: Path, small: Path, request: pytest.FixtureRequest
) -> None:
    # In the small dose the first engine, which computes every token, says what is right.
    computed: list[list[int]] | None = request.getfixturevalue("computed") if dose(0, 1) else None
    with mounted("gluster_default") as fs:
        (fs.a / "kv").mkdir()
        with engines(tmp_path, small, a=node(tmp_path / "a", fs.a / "kv")) as first:
            answer = first["a"].ask()
            right = computed[0] if computed else answer["token_ids"]
            assert answer["token_ids"] == right
            assert loaded_share(answer) == 0
            until("A has published", lambda: catalogs(fs.a / "kv") > 0)
        # `engines` kills what it started. The second one has an empty local directory.
        with engines(tmp_path, small, b=node(tmp_path / "b", fs.b / "kv")) as second:
            answer = second["b"].ask()
        assert answer["token_ids"] == right, QUESTIONS[0]
        assert loaded_share(answer) >= 0.95
