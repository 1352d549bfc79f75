"""Two real vLLM engines on the CPU that share one store through `dalsegno serve`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("vllm")

from tests.dose import dose
from tests.integration.shared_store import SharedStore
from tests.integration.vllm.engines import connector, engines, loaded_share

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]


def test_two_engines_share_a_server_that_is_killed_and_comes_back(
    tmp_path: Path, small: Path, request: pytest.FixtureRequest
) -> None:
    right: list[list[int]] | None = request.getfixturevalue("computed") if dose(0, 1) else None
    server = SharedStore(tmp_path / "store")
    try:
        # One by its directory, which somebody serves; the other by the socket.
        shared = {"a": connector(str(server.path)), "b": connector(server.socket)}
        with engines(tmp_path, small, **shared) as both:
            first, second = both["a"].ask(), both["b"].ask()
            cold = first["token_ids"]
            assert (second["token_ids"], right[0] if right else cold) == (cold, cold)
            assert loaded_share(first) == 0
            assert loaded_share(second) >= 0.95, "what one engine computed the other loads"
            server.kill()
            answers = [both[name].ask() for name in both]
            away = answers[0]["token_ids"]
            assert (answers[1]["token_ids"], right[1] if right else away) == (away, away)
            server.start()
            first = both["a"].ask()
            server.wait_for_blocks(first["prompt_tokens"] // 128)
            second = both["b"].ask()
            later = first["token_ids"]
            assert (second["token_ids"], right[2] if right else later) == (later, later)
            assert second["external_tokens"] >= 128, "what is stored from now on is shared again"
        if not right:
            return
        # What the server had when it was killed is there for an engine that starts now.
        with engines(tmp_path, small, late=connector(server.socket)) as late:
            answer = late["late"].ask()
        assert answer["token_ids"] == cold
        assert loaded_share(answer) >= 0.95
    finally:
        server.kill()
