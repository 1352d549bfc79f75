"""Through vLLM's tier, driven as vLLM's scheduler does: requests, lookups, jobs and polling.

1. Calls of the tier come one at a time, as under the lock of vLLM's manager; jobs overlap.
2. Blocks go out from, and come back into, rows of a primary tier that are chosen at random.
3. When a session ends, nothing may refer to the memory of its primary tier any more.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.contract.routes import Route, Session, Shape
from tests.integration.vllm import tiers
from vllm.v1.kv_offload.base import ScheduleEndContext, make_offload_key

from dalsegno.integrations.vllm.settings import TierSettings

# Rows of the primary tier for each direction; a job takes a part of them, so that jobs overlap.
ROWS = 32
JOB_BLOCKS = 16
PATTERN = 0x5A
PATIENCE_S = 60


class _Rows:
    """Rows of the primary tier that are free for one direction."""

    def __init__(self, first: int) -> None:
        self.all = range(first, first + ROWS)
        self._free = list(self.all)
        self._chance = random.Random(first)
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, count: int) -> Iterator[list[int]]:
        """Rows that no other job uses; waits until there are enough."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._free) >= count, PATIENCE_S)
            self._chance.shuffle(self._free)
            rows = [self._free.pop() for _ in range(count)]
        try:
            yield rows
        finally:
            with self._changed:
                self._free += rows
                self._changed.notify_all()


class _Tier(Session):
    """A tier and the primary tier before it."""

    def __init__(self, path: Path, shape: Shape, settings: dict[str, Any]) -> None:
        row_bytes = shape.layers * shape.slice_bytes
        of = replace(
            tiers.config(dtype=shape.dtype, worker_kv_bytes_per_block=row_bytes),
            groups=tiers.groups_of(1, shape.layers, shape.tokens),
        )
        self.block_bytes = row_bytes
        self._tokens = shape.tokens
        self._primary = tiers.Primary(2 * ROWS, row_bytes)
        try:
            self._tier = tiers.open_tier(path, self._primary.view, of, **settings)
        except BaseException:
            self._primary.free()
            raise
        self._stores, self._loads = _Rows(0), _Rows(ROWS)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._ended: dict[int, Any] = {}

    @contextmanager
    def _request(self, chain: Sequence[bytes]) -> Iterator[tiers.Request]:
        """A request for a prompt with these blocks, from its arrival until it is over."""
        ours = [make_offload_key(one, 0) for one in chain]
        name = f"r{next(self._numbers)}"
        request = tiers.Request(self._tier, name, ours, block_tokens=self._tokens)
        with self._lock:
            request.begin()
        try:
            yield request
        finally:
            with self._lock:
                request.end()

    def _result(self, job: int) -> Any:
        """Polls, as vLLM does on each step, until a job is reported."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            with self._lock:
                self._poll()
                if job in self._ended:
                    return self._ended.pop(job)
            time.sleep(0.0005)
        raise AssertionError("a job was never reported")

    def _poll(self) -> None:
        for result in self._tier.get_finished_jobs():
            assert result.job_id not in self._ended, "a job was reported twice"
            self._ended[result.job_id] = result

    def _found(self, request: tiers.Request) -> list[bool]:
        with self._lock:
            found = [answer is tiers.HIT for answer in request.lookup_all()]
            # All loads of a session come from its own rows, so each lookup is a step of its own.
            self._tier.on_schedule_end(ScheduleEndContext((), ()))
            return found

    def put(self, chain: Sequence[bytes], blocks: Sequence[bytes], first: int = 0) -> list[bool]:
        with self._request(chain) as request:
            for at in range(0, len(blocks), JOB_BLOCKS):
                part = blocks[at : at + JOB_BLOCKS]
                keys = request.keys[first + at :][: len(part)]
                with self._stores.taken(len(part)) as rows:
                    for row, block in zip(rows, part, strict=True):
                        self._primary.array[row] = np.frombuffer(block, dtype=np.int8)
                    job = next(self._numbers)
                    with self._lock:
                        request.store(job, keys, rows)
                    self._result(job)
        # vLLM learns only that a store has ended. The next request finds the blocks that were kept.
        with self._request(chain) as request:
            return self._found(request)[first : first + len(blocks)]

    def probe(self, chain: Sequence[bytes]) -> int:
        with self._request(chain) as request:
            return [*self._found(request), False].index(False)

    def get(self, chain: Sequence[bytes]) -> list[bytes | None]:
        return self._got(chain, self._result)

    def interrupted_get(self, chain: Sequence[bytes]) -> list[bytes | None]:
        def interrupted(job: int) -> Any:
            with self._lock:
                self._tier.drain_jobs()
                self._poll()
                return self._ended.pop(job)

        return self._got(chain, interrupted)

    def _got(self, chain: Sequence[bytes], result: Callable[[int], Any]) -> list[bytes | None]:
        got: dict[bytes, bytes] = {}
        with self._request(chain) as request:
            there = zip(request.keys, self._found(request), strict=True)
            hits = [key for key, found in there if found]
            for at in range(0, len(hits), JOB_BLOCKS):
                got |= self._load(request, hits[at : at + JOB_BLOCKS], result)
            return [got.get(key) for key in request.keys]

    def _load(
        self, request: tiers.Request, keys: list[bytes], result: Callable[[int], Any]
    ) -> dict[bytes, bytes]:
        """Loads blocks by one job; returns the rows that vLLM would take as filled."""
        with self._loads.taken(len(keys)) as rows:
            self._primary.array[rows] = PATTERN
            job = next(self._numbers)
            with self._lock:
                request.load(job, keys, rows)
            ended = result(job)
            good = set(keys) if ended.success else set(ended.successful_keys or ())
            with self._lock:
                for key in set(keys) - good:
                    assert request.lookup(key) is tiers.MISS, "vLLM would wait for it forever"
            rows_of = dict(zip(keys, rows, strict=True))
            return {key: self._primary.array[rows_of[key]].tobytes() for key in good}

    def scribble(self) -> Callable[[], bool] | None:
        rows = list(self._loads.all)
        self._primary.array[rows] = PATTERN
        return lambda: bool((self._primary.array[rows] == PATTERN).all())

    def clear(self) -> None:
        with self._lock:
            self._tier.drain_jobs()

    def counters(self) -> dict[str, Any]:
        opened = self._tier._backend.current
        return {} if opened is None else dict(opened.store.stats())

    def close(self) -> None:
        self._tier.shutdown()
        self._primary.free()


@dataclass(frozen=True)
class VllmTier(Route):
    """`DalsegnoTier` with settings of its store."""

    name: str
    store: dict[str, object] = field(default_factory=dict)

    def open(
        self,
        path: Path,
        shape: Shape,
        *,
        identity: str = "a",
        timeout_s: float | None = None,
        **settings: object,
    ) -> Session:
        of_tier = {name: settings.pop(name) for name in TierSettings.names() if name in settings}
        model = {name: str(value) for name, value in asdict(shape).items()}
        given: dict[str, Any] = {
            "capacity": "24MiB",
            "identity": {"source": "test", "weights": identity, **model},
            "store": {**self.store, **settings},
            # A prompt is looked up whole, then loaded in several jobs.
            "max_load_bytes": "1GiB",
            **of_tier,
        }
        if timeout_s is not None:
            given |= {"load_timeout_s": timeout_s, "store_timeout_s": timeout_s}
        return _Tier(path, shape, given)


ROUTES: list[Route] = [
    VllmTier("vllm-psync", {"io_engine": "psync"}),
    VllmTier("vllm-uring", {"io_engine": "auto"}),
]
