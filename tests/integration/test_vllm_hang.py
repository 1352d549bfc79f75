"""vLLM while the disk of its store hangs for ten seconds: nothing waits for it, answers stay equal.

The disk is a folder behind a file system that hangs on command: see `dalsegno.bench.faulty`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.integration.test_vllm import QUESTIONS, Stage, connector, oracle, stage, stored
from tests.integration.tiers import MISS, Primary, Request, counted, finished, keys, open_tier

from dalsegno.bench import faulty
from dalsegno.integrations.vllm import demo_engine

__all__ = ["oracle", "stage", "stored"]

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
CHECKOUT = Path(__file__).resolve().parents[2]
HANG_S = 10.0
# What one call of vLLM's scheduler may take on a busy machine; a call that waits takes ten seconds.
CALL_S = 2.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[faulty.Faulty]:
    """A disk that hangs on command."""
    if (what := faulty.missing()) is not None:
        if os.environ.get("CI") and "fuse" not in os.environ.get("DALSEGNO_MAY_SKIP", ""):
            pytest.fail(f"{what}; let it be skipped with DALSEGNO_MAY_SKIP=fuse")
        pytest.skip(what)
    with faulty.mounted(tmp_path, CHECKOUT) as mounted:
        yield mounted
        mounted.tell("clear")


@pytest.mark.parametrize("index", ["memory", "lsm"])
def test_no_call_of_the_scheduler_waits_for_a_disk_that_hangs(
    disk: faulty.Faulty, index: str
) -> None:
    memory = Primary(32)
    tier = open_tier(
        disk.path / "store",
        memory.view,
        store={"index": index},
        load_timeout_s=1.0,
        store_timeout_s=1.0,
    )
    ours, longest = keys(20), [0.0]
    Request(tier, "before", ours).keep(memory)

    def timed(call: Any, *arguments: Any) -> Any:
        began = time.monotonic()
        result = call(*arguments)
        longest[0] = max(longest[0], time.monotonic() - began)
        return result

    disk.tell("add all hang")
    ends, job, seen = time.monotonic() + HANG_S, 0, {}
    while time.monotonic() < ends:
        asked = Request(tier, f"r{job}", ours)
        timed(asked.begin)
        for key in ours:
            timed(asked.lookup, key)
        for start in (asked.load, asked.store):
            job += 1
            timed(start, job)
        for _ in range(20):
            timed(lambda: list(tier.get_finished_jobs()))
            time.sleep(0.002)
        seen = seen | counted(timed(tier.get_stats))
        timed(asked.end)
    assert longest[0] < CALL_S
    assert seen["suspended"] == 1
    assert Request(tier, "suspended", ours).lookup(ours[0]) is MISS
    disk.tell("clear")
    back = time.monotonic() + 30
    while Request(tier, f"back{time.monotonic()}", ours).lookup_all() == [MISS] * len(ours):
        assert time.monotonic() < back
        list(tier.get_finished_jobs())
        time.sleep(0.05)
    memory.array[:] = 0
    again = Request(tier, "again", ours)
    again.load(10_000)
    ended = {result.job_id: result for result in _drained(tier)}
    assert ended[10_000].success
    assert memory.holds(range(20), ours)
    tier.shutdown()
    memory.free()


def _drained(tier: Any) -> list[Any]:
    """Polls until the last load was reported."""
    results: list[Any] = []
    while all(result.job_id != 10_000 for result in results):
        results += finished(tier)
    return results


def test_answers_stay_equal_and_come_while_the_disk_hangs(
    disk: faulty.Faulty, stage: Stage, stored: Path, oracle: list[dict[str, Any]]
) -> None:
    shutil.copytree(stored, disk.below / "store")
    spec = {
        "model": str(stage.model),
        "questions": QUESTIONS[1:],
        "document": str(stage.folder / "document.txt"),
        "context_tokens": 2048,
        "log_file": str(stage.folder / "hang.log"),
        "kv_transfer_config": connector(disk.path / "store", load_timeout_s=2),
    }
    command = [sys.executable, "-m", demo_engine.__name__, "--spec", json.dumps(spec)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(stage.folder / "cache")}
    answers: list[dict[str, Any]] = []
    clear = threading.Timer(HANG_S, disk.tell, ["clear"])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as engine:
        assert engine.stdout is not None
        for line in engine.stdout:
            record = json.loads(line)
            if record.get("stage") == "reading and answering":
                disk.tell("add read hang file=segment-")
                clear.start()
            elif "token_ids" in record:
                answers.append(record)
    assert engine.returncode == 0, stage.log("hang")[-3000:]
    assert [answer["token_ids"] for answer in answers] == [oracle[1]["token_ids"]]
    counters = answers[0]["counters"]
    assert counters["load_failed_blocks"] > 0, "nothing was read while the disk hung"
    assert counters["poisoned"] == 0
