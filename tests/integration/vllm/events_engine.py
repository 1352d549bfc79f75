"""A real vLLM engine that publishes KV events, taken through everything that changes its store.

It runs in a process of its own (`processes.Program`). The spec has `model`, `document`, `store` (a
directory), `path_to_engine`, `sockets` (a folder), `result` (a file) and `only_fill`: whether the
engine only stores the document, for one that comes after it. After each stage it notes which of the
blocks that it stored or loaded the store has, and the number of the last batch of events. At the
end it asks vLLM's publisher for every batch again, as a consumer does that missed some, and writes
both to the result.
"""

from __future__ import annotations

import json
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dalsegno.integrations.vllm import demo_engine

# 20 blocks of 128 tokens in the engine, 40 in the primary tier: most prompts come from the store.
ENGINE_BLOCKS = 20
BLOCK_BYTES = 128 * 2 * 2 * 3 * 64 * 4
CAPACITY_BLOCKS = 120
QUEUE_BLOCKS = 24


def connector(path: str, path_to_engine: str) -> dict[str, Any]:
    """The flat configuration, with events."""
    return {
        "kv_connector": "DalsegnoConnector",
        "kv_connector_module_path": "dalsegno.integrations.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "path": path,
            "path_to_engine": path_to_engine,
            "load_policy": "always",
            "keep_profile": False,
            "capacity": CAPACITY_BLOCKS * BLOCK_BYTES,
            "cpu_bytes_to_use": 40 * BLOCK_BYTES,
            "enable_kv_events": True,
            "store": {"segment": "4MiB"},
        },
    }


class Tiered:
    """What is seen of the tiered path."""

    def __init__(self, connector: Any, touched: set[bytes]) -> None:
        self._tier = connector.connector_scheduler.manager.secondary_tiers[0]
        mover = self._tier._mover
        result = mover.result

        def recorded(job: Any, **options: Any) -> Any:
            made = result(job, **options)
            touched.update(key[:32] for key in job.kept)
            return made

        mover.result = recorded

    def space(self) -> Any:
        """The namespace of the only KV-cache group, now."""
        return self._tier._backend.current.namespaces[0]

    def published(self) -> list[bytes]:
        """The blocks that are published."""
        return [key[:32] for key in self._tier._events._published]


class Direct:
    """What is seen of the direct path."""

    def __init__(self, connector: Any, touched: set[bytes]) -> None:
        self._scheduler = connector._schedules
        announcer = self._scheduler._announcer
        announce = announcer.announce

        def recorded(opened: Any, state: Any, first: int, end: int) -> None:
            touched.update(state.names[first:end])
            announce(opened, state, first, end)

        announcer.announce = recorded

    def space(self) -> Any:
        """The namespace of the only rank, now."""
        return self._scheduler._store.ranks[0]

    def published(self) -> list[bytes]:
        """The blocks that are published."""
        return [key[:32] for key in self._scheduler._announcer._events._published]


PATHS: dict[str, type[Tiered | Direct]] = {"tiered": Tiered, "direct": Direct}


class Engine:
    """The engine, and what was seen of it."""

    def __init__(self, spec: dict[str, Any]) -> None:
        from vllm import LLM, SamplingParams
        from vllm.config import KVEventsConfig

        from dalsegno.integrations.vllm import events

        events.QUEUE_BLOCKS = QUEUE_BLOCKS
        self.replay = f"ipc://{spec['sockets']}/replay"
        self._spec = spec
        self._sampling = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
        self._llm = LLM(
            model=spec["model"],
            dtype="float32",
            seed=0,
            enforce_eager=True,
            max_model_len=2048,
            max_num_seqs=4,
            num_gpu_blocks_override=ENGINE_BLOCKS,
            disable_log_stats=False,
            kv_transfer_config=connector(spec["store"], spec["path_to_engine"]),
            kv_events_config=KVEventsConfig(
                enable_kv_cache_events=True,
                publisher="zmq",
                endpoint=f"ipc://{spec['sockets']}/events",
                replay_endpoint=self.replay,
                topic="kv@test",
            ),
        )
        core: Any = self._llm.llm_engine.engine_core.engine_core
        self.scheduler = core.scheduler
        self.touched: set[bytes] = set()
        self.seen = PATHS[spec["path_to_engine"]](self.scheduler.connector, self.touched)
        self.stages: list[dict[str, Any]] = []
        self.counters: dict[str, float] = {}

    def ask(self, *prompts: str, load_tiers: list[dict[str, str]] | None = None) -> list[Any]:
        """Answers prompts together; `load_tiers` are those that they may load from."""
        sampling = self._sampling.clone()
        if load_tiers is not None:
            sampling.extra_args = {"kv_transfer_params": {"kv_load_tiers": load_tiers}}
        return list(self._llm.generate(list(prompts), sampling, use_tqdm=False))

    def settle(self) -> None:
        """Steps until nothing is under way."""
        end = time.monotonic() + 30
        while self.scheduler.has_requests():
            assert time.monotonic() < end, "the engine does not come to rest"
            self._llm.llm_engine.step()

    def note(self, name: str) -> None:
        """Ends a stage: settles, and notes what the store has of what was stored or loaded."""
        self.settle()
        names = sorted(self.touched)
        there = self.seen.space().contains(names)
        present = [name.hex() for name, one in zip(names, there, strict=True) if one]
        publisher = self.scheduler.kv_event_publisher
        end = time.monotonic() + 10
        while publisher._event_queue.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.01)
        self.stages.append(
            {
                "stage": name,
                "present": present,
                "touched": len(names),
                "batches": publisher._buffer[-1][0] + 1 if publisher._buffer else 0,
                "counters": self._counters(),
            }
        )

    def _counters(self) -> dict[str, float]:
        """The metrics of the tier, summed since the start."""
        for metric in self._llm.get_metrics():
            if metric.name.startswith(demo_engine.STORE_METRICS) and hasattr(metric, "value"):
                name = metric.name.removeprefix(demo_engine.STORE_METRICS)
                self.counters[name] = metric.value
        return dict(self.counters)

    def spoil(self) -> None:
        """Overwrites parts of every segment, as a failing disk does."""
        for path in Path(self._spec["store"]).glob("segment-*.log"):
            with path.open("r+b") as file:
                for at in range(6 << 10, path.stat().st_size, 64 << 10):
                    file.seek(at)
                    file.write(b"\xa5" * 64)

    def close(self) -> None:
        """Shuts the engine down."""
        self._llm.llm_engine.engine_core.shutdown()


def replayed(endpoint: str) -> list[tuple[int, str]]:
    """Every batch that vLLM's publisher keeps: its number and its payload in hexadecimal."""
    import zmq

    frames: list[tuple[int, str]] = []
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.RCVTIMEO, 10_000)
        socket.connect(endpoint)
        socket.send_multipart([b"", (0).to_bytes(8, "big")])
        while True:
            *_, number, payload = socket.recv_multipart()
            if not payload:
                return frames
            frames.append((int.from_bytes(number, "big"), payload.hex()))


def run(spec: dict[str, Any], *_: Connection) -> None:
    """Takes an engine through all stages."""
    engine = Engine(spec)
    document = Path(spec["document"]).read_text(encoding="utf-8")
    if spec["only_fill"]:
        engine.ask(document)
        engine.settle()
        engine.close()
        return
    others = [f"{number}: {document[number * 40 :]}" for number in range(12)]
    warm = engine.ask(document)[0]
    engine.note("hit of an earlier process")
    engine.stages[-1]["cached_tokens"] = warm.num_cached_tokens
    for prompt in others[:4]:
        engine.ask(prompt)
    engine.note("stored")
    again = engine.ask(others[0])[0]
    engine.note("hit")
    engine.stages[-1]["cached_tokens"] = again.num_cached_tokens
    cached = []
    for tiers in ([], [{"medium": "CPU"}], [{"medium": "STORAGE"}]):
        cached.append(engine.ask(document, load_tiers=tiers)[0].num_cached_tokens)
        # Away from the engine's memory and from the primary tier.
        for prompt in others[:6]:
            engine.ask(prompt)
    engine.note("filtered")
    engine.stages[-1]["cached_tokens"] = cached
    for prompt in others[4:]:
        engine.ask(prompt)
    engine.note("evicted")
    engine.spoil()
    for prompt in (others[-5], others[-4], others[-3]):
        engine.ask(prompt)
    engine.note("quarantined")
    engine.seen.space().remove(sorted(engine.seen.published())[: QUEUE_BLOCKS + 8])
    engine.ask("Something short that makes the engine step.")
    engine.note("overflow")
    engine._llm.reset_prefix_cache(reset_connector=True)
    engine.ask(others[1], others[2])
    engine.note("reset")
    answers = engine.ask(others[0])
    engine.note("stored again")
    engine.stages[-1]["cached_tokens"] = answers[0].num_cached_tokens
    result = {"stages": engine.stages, "frames": replayed(engine.replay)}
    engine.close()
    Path(spec["result"]).write_text(json.dumps(result), encoding="utf-8")
