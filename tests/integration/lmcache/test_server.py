"""A real `lmcache server` with our adapter: what was stored comes back after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("lmcache")

from tests.contract import reference_store
from tests.dose import long_dose
from tests.integration.lmcache.server import (
    CHUNK_TOKENS,
    TOKENS,
    Server,
    client,
    pages,
    serving,
)

pytestmark = pytest.mark.engine

CHUNKS = TOKENS // CHUNK_TOKENS


@pytest.mark.parametrize("end", [pytest.param("stopped", marks=long_dose), "killed"])
def test_a_restarted_server_loads_what_it_stored(tmp_path: Path, end: str) -> None:
    given = {"path": str(tmp_path / "kv"), "capacity": "256MiB", "weights_fingerprint": "w"}
    with serving(tmp_path, given) as server, client(server) as worker:
        request = worker.create_request(3, "first", "cold")
        assert worker.lookup(request).is_full_miss
        assert worker.store(request, 0, TOKENS).succeeded
        right = pages(worker, request)
        worker.end_session(request)
        stored = reference_store.wait_until(
            lambda: server.adapter()["counters"]["stored_objects"] == CHUNKS, 30
        )
        assert stored
        server.stop(kill=end == "killed")
    with serving(tmp_path, given) as server, client(server) as worker:
        request = worker.create_request(3, "second", "warm")
        assert pages(worker, request) == right, "the client's own bytes are the same each time"
        worker.zero_destination(request, 0, TOKENS)
        assert pages(worker, request) != right
        assert worker.lookup(request).is_full_hit
        assert worker.retrieve(request, 0, TOKENS).succeeded
        assert pages(worker, request) == right
        other = worker.create_request(4, "third", "cold")
        assert worker.lookup(other).is_full_miss
        counters = server.adapter()["counters"]
        assert (counters["loaded_objects"], counters["load_failed_objects"]) == (CHUNKS, 0)
        assert server.metric("lmcache_mp_lookup_hit_l2_tokens_total") == TOKENS


# Without a server: test_trouble.py.
@long_dose
def test_a_second_server_runs_without_the_store_and_names_its_owner(tmp_path: Path) -> None:
    given = {"path": str(tmp_path / "kv"), "capacity": "256MiB", "weights_fingerprint": "w"}
    with serving(tmp_path, given) as first, serving(tmp_path, given) as second:
        assert f"pid {first.pid}" in second.log.read_text()
        assert f"pid {first.pid}" in second.adapter()["problem"]
        with client(second) as worker:
            request = worker.create_request(0, "first", "cold")
            assert worker.lookup(request).is_full_miss
            assert worker.store(request, 0, TOKENS).succeeded
            # Its own memory still serves.
            again = worker.create_request(0, "second", "warm")
            assert worker.lookup(again).is_full_hit
        assert first.adapter()["store_open"]


# Without a server: test_trouble.py.
@long_dose
def test_a_wrong_configuration_stops_the_server(tmp_path: Path) -> None:
    server = Server(tmp_path, {"path": str(tmp_path / "kv"), "capcity": "1GiB"})
    assert server.exit_status() != 0
    assert "did you mean 'capacity'" in server.log.read_text()
