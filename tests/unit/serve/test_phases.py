"""What engines of clients say that they do."""

from __future__ import annotations

from tests.served import ServerProcess
from tests.unit.serve.blocks import opened, wait_until


def test_a_server_knows_the_phase_of_a_client_until_it_says_nothing_more(
    server: ServerProcess,
) -> None:
    with opened(server.socket) as watching:

        def phase() -> str:
            return str(watching.store.stats()["schedule"]["phase"])

        with opened(server.socket) as client:
            client.store.set_phase(1, "prefill", slack_s=0.5, steps=[1.0] * 100)
            wait_until(lambda: phase() == "prefill", "the phase")
            client.store.set_phase(1, "decode", steps=[0.9, float("nan"), -3.0, 1e30])
            wait_until(lambda: phase() == "decode", "the next phase")
        wait_until(lambda: phase() == "unknown", "the end")


def test_saying_a_phase_never_waits_for_a_server_that_is_away(server: ServerProcess) -> None:
    with opened(server.socket) as client:
        server.kill()
        for _ in range(100):
            client.store.set_phase(1, "prefill")
