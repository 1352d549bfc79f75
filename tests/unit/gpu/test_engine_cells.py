"""The cells with engines, on an engine that does not compute, and the verdicts on their records."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Self

import pytest
from tests.checkout import load_tool

engine_cells = load_tool("gpu/engine_cells")
verdicts = load_tool("gpu/verdicts")
# The modules that these import, which the others share.
from gpu import cells, decode_cells, engines  # noqa: E402 - the line above says where they are

TOP = [[token, -1.0 * token] for token in range(1, 5)]
# What an engine does before the first token, in seconds.
TIMES = {"compute": 3.0, "in gpu": 0.05, "load": 0.2}


class Tier:
    """What is behind an engine."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.prompts: dict[tuple[int, int], int] = {}
        self.most_at_a_time = most

    def store(self, prompt: tuple[int, int], hits: int) -> None:
        known = self.prompts.get(prompt, 0)
        self.prompts[prompt] = min(hits, known + self.most_at_a_time)


class StubEngine:
    """Answers as an engine would that has a tier for each directory or server."""

    tiers: dict[str, Tier] = {}  # noqa: RUF012 - of all engines of a test
    started: list[str] = []  # noqa: RUF012

    def __init__(self, session: Any, setup: Any, start: Any) -> None:
        self._setup, self.start_s = setup, 1.0
        extra = (start.connector or {}).get("kv_connector_extra_config", {})
        place = extra.get("path") or str(extra.get("secondary_tiers") or start.name)
        self._tier = self.tiers.setdefault(place, Tier()) if start.connector else None
        if "path" in extra:
            Path(place).mkdir(parents=True, exist_ok=True)
        self._in_gpu: set[tuple[int, int]] = set()
        self.started.append(start.name)

    def do(self, order: str, **given: Any) -> dict[str, Any]:
        if order == "forget":
            self._in_gpu.clear()
            return {"forgotten": True}
        return self._ask(given["n"], given["seed"]) if order == "ask" else {}

    def _ask(self, n: int, seed: int) -> dict[str, Any]:
        prompt, hits = (n, seed), self._setup.hits(n)
        in_gpu = hits if prompt in self._in_gpu else 0
        external = 0 if in_gpu or self._tier is None else self._tier.prompts.get(prompt, 0)
        self._in_gpu.add(prompt)
        if self._tier is not None:
            self._tier.store(prompt, hits)
        kind = "in gpu" if in_gpu else "load" if external else "compute"
        return {
            "n": n,
            "seed": seed,
            "ttft_s": TIMES[kind],
            "tokens": [1, 2],
            "top": [TOP, TOP],
            "external": external,
            "in_gpu": in_gpu,
            "digest": f"{n} {seed}",
            "sample": "00",
            "loads": [],
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class StubServing:
    """A server that runs nothing."""

    def __init__(self, directory: Path, *_: object) -> None:
        # A server over a directory has what is stored there.
        self.path = str(directory)

    def wait_idle(self, limit_s: float) -> dict[str, int]:
        return {"leases": 0, "view_bytes": 0, "clients": 0}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(StubEngine, "tiers", {})
    monkeypatch.setattr(StubEngine, "started", [])
    for module in (engine_cells, decode_cells):
        monkeypatch.setattr(module, "Engine", StubEngine)
    monkeypatch.setattr(engine_cells, "Serving", StubServing)
    return cells.Session(tmp_path / "out", tmp_path / "scratch", time.monotonic() + 1000)


def measure(session: Any) -> list[dict[str, Any]]:
    every = engine_cells.cells(tiny=False)
    records: list[dict[str, Any]] = cells.run_part("engines", every, session)
    return records


def judged(records: list[dict[str, Any]]) -> dict[str, str]:
    return {one.claim.partition(" (")[0]: one.verdict for one in verdicts.all_of(records)}


def test_each_cell_measures_what_its_name_says(session: Any) -> None:
    records = measure(session)
    assert [one["error"] for one in records if not one["ok"]] == []
    kinds = {one["cell"]: {(row["kind"], row["ttft_s"]) for row in one["rows"]} for one in records}
    compute, in_gpu, load = TIMES["compute"], TIMES["in gpu"], TIMES["load"]
    stored = ("recompute, and store", compute)
    assert kinds["plain"] == {("recompute", compute), ("hit in GPU", in_gpu)}
    assert kinds["cpu-tier"] == kinds["direct-pool"] == {stored, ("load", load)}
    by_first = {stored, ("load by the first engine", load), ("load", load)}
    assert kinds["tiered-serve"] == kinds["fs-tier"] == by_first
    # They find what the cell before them has stored.
    assert kinds["direct-disk"] == {("load", load)}
    assert kinds["direct-serve"] == {("load from its disk", load), ("load", load)}
    lengths = {row["n"] for one in records for row in one["rows"]}
    assert lengths == set(engines.LLAMA_8B.lengths)


def test_cells_that_need_a_filled_directory_fill_it(session: Any) -> None:
    every = {one.name: one for one in engine_cells.cells(tiny=False)}
    (record,) = cells.run_part("engines", [every["direct-disk"]], session)
    assert record["ok"], record
    assert StubEngine.started == ["direct-disk-fills", "direct-disk-loads"]


def test_a_tier_that_refuses_blocks_is_asked_until_it_has_all(session: Any) -> None:
    name = str(session.scratch / engine_cells.KEPT)
    n = engines.LLAMA_8B.lengths[-1]
    StubEngine.tiers[name] = Tier(most=engines.LLAMA_8B.hits(n) // 2 + 16)
    every = {one.name: one for one in engine_cells.cells(tiny=False)}
    (record,) = cells.run_part("engines", [every["direct-pool"]], session)
    kinds = [row["kind"] for row in record["rows"] if row["n"] == n]
    assert kinds[:2] == ["recompute, and store", "load in part, and store"]
    assert set(kinds[2:]) == {"load"}
    assert judged([record])["prompts that were loaded in part"] == "met"


def test_targets_are_judged_at_the_longest_prompt(session: Any) -> None:
    found = judged(measure(session))
    n = engines.LLAMA_8B.lengths[-1]
    assert found[f"pool against vLLM's CPU tier, {n} tokens"] == "MISSED"
    # 0.2 s against 0.05 s and 8.5 GB at 55 GB/s.
    assert found[f"pool against hit in GPU + bytes / 55 GB/s, {n} tokens"] == "met"
    assert found[f"through serve against pool, {n} tokens"] == "met"
    for claim in (
        "answers with other tokens than computed",
        "KV caches with other bytes than computed",
        "prompts that were loaded in part",
        "leases and clients that servers kept",
        "files that our cells left in /dev/shm",
        "cells that failed",
    ):
        assert found[claim] == "met", claim
    assert found["faults that had no effect"] == "not measured"


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        ({"tokens": [1, 4]}, "answers with other tokens than computed"),
        ({"digest": "other"}, "KV caches with other bytes than computed"),
        ({"external": 16}, "prompts that were loaded in part"),
    ],
)
def test_one_wrong_row_is_a_missed_verdict(
    session: Any, change: dict[str, Any], claim: str
) -> None:
    records = measure(session)
    row = next(one for one in records if one["cell"] == "direct-serve")["rows"][-1]
    row.update(change)
    assert judged(records)[claim] == "MISSED"


def test_what_a_cell_leaves_is_a_missed_verdict_unless_it_is_of_vllm(session: Any) -> None:
    records = measure(session)
    by_name = {one["cell"]: one for one in records}
    by_name["cpu-tier"]["left_in_shared_memory"] = ["vllm_offload_x 1"]
    assert judged(records)["files that our cells left in /dev/shm"] == "met"
    by_name["direct-pool"]["left_in_shared_memory"] = ["x 1"]
    assert judged(records)["files that our cells left in /dev/shm"] == "MISSED"
    by_name["direct-serve"]["server_afterwards"]["leases"] = 1
    assert judged(records)["leases and clients that servers kept"] == "MISSED"


def answer(tokens: list[int], top: list[list[list[float]]]) -> dict[str, Any]:
    return {"tokens": tokens, "top": top}


def test_answers_that_differ_in_a_tie_only_are_equal() -> None:
    tied = [[[1, -1.0], [2, -1.1], [3, -4.0]]]
    far = [[[1, -1.0], [2, -2.0], [3, -4.0]]]
    assert verdicts.same_answer(answer([1], tied), answer([1], far)) == "same"
    assert verdicts.same_answer(answer([1], tied), answer([2], tied)) == "tie"
    assert verdicts.same_answer(answer([1], tied), answer([2], far)) == "differs"
    assert verdicts.same_answer(answer([1], tied), answer([9], tied)) == "differs"
    # What follows a tie is another text.
    assert verdicts.same_answer(answer([1, 5], tied * 2), answer([2, 7], tied * 2)) == "tie"


def test_latency_is_judged_by_its_last_percent() -> None:
    record = {
        "part": "decode",
        "cell": "latency-direct",
        "ok": True,
        "loading": {"with_s": [0.01] * 99 + [0.012]},
        "in_gpu": {"with_s": [0.01] * 100},
    }
    (found,) = verdicts.of_decoding([record])
    assert (found.verdict, found.found) == ("MISSED", "1.2x")
    record["loading"] = {"with_s": [0.0101] * 100}
    assert verdicts.of_decoding([record])[0].verdict == "met"


@pytest.mark.parametrize("copies", [0, 1, 2])
def test_a_slice_is_damaged_wherever_the_store_has_it(tmp_path: Path, copies: int) -> None:
    wanted = bytes(range(128))
    segment = tmp_path / "segment-1.log"
    segment.write_bytes(bytes(1000) + (wanted + bytes(100)) * copies)
    assert decode_cells.flip(tmp_path, wanted.hex()) == copies
    content = segment.read_bytes()
    assert content.count(wanted) == 0
    assert len(content) - content.count(0) == copies * 127
