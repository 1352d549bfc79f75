"""Two real vLLM engines on the CPU that share one store through `dalsegno serve`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("vllm")

from tests.integration.shared_store import SharedStore
from tests.integration.vllm.engines import connector, engines, loaded_share

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]


def test_two_engines_share_a_server_that_is_killed_and_comes_back(
    tmp_path: Path, small: Path, computed: list[list[int]]
) -> None:
    right = computed
    server = SharedStore(tmp_path / "store")
    try:
        # One by its directory, which somebody serves; the other by the socket.
        shared = {"a": connector(str(server.path)), "b": connector(server.socket)}
        with engines(tmp_path, small, **shared) as both:
            first, second = both["a"].ask(), both["b"].ask()
            assert (first["token_ids"], second["token_ids"]) == (right[0], right[0])
            assert loaded_share(first) == 0
            assert loaded_share(second) >= 0.95, "what one engine computed the other loads"
            server.kill()
            answers = [both[name].ask() for name in both]
            assert [answer["token_ids"] for answer in answers] == [right[1]] * 2
            server.start()
            first = both["a"].ask()
            server.wait_for_blocks(first["prompt_tokens"] // 128)
            second = both["b"].ask()
            assert (first["token_ids"], second["token_ids"]) == (right[2], right[2])
            assert second["external_tokens"] >= 128, "what is stored from now on is shared again"
        # What the server had when it was killed is there for an engine that starts now.
        with engines(tmp_path, small, late=connector(server.socket)) as late:
            answer = late["late"].ask()
        assert answer["token_ids"] == right[0]
        assert loaded_share(answer) >= 0.95
    finally:
        server.kill()
