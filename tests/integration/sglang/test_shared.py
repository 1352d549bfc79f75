"""A real SGLang server on the CPU with two ranks on one store, through `dalsegno serve`."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

pytest.importorskip("sglang")

from tests.dose import long_dose
from tests.integration.sglang import server as sglang_server
from tests.integration.shared_store import SharedStore

import dalsegno

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]
PAGE = 64
PROMPT_TOKENS = 1000
ANSWER_TOKENS = 8
OPTIONS = {
    "tp_size": "2",
    "page_size": str(PAGE),
    "hicache_storage_prefetch_policy": "wait_complete",
}


def tokens(seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(2, sglang_server.CONFIG["vocab_size"]) for _ in range(PROMPT_TOKENS)]


@long_dose
def test_two_ranks_share_a_server_that_is_killed_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("two ranks need two cores")
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", f"{cores[0]}|{cores[1]}")
    model = sglang_server.make_model(tmp_path / "model", 1)
    store = SharedStore(tmp_path / "store")
    extra = {
        "backend_name": "dalsegno",
        "path": str(store.path),
        "prefetch_timeout_base": 60,
        "load_policy": "always",
        "keep_profile": False,
    }
    pages = PROMPT_TOKENS // PAGE
    try:
        with sglang_server.serving(model, tmp_path / "log", extra, **OPTIONS) as server:
            cold = server.ask(tokens(1), ANSWER_TOKENS)
            server.empty_caches()
            warm = server.ask(tokens(1), ANSWER_TOKENS)
            assert (cold.stored, warm.tokens) == (0, cold.tokens)
            assert warm.stored >= 0.95 * pages * PAGE
            store.kill()
            server.empty_caches()
            away = server.ask(tokens(1), ANSWER_TOKENS)
            assert (away.stored, away.tokens) == (0, cold.tokens)
            store.start()
            server.empty_caches()
            back = server.ask(tokens(1), ANSWER_TOKENS)
            assert back.tokens == cold.tokens
            assert back.stored >= 0.95 * pages * PAGE
        with dalsegno.open(store.socket) as shared:
            ranks = {space.fields["ranks"].split()[0] for space in shared.namespaces()}
            assert ranks == {"tp=0/2", "tp=1/2"}
            assert shared.stats()["blocks"] >= 2 * pages
    finally:
        store.kill()
