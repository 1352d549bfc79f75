"""Real SGLang servers on the CPU, one after another on one directory.

Four servers, three of them in the small dose, each of three processes that import SGLang: 20 to 60
seconds of start each. What a server does, it does once, in the fixture that starts it; tests look
at what came of it. Tokens are compared in float32 and greedily.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang")

from tests.dose import long_dose
from tests.integration.sglang import server as sglang_server
from tests.integration.sglang.server import CONFIG, TAKE_OVER_S, Answer, Server

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
PAGE = 64
PROMPT_TOKENS = 3000
ANSWER_TOKENS = 16
# The KV of the last token of an answer is never computed.
STORED_PAGES = (PROMPT_TOKENS + ANSWER_TOKENS - 1) // PAGE
STORAGE = "/hicache/storage-backend"
TAKEN_OVER = "from now on"
WAIT = {"hicache_storage_prefetch_policy": "wait_complete"}


def tokens(seed: int, count: int = PROMPT_TOKENS) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(2, CONFIG["vocab_size"]) for _ in range(count)]


PROMPT = tokens(1)


class Stage:
    """Two models, a directory, and servers on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = sglang_server.make_model(folder / "model", 1)
        self.other_model = sglang_server.make_model(folder / "other", 2)
        self.store = folder / "store"
        self.extra: dict[str, Any] = {
            "backend_name": "dalsegno",
            "path": str(self.store),
            "capacity": "1GiB",
            # SGLang's default policy gives a load a second and a bit: too little on a busy machine.
            "prefetch_timeout_base": 60,
            "hicache_storage_pass_prefix_keys": True,
        }

    @contextmanager
    def server(self, name: str, model: Path, page: int, **changes: str) -> Iterator[Server]:
        log = self.folder / f"{name}.log"
        with sglang_server.serving(model, log, self.extra, page_size=str(page), **changes) as one:
            yield one
        assert "plugin was not loaded" not in one.log
        assert "Failed to apply hooks" not in one.log
        assert "Failed to execute general plugin" not in one.log


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("sglang"))


class Told:
    """A server, and what it answered by the name of the question."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.answers: dict[str, Answer] = {}
        self.numbers: dict[str, float] = {}

    def __getitem__(self, name: str) -> Answer:
        return self.answers[name]

    def ask(self, name: str, prompt: list[int] = PROMPT) -> None:
        self.answers[name] = self.server.ask(prompt, ANSWER_TOKENS)

    def ask_again(self, name: str) -> None:
        """Asks when SGLang's own caches are empty and all it had to store is stored."""
        self.server.empty_caches()
        self.ask(name)

    def count(self, name: str, label: str = "") -> None:
        self.numbers[name] = self.server.metric(f"dalsegno_hicache_{name}", label)


@pytest.fixture(scope="module")
def first(stage: Stage) -> Iterator[Told]:
    """Reads the prompt for the first time, and again with its own caches emptied."""
    with stage.server("first", stage.model, PAGE, **WAIT) as server:
        told = Told(server)
        told.ask("cold")
        # Ends where the prompt ends, and begins otherwise.
        told.ask("control", [*tokens(2, 100), *PROMPT[100:]])
        told.ask_again("warm")
        for name in ("stored_pages", "loaded_pages", "load_failed_pages", "errors"):
            told.count(f"{name}_total")
        told.count("lookup_pages_total", 'result="hit"')
        told.count("available")
        told.numbers["prefetched"] = server.metric("sglang:prefetched_tokens_total")
        yield told


@pytest.fixture(scope="module")
def heir(stage: Stage, first: Told) -> Iterator[Told]:
    """Starts while the first has the directory, and takes it over when the first is killed."""
    with stage.server("heir", stage.model, PAGE, **WAIT) as server:
        told = Told(server)
        told.ask("without")
        told.count("available")
        owner = re.search(r"is in use by pid (\d+)", server.log)
        told.numbers["owner's server"] = os.getpgid(int(owner[1])) if owner else 0
        first.server.kill()
        server.wait_for("store", lambda: TAKEN_OVER in server.log, TAKE_OVER_S)
        told.ask_again("taken over")
        server.empty_caches()
        server.call("DELETE", STORAGE)
        told.ask_again("detached")
        server.empty_caches()
        attach(server, stage, **WAIT)
        told.ask_again("attached")
        server.empty_caches()
        server.call("POST", f"{STORAGE}/clear")
        told.ask_again("cleared")
        server.empty_caches()
        yield told


@pytest.fixture(scope="module")
def last(stage: Stage, heir: Told) -> Iterator[Told]:
    """Follows the heir on its directory, by SGLang's defaults, and is given other weights."""
    heir.server.terminate(stage.store)
    with stage.server("last", stage.model, PAGE) as server:
        told = Told(server)
        told.ask("restarted")
        server.empty_caches()
        update = {"model_path": str(stage.other_model), "flush_cache": True}
        told.numbers["updated"] = json.loads(
            server.call("POST", "/update_weights_from_disk", update)
        )["success"]
        told.ask("updated")
        told.ask_again("updated, warm")
        server.empty_caches()
        server.call("DELETE", STORAGE)
        attach(server, stage)
        told.ask("updated, attached")
        server.empty_caches()
        yield told


@pytest.fixture(scope="module")
def fresh(stage: Stage, last: Told) -> Iterator[Told]:
    """Has had the other weights from the start, and other pages."""
    last.server.terminate(stage.store)
    with stage.server("fresh", stage.other_model, 16, **WAIT) as server:
        told = Told(server)
        told.ask("cold")
        told.ask_again("warm")
        yield told


def attach(server: Server, stage: Stage, **changes: str) -> None:
    body = {
        "hicache_storage_backend": "dynamic",
        "hicache_storage_backend_extra_config_json": json.dumps(stage.extra),
    }
    server.call("PUT", STORAGE, {**body, **changes})


def assert_from_storage(answer: Answer, page: int = PAGE) -> None:
    """All but the last page can be: the token that is computed is on it."""
    assert answer.stored >= 0.95 * (PROMPT_TOKENS // page) * page
    assert answer.cached == answer.stored


def test_a_server_whose_caches_were_emptied_loads_the_prompt(first: Told) -> None:
    assert first["cold"].cached == 0
    assert_from_storage(first["warm"])
    assert first["warm"].tokens == first["cold"].tokens
    assert first["control"].tokens != first["cold"].tokens, "the beginning changes nothing"


def test_the_metrics_count_its_pages(first: Told) -> None:
    told = first.numbers
    # The prompt, and the control.
    assert told["stored_pages_total"] == 2 * STORED_PAGES
    assert told["loaded_pages_total"] * PAGE == told["prefetched"] == first["warm"].stored
    assert told["lookup_pages_total"] == told["loaded_pages_total"]
    assert told["load_failed_pages_total"] == told["errors_total"] == 0
    assert told["available"] == 1


def test_a_server_without_the_directory_serves_and_logs_the_owner(first: Told, heir: Told) -> None:
    assert heir["without"].cached == 0
    assert heir["without"].tokens == first["cold"].tokens
    assert heir.numbers["available"] == 0
    assert heir.numbers["owner's server"] == first.server.process.pid
    assert "SGLang runs on without it" in heir.server.log


def test_a_server_takes_over_the_directory_of_a_killed_one(first: Told, heir: Told) -> None:
    assert_from_storage(heir["taken over"])
    assert heir["taken over"].tokens == first["cold"].tokens


def test_the_backend_can_be_detached_and_attached_while_the_server_runs(
    first: Told, heir: Told
) -> None:
    assert heir["detached"].cached == 0
    assert_from_storage(heir["attached"])
    assert heir["detached"].tokens == heir["attached"].tokens == first["cold"].tokens


def test_a_cleared_backend_has_nothing(first: Told, heir: Told) -> None:
    assert heir["cleared"].cached == 0
    assert heir["cleared"].tokens == first["cold"].tokens


def test_a_restarted_server_loads_the_prompt_by_default(first: Told, last: Told) -> None:
    assert_from_storage(last["restarted"])
    assert last["restarted"].tokens == first["cold"].tokens


def test_pages_of_weights_before_an_update_are_not_found(last: Told) -> None:
    assert last.numbers["updated"]
    assert last["updated"].cached == 0
    assert last["updated"].tokens != last["restarted"].tokens
    # It keeps its pages for itself, as long as it lives.
    assert_from_storage(last["updated, warm"])
    assert last["updated, warm"].tokens == last["updated"].tokens


def test_a_backend_that_is_attached_after_an_update_finds_no_page_of_the_files(last: Told) -> None:
    assert last["updated, attached"].cached == 0
    assert last["updated, attached"].tokens == last["updated"].tokens


@long_dose
def test_pages_of_other_sizes_and_weights_share_a_directory(last: Told, fresh: Told) -> None:
    assert fresh["cold"].cached == 0
    assert fresh["cold"].tokens == last["updated"].tokens
    assert_from_storage(fresh["warm"], page=16)
    assert fresh["warm"].tokens == fresh["cold"].tokens
