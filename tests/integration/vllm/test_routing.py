"""What routers learn from a real vLLM with a store behind it: a process, two in the full dose.

The frames are read as a consumer reads them, live and asked for again, with vLLM's own classes and
as plain msgpack; then the rules by which llm-d and NVIDIA Dynamo drop events are applied to them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import msgspec
import zmq
from tests.dose import dose
from tests.integration.vllm import events_engine
from tests.integration.vllm.processes import Program
from tests.integration.vllm.tiers import needs_positions
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch

from dalsegno.demo import primer

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]
BLOCK_TOKENS = 128
TOPIC = b"kv@test"


@dataclass
class Recording:
    """What an engine published, and what its store had after each stage.

    Attributes:
        stages: See `events_engine`.
        frames: The payload of every batch, in order.
        live: Payloads by their number, as a subscriber got them.
    """

    stages: list[dict[str, Any]]
    frames: list[bytes]
    live: dict[int, bytes]

    def stage(self, name: str) -> dict[str, Any]:
        return next(stage for stage in self.stages if stage["stage"] == name)


def listen(endpoint: str, stop: threading.Event, live: dict[int, bytes]) -> None:
    """Subscribes to an engine's events until it is stopped."""
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.connect(endpoint)
        socket.setsockopt(zmq.SUBSCRIBE, TOPIC)
        while not stop.is_set():
            if socket.poll(50):
                topic, number, payload = socket.recv_multipart()
                assert topic == TOPIC
                live[int.from_bytes(number, "big")] = payload


# CI runs a small engine around the direct path instead (test_direct_rig.py).
@pytest.fixture(scope="module", params=["tiered", "direct"][: dose(1, 2)])
def recording(
    tmp_path_factory: pytest.TempPathFactory, small: Path, request: pytest.FixtureRequest
) -> Recording:
    folder = tmp_path_factory.mktemp("events")
    document = folder / "document.txt"
    document.write_text(primer.document()[:6000], encoding="utf-8")
    spec: dict[str, Any] = {
        "model": str(small),
        "document": str(document),
        "store": str(folder / "store"),
        "path_to_engine": request.param,
        "sockets": str(folder),
        "result": str(folder / "result.json"),
    }
    spec["log_file"] = str(folder / "engine.log")
    live: dict[int, bytes] = {}
    stop = threading.Event()
    # Without an engine before it, the first stage stores the blocks itself (test_events.py).
    for only_fill in (True, False) if dose(0, 1) else (False,):
        spec["only_fill"] = only_fill
        thread = threading.Thread(
            target=listen, args=(f"ipc://{folder}/events", stop, live), daemon=True
        )
        if not only_fill:
            thread.start()
        engine = Program(events_engine.run, spec, XDG_CACHE_HOME=str(folder / "cache"))
        assert engine.wait() == 0, engine.said()
    stop.set()
    thread.join()
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert [number for number, _ in result["frames"]] == list(range(len(result["frames"])))
    frames = [bytes.fromhex(payload) for _, payload in result["frames"]]
    return Recording(result["stages"], frames, live)


def short(one: str | bytes) -> int:
    """A block hash as vLLM publishes it: the last eight bytes."""
    raw = bytes.fromhex(one) if isinstance(one, str) else one
    return int.from_bytes(raw[-8:], "big")


class Follower:
    """A router's view of one tier of one engine."""

    def __init__(self) -> None:
        self.blocks: set[Any] = set()

    def stored(self, hashes: list[Any]) -> None:
        self.blocks.update(hashes)

    def removed(self, hashes: list[Any]) -> None:
        self.blocks.difference_update(hashes)

    def cleared(self) -> None:
        self.blocks.clear()


def follow(payload: bytes, follower: Follower) -> None:
    """Applies a batch, decoded with vLLM's own classes."""
    for event in msgspec.msgpack.decode(payload, type=KVEventBatch).events:
        if isinstance(event, AllBlocksCleared):
            follower.cleared()
        elif event.medium == "STORAGE":
            # vLLM 0.28 has no owners of events.
            assert getattr(event, "ownership", "dalsegno") == "dalsegno"
            assert isinstance(event, (BlockStored, BlockRemoved))
            change = follower.stored if isinstance(event, BlockStored) else follower.removed
            change(event.block_hashes)


def follow_raw(payload: bytes, follower: Follower) -> None:
    """Applies a batch, read as the documented arrays and maps."""
    _, events, *_ = msgspec.msgpack.decode(payload)
    for event in events:
        if event["type"] == "AllBlocksCleared":
            follower.cleared()
        elif event.get("medium") == "STORAGE":
            change = {"BlockStored": follower.stored, "BlockRemoved": follower.removed}
            change[event["type"]](event["block_hashes"])


@pytest.mark.parametrize("apply", [follow, follow_raw])
def test_a_follower_knows_what_the_store_has_after_every_stage(
    recording: Recording, apply: Callable[[bytes, Follower], None]
) -> None:
    follower, at = Follower(), 0
    for stage in recording.stages:
        for payload in recording.frames[at : stage["batches"]]:
            apply(payload, follower)
        at = stage["batches"]
        assert follower.blocks == {short(one) for one in stage["present"]}, stage["stage"]
        assert follower.blocks, stage["stage"]
    assert at == len(recording.frames)


def test_every_stage_did_what_its_name_says(recording: Recording) -> None:
    hit = recording.stage("hit of an earlier process")
    assert hit["cached_tokens"] >= dose(0, 5) * BLOCK_TOKENS
    assert len(hit["present"]) * BLOCK_TOKENS >= hit["cached_tokens"]
    assert recording.stage("hit")["cached_tokens"] >= 5 * BLOCK_TOKENS
    evicted = recording.stage("evicted")
    assert len(evicted["present"]) < evicted["touched"]
    assert evicted["counters"]["events_removed_blocks"] > 0
    assert evicted["counters"].get("events_resyncs", 0) == 0
    broken = recording.stage("quarantined")
    assert broken["counters"]["load_failed_blocks"] > 0
    overflow = recording.stage("overflow")
    before = broken["counters"].get("events_resyncs", 0)
    assert overflow["counters"]["events_resyncs"] == before + 1
    assert len(overflow["present"]) < len(broken["present"]) - events_engine.QUEUE_BLOCKS
    reset = recording.stage("reset")
    assert 0 < len(reset["present"]) <= 30
    assert set(recording.stage("stored again")["present"]) > set(reset["present"])


def test_a_request_loads_from_the_tiers_that_it_names(recording: Recording) -> None:
    nothing, memory_only, storage = recording.stage("filtered")["cached_tokens"]
    assert (nothing, memory_only) == (0, 0)
    assert storage >= 5 * BLOCK_TOKENS


def test_a_replayed_batch_equals_the_live_one(recording: Recording) -> None:
    assert len(recording.live) > len(recording.frames) // 2, "it may join a little late"
    numbers = sorted(recording.live)
    assert numbers == list(range(numbers[0], len(recording.frames)))
    assert all(recording.frames[number] == recording.live[number] for number in numbers)


# Why a consumer drops an event of a tier, as their sources say; docs/guides/routing.md.
Rule = Callable[[dict[str, Any]], bool]
IS_STORED: Rule = lambda event: event["type"] == "BlockStored"  # noqa: E731
ROUTERS: dict[str, dict[str, Rule]] = {
    "Dynamo": {
        "the medium is unknown": lambda event: (
            event["medium"]
            not in {"CPU_TIER2", "DISK", "NVME", "STORAGE", "EXTERNAL", "NETWORK", "REMOTE"}
        ),
        "the locality is REMOTE or unknown": lambda event: (
            event.get("locality") not in {None, "LOCAL"}
        ),
        "the block size is not the router's": lambda event: (
            IS_STORED(event) and event["block_size"] != BLOCK_TOKENS
        ),
        "tokens are missing": lambda event: (
            IS_STORED(event)
            and len(event["token_ids"]) != event["block_size"] * len(event["block_hashes"])
        ),
    },
    "llm-d": {
        "the medium has no weight": lambda event: (
            event["medium"].lower() not in {"gpu", "cpu", "storage"}
        ),
        "it names no tokens": lambda event: IS_STORED(event) and not event["token_ids"],
        "a hash is no number": lambda event: any(
            not isinstance(one, int) for one in event["block_hashes"]
        ),
        "its parent is unknown": lambda event: (
            IS_STORED(event)
            and not isinstance(event.get("parent_block_hash"), int)
            and event.get("parent_block_hash") is not None
        ),
    },
}


@needs_positions
@pytest.mark.parametrize(
    ("router", "reason"),
    [(router, reason) for router, rules in ROUTERS.items() for reason in rules],
)
def test_no_rule_of_a_router_drops_an_event(recording: Recording, router: str, reason: str) -> None:
    ours = [
        event
        for payload in recording.frames
        for event in msgspec.msgpack.decode(payload)[1]
        if event.get("medium") == "STORAGE"
    ]
    assert sum(map(IS_STORED, ours)) > 50
    assert not [event for event in ours if ROUTERS[router][reason](event)]


@needs_positions
def test_announced_blocks_form_chains(recording: Recording) -> None:
    """The parent of each block is announced too, so that routers can build their trees."""
    tokens: dict[int, list[int]] = {}
    parents: dict[int, int | None] = {}
    for payload in recording.frames:
        for event in msgspec.msgpack.decode(payload)[1]:
            if event.get("medium") == "STORAGE" and IS_STORED(event):
                (one,) = event["block_hashes"]
                assert tokens.setdefault(one, event["token_ids"]) == event["token_ids"]
                parents[one] = event["parent_block_hash"]
    roots = [one for one, parent in parents.items() if parent is None]
    assert len({tuple(tokens[one]) for one in roots}) == len(roots) >= 10
    assert {parent for parent in parents.values() if parent is not None} <= parents.keys()
