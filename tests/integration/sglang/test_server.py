"""Real SGLang servers on the CPU, one after another on one directory.

Four servers, two of them in the small dose, each of three processes that import SGLang: 20 to 60
seconds of start each. A server does its work once, in the fixture that starts it; tests check
the results. Tokens are compared in float32 and greedily.
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

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]
PAGE = 64
PROMPT_TOKENS = 3000
ANSWER_TOKENS = 16
# Those that are computed before costs decide.
PROMPTS = 4
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
            # Most tests expect that every hit is loaded.
            "load_policy": "always",
            "keep_profile": False,
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


class Recorded:
    """A server, with its answers and numbers by name."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.answers: dict[str, Answer] = {}
        self.numbers: dict[str, float] = {}

    def __getitem__(self, name: str) -> Answer:
        return self.answers[name]

    def ask(self, name: str, prompt: list[int] = PROMPT) -> None:
        self.answers[name] = self.server.ask(prompt, ANSWER_TOKENS)

    def ask_again(self, name: str) -> None:
        """Sends the prompt after SGLang's own caches are emptied and all pages are stored."""
        self.server.empty_caches()
        self.ask(name)

    def count(self, name: str, label: str = "") -> None:
        self.numbers[name] = self.server.metric(f"dalsegno_hicache_{name}", label)


@pytest.fixture(scope="module")
def first(stage: Stage) -> Iterator[Recorded]:
    """Reads the prompt once cold, and again after its own caches were emptied."""
    with stage.server("first", stage.model, PAGE, **WAIT) as server:
        recorded = Recorded(server)
        recorded.ask("cold")
        # The same end after another beginning.
        recorded.ask("control", [*tokens(2, 100), *PROMPT[100:]])
        recorded.ask_again("warm")
        for name in ("stored_pages", "loaded_pages", "load_failed_pages", "errors"):
            recorded.count(f"{name}_total")
        recorded.count("lookup_pages_total", 'result="hit"')
        recorded.count("available")
        recorded.numbers["prefetched"] = server.metric("sglang:prefetched_tokens_total")
        learn(recorded, stage)
        yield recorded


def learn(recorded: Recorded, stage: Stage) -> None:
    """Attaches the backend as it is by default, sends prompts, and reads what it has learned."""
    server = recorded.server
    server.empty_caches()
    server.call("DELETE", STORAGE)
    attach(server, stage, {"load_policy": "auto", "keep_profile": True}, **WAIT)
    for number in range(PROMPTS):
        recorded.ask(f"prompt {number}", tokens(10 + number, 500))
    recorded.ask_again("by cost")
    server.empty_caches()
    server.call("DELETE", STORAGE)
    (profile,) = stage.folder.glob("cache/dalsegno/profiles/*.json")
    learned = json.loads(profile.read_text(encoding="utf-8"))["learned"]
    recorded.numbers["steps"] = learned["compute"]["measured"]
    recorded.numbers["loads"] = learned["log"]["measured"]
    attach(server, stage, {}, **WAIT)


@pytest.fixture(scope="module")
def successor(stage: Stage, first: Recorded) -> Iterator[Recorded]:
    """Takes the directory over when the first server is killed, and then gets other weights."""
    with stage.server("successor", stage.model, PAGE, **WAIT) as server:
        recorded = Recorded(server)
        recorded.ask("without")
        recorded.count("available")
        owner = re.search(r"is in use by pid (\d+)", server.log)
        recorded.numbers["owner's server"] = os.getpgid(int(owner[1])) if owner else 0
        first.server.kill()
        server.wait_for("store", lambda: TAKEN_OVER in server.log, TAKE_OVER_S)
        recorded.ask_again("taken over")
        server.empty_caches()
        server.call("DELETE", STORAGE)
        recorded.ask_again("detached")
        server.empty_caches()
        attach(server, stage, {}, **WAIT)
        recorded.ask_again("attached")
        server.empty_caches()
        server.call("POST", f"{STORAGE}/clear")
        recorded.ask_again("cleared")
        server.empty_caches()
        update = {"model_path": str(stage.other_model), "flush_cache": True}
        recorded.numbers["updated"] = json.loads(
            server.call("POST", "/update_weights_from_disk", update)
        )["success"]
        recorded.ask("updated")
        recorded.ask_again("updated, warm")
        server.empty_caches()
        server.call("DELETE", STORAGE)
        attach(server, stage, {}, **WAIT)
        recorded.ask("updated, attached")
        server.empty_caches()
        yield recorded


@pytest.fixture(scope="module")
def last(stage: Stage, successor: Recorded) -> Iterator[Recorded]:
    """Reopens the successor's directory with the old weights and SGLang's defaults."""
    successor.server.terminate(stage.store)
    with stage.server("last", stage.model, PAGE) as server:
        recorded = Recorded(server)
        recorded.ask("restarted")
        server.empty_caches()
        yield recorded


@pytest.fixture(scope="module")
def fresh(stage: Stage, last: Recorded) -> Iterator[Recorded]:
    """Starts with the other weights, and with pages of another size."""
    last.server.terminate(stage.store)
    with stage.server("fresh", stage.other_model, 16, **WAIT) as server:
        recorded = Recorded(server)
        recorded.ask("cold")
        recorded.ask_again("warm")
        yield recorded


def attach(server: Server, stage: Stage, extra: dict[str, Any], **changes: str) -> None:
    body = {
        "hicache_storage_backend": "dynamic",
        "hicache_storage_backend_extra_config_json": json.dumps({**stage.extra, **extra}),
    }
    server.call("PUT", STORAGE, {**body, **changes})


def assert_from_storage(answer: Answer, page: int = PAGE) -> None:
    """All pages may be loaded except the last, which has the token that is computed."""
    assert answer.stored >= 0.95 * (PROMPT_TOKENS // page) * page
    assert answer.cached == answer.stored


def test_a_server_whose_caches_were_emptied_loads_the_prompt(first: Recorded) -> None:
    assert first["cold"].cached == 0
    assert_from_storage(first["warm"])
    assert first["warm"].tokens == first["cold"].tokens
    assert first["control"].tokens != first["cold"].tokens, "the beginning changes nothing"


def test_the_metrics_count_its_pages(first: Recorded) -> None:
    result = first.numbers
    # The prompt, and the control.
    assert result["stored_pages_total"] == 2 * STORED_PAGES
    assert result["loaded_pages_total"] * PAGE == result["prefetched"] == first["warm"].stored
    assert result["lookup_pages_total"] == result["loaded_pages_total"]
    assert result["load_failed_pages_total"] == result["errors_total"] == 0
    assert result["available"] == 1


def test_a_server_measures_its_steps_and_loads_what_pays(first: Recorded) -> None:
    # A request has a step for its prompt, and one for each further token.
    assert first.numbers["steps"] >= PROMPTS * ANSWER_TOKENS
    assert first.numbers["loads"] >= 1
    # Its prompt takes seconds to compute here, and milliseconds to load.
    assert_from_storage(first["by cost"])
    assert first["by cost"].tokens == first["cold"].tokens


def test_a_server_without_the_directory_serves_and_logs_the_owner(
    first: Recorded, successor: Recorded
) -> None:
    assert successor["without"].cached == 0
    assert successor["without"].tokens == first["cold"].tokens
    assert successor.numbers["available"] == 0
    assert successor.numbers["owner's server"] == first.server.process.pid
    assert "SGLang runs on without it" in successor.server.log


def test_a_server_takes_over_the_directory_of_a_killed_one(
    first: Recorded, successor: Recorded
) -> None:
    assert_from_storage(successor["taken over"])
    assert successor["taken over"].tokens == first["cold"].tokens


def test_the_backend_can_be_detached_and_attached_while_the_server_runs(
    first: Recorded, successor: Recorded
) -> None:
    assert successor["detached"].cached == 0
    assert_from_storage(successor["attached"])
    assert successor["detached"].tokens == successor["attached"].tokens == first["cold"].tokens


def test_a_cleared_backend_has_nothing(first: Recorded, successor: Recorded) -> None:
    assert successor["cleared"].cached == 0
    assert successor["cleared"].tokens == first["cold"].tokens


@long_dose
def test_a_restarted_server_loads_the_prompt_by_default(first: Recorded, last: Recorded) -> None:
    assert_from_storage(last["restarted"])
    assert last["restarted"].tokens == first["cold"].tokens


def test_pages_of_weights_before_an_update_are_not_found(
    first: Recorded, successor: Recorded
) -> None:
    assert successor.numbers["updated"]
    assert successor["updated"].cached == 0
    assert successor["updated"].tokens != first["cold"].tokens
    # This process alone finds its pages, until it ends.
    assert_from_storage(successor["updated, warm"])
    assert successor["updated, warm"].tokens == successor["updated"].tokens


def test_a_backend_that_is_attached_after_an_update_finds_no_page_of_the_files(
    successor: Recorded,
) -> None:
    assert successor["updated, attached"].cached == 0
    assert successor["updated, attached"].tokens == successor["updated"].tokens


@long_dose
def test_pages_of_other_sizes_and_weights_share_a_directory(
    successor: Recorded, fresh: Recorded
) -> None:
    assert fresh["cold"].cached == 0
    assert fresh["cold"].tokens == successor["updated"].tokens
    assert_from_storage(fresh["warm"], page=16)
    assert fresh["warm"].tokens == fresh["cold"].tokens
