"""Transfers blocks between the rows of vLLM's primary tier and the store.

1. Blocks of one KV-cache group go into one namespace; blocks that follow each other in the prompt
   go there as one put, next to their predecessor.
2. Blocks that the store has or is writing are not written again.
3. A job over a bound is cut: its last blocks are refused immediately.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.logger import init_logger

from dalsegno import InvalidError, PutReport
from dalsegno.integrations.common.batch import cut
from dalsegno.integrations.common.opening import Opened
from dalsegno.integrations.common.settings import element_bytes
from dalsegno.integrations.vllm import compat
from dalsegno.integrations.vllm.identity import HASH_ALGORITHMS
from dalsegno.integrations.vllm.jobs import Job, JobBook, Part
from dalsegno.integrations.vllm.load_gate import LoadGate
from dalsegno.integrations.vllm.metrics import Meter
from dalsegno.integrations.vllm.request_state import RequestState
from dalsegno.integrations.vllm.settings import TierSettings

logger = init_logger("vllm.dalsegno")

# A large load is cut into parts of this size, at most so many, to keep the store's threads busy.
PART_BYTES = 64 << 20
MOST_PARTS = 8
_KEY_BYTES = compat.HASH_BYTES + compat.GROUP_BYTES


@dataclass(frozen=True)
class Block:
    """A block of a job.

    Attributes:
        key: vLLM's key.
        row: Its row of the primary tier.
        position: Its last token in the prompt, if vLLM knows it.
    """

    key: bytes
    row: int
    position: int | None

    @property
    def group(self) -> int:
        """Number of its KV-cache group."""
        return compat.split_key(self.key)[1]


def codec_of(settings: TierSettings, dtype: str) -> dict[str, Any]:
    """Returns how blocks are stored from now on.

    `none` is written as well, because a namespace remembers `zstd`. vLLM gives its tiers one dtype
    for all KV-cache groups; where a group has another, the codec gains less and loses nothing.
    """
    if settings.codec == "none":
        return {"codec": "none"}
    width = element_bytes(dtype)
    if width is None:
        logger.warning(
            "Dalsegno stores blocks without a codec: it does not know how wide a number of a KV "
            "cache in %s is.",
            dtype,
        )
        return {"codec": "none"}
    return {"codec": settings.codec, "element_bytes": width}


class Rows:
    """vLLM's primary tier as rows of bytes, until it is released."""

    def __init__(self, view: memoryview) -> None:
        """Takes `[rows, row_bytes]` bytes, C-contiguous."""
        self._flat = view.cast("B")
        self.row_bytes = view.nbytes // view.shape[0]  # type: ignore[index]
        self.total_bytes = view.nbytes

    def __getitem__(self, number: int) -> memoryview:
        return self._flat[number * self.row_bytes : (number + 1) * self.row_bytes]

    def release(self) -> None:
        """Lets go of the memory."""
        self._flat.release()


def address(
    opened: Opened, keys: Sequence[bytes], request: RequestState | None = None
) -> tuple[Any, list[bytes]]:
    """Returns the namespace of some keys of one group, and the names of their blocks in it.

    Args:
        opened: The store.
        keys: Keys of a request.
        request: The request; without one, the names are vLLM's block hashes.

    Raises:
        InvalidError: vLLM's hashes are not those of a cryptographic algorithm.
    """
    for key in keys:
        if len(key) != _KEY_BYTES:
            raise InvalidError(
                f"a block hash has {len(key) - compat.GROUP_BYTES} bytes; Dalsegno needs vLLM's "
                f"prefix_caching_hash_algo to be {' or '.join(HASH_ALGORITHMS)}"
            )
    _, group = compat.split_key(keys[0])
    names = [key[: compat.HASH_BYTES] for key in keys] if request is None else request.names(keys)
    return opened.namespaces[group], names


def contains(
    opened: Opened, keys: Sequence[bytes], request: RequestState | None = None
) -> list[bool]:
    """Returns which keys of one group the store has."""
    if not keys:
        return []
    namespace, hashes = address(opened, keys, request)
    return list(namespace.contains(hashes))


def peek(opened: Opened, keys: Sequence[bytes]) -> list[tuple[bytes, bool]]:
    """Returns which keys of any groups the store has, group by group; no block counts as used."""
    groups: dict[bytes, list[bytes]] = {}
    for key in keys:
        groups.setdefault(key[-compat.GROUP_BYTES :], []).append(key)
    answers: list[tuple[bytes, bool]] = []
    for group in groups.values():
        namespace, hashes = address(opened, group)
        answers += zip(group, namespace.peek(hashes), strict=True)
    return answers


def touch(opened: Opened, request: RequestState) -> None:
    """Marks the prompt of a request as used."""
    for keys in filter(None, request.chains()):
        namespace, hashes = address(opened, keys, request)
        namespace.touch(hashes)


def by_group(blocks: Sequence[Block]) -> list[list[Block]]:
    """Sorts blocks into their KV-cache groups, and each group into the order of the prompt."""
    groups: dict[int, list[Block]] = {}
    for block in blocks:
        groups.setdefault(block.group, []).append(block)
    return [sorted(group, key=lambda block: block.position or 0) for group in groups.values()]


class Mover:
    """Starts transfers, and turns those that have ended into vLLM's results."""

    def __init__(
        self,
        rows: Rows,
        settings: TierSettings,
        config: Any,
        meter: Meter,
        trouble: Callable[[str, BaseException], None],
    ) -> None:
        """Takes vLLM's `OffloadingConfig`; calls `trouble` with exceptions that became misses."""
        self.jobs = JobBook()
        self.gate = LoadGate(settings, rows.row_bytes, rows.total_bytes, self.jobs, meter)
        self._rows, self._settings, self._meter, self._trouble = rows, settings, meter, trouble
        self._most_store_bytes = settings.max_store_bytes or rows.total_bytes * 3 // 4
        self._steps: dict[int, int] = {
            number: group.tokens_per_block * config.cache.blocks_per_chunk
            for number, group in compat.groups(config).items()
        }

    def _throttle(self, job: Job, count: int) -> None:
        """Counts blocks that are refused."""
        direction = "load" if job.is_load else "store"
        job.failed = job.failed or count > 0
        self._meter.count("throttled_blocks", count, direction)
        self._meter.count("throttled_bytes", count * self._rows.row_bytes, direction)

    def start_store(self, opened: Opened | None, job: Job, blocks: list[Block]) -> None:
        """Starts one transfer for each run of blocks that the store lacks."""
        if opened is None or opened.poisoned:
            job.failed = True
            return
        fresh = self._fresh(opened, job, blocks)
        room = (self._most_store_bytes - self.jobs.storing_bytes()) // self._rows.row_bytes
        if self.jobs.under_way(is_load=False) >= self._settings.max_store_jobs:
            room = 0
        room = min(max(0, room), len(fresh))
        self._throttle(job, len(fresh) - room)
        for run in self._runs(fresh[:room]):
            keys = [block.key for block in run]
            before = job.request.before(keys[0]) if job.request else None
            namespace, chain = address(opened, [before, *keys] if before else keys, job.request)
            handle = namespace.submit_put(
                chain,
                [self._rows[block.row] for block in run],
                first=len(chain) - len(keys),
                timeout_s=job.timeout_s,
            )
            job.moving_bytes += len(keys) * self._rows.row_bytes
            job.parts.append(Part(keys, handle))

    def _fresh(self, opened: Opened, job: Job, blocks: list[Block]) -> list[Block]:
        """Returns the blocks to be written, group by group, in the order of the prompt."""
        storing, fresh = self.jobs.storing(), []
        for group in by_group(blocks):
            present = contains(opened, [block.key for block in group], job.request)
            for block, there in zip(group, present, strict=True):
                if there:
                    job.kept.append(block.key)
                elif block.key not in storing:
                    fresh.append(block)
        self._meter.count("present_blocks", len(blocks) - len(fresh))
        return fresh

    def _runs(self, blocks: Sequence[Block]) -> list[list[Block]]:
        """Cuts blocks into runs that follow each other in the prompt, as far as vLLM knows."""
        runs: list[list[Block]] = []
        for block in blocks:
            last = runs[-1][-1] if runs else None
            if last is not None and self._follows(last, block):
                runs[-1].append(block)
            else:
                runs.append([block])
        return runs

    def _follows(self, last: Block, block: Block) -> bool:
        """Returns whether one block may directly follow another."""
        if last.group != block.group:
            return False
        if last.position is None or block.position is None:
            return last.position is block.position
        return block.position - last.position == self._steps[block.group]

    def start_load(self, opened: Opened | None, job: Job, blocks: list[Block]) -> None:
        """Starts a few transfers that fill the rows of a job."""
        if opened is None:
            job.failed = True
            return
        if self.jobs.under_way(is_load=True) >= self._settings.max_load_jobs:
            # Only of promises that came under other rules: `LoadGate` makes fewer.
            self._throttle(job, len(blocks))
            return
        if job.request is not None:
            job.request.count_loads(job.keys)
        for group in by_group(blocks):
            for places in cut(len(group), self._rows.row_bytes, PART_BYTES, MOST_PARTS):
                part = group[places.start : places.stop]
                keys = [block.key for block in part]
                namespace, hashes = address(opened, keys, job.request)
                out = [self._rows[block.row] for block in part]
                handle = namespace.submit_get(hashes, out, each=True, timeout_s=job.timeout_s)
                job.moving_bytes += len(keys) * self._rows.row_bytes
                job.parts.append(Part(keys, handle))

    def result(self, job: Job, *, is_usable: bool = True) -> Any:
        """Turns a job that has ended into vLLM's result; never raises.

        Args:
            job: The job.
            is_usable: Whether what it loaded belongs to the weights that the engine has now.
        """
        call, done = "load" if job.is_load else "store", list[bytes]()

        def failed(_: Part, error: Exception) -> None:
            job.failed = True
            self._trouble(call, error)

        job.report(
            lambda part, result: done.extend(
                self._loaded(part, result) if job.is_load else self._stored(part, result, job)
            ),
            lambda part: self._throttle(job, len(part.keys)),
            failed,
        )
        if job.is_load and not is_usable:
            done.clear()
        seconds = time.monotonic() - job.started
        self._meter.observe(f"{call}_seconds", seconds)
        job.kept += done
        lost: list[bytes] = []
        if job.is_load:
            loaded = set(done)
            lost = [key for key in job.keys if key not in loaded]
            if job.request is not None:
                job.request.fail(lost)
        return compat.job_result(
            job.job_id,
            success=not lost if job.is_load else not job.failed,
            successful_keys=tuple(done) if lost and done else None,
            transfer_time=seconds,
            transfer_bytes=len(done) * self._rows.row_bytes,
        )

    def _loaded(self, part: Part, report: list[bool]) -> list[bytes]:
        """Returns the keys whose row holds its block."""
        done = [key for key, there in zip(part.keys, report, strict=True) if there]
        if len(done) < len(part.keys):
            loaded = set(done)
            self.gate.note_failed(key for key in part.keys if key not in loaded)
        self._meter.count("loaded_blocks", len(done))
        self._meter.count("loaded_bytes", len(done) * self._rows.row_bytes)
        self._meter.count("load_failed_blocks", len(part.keys) - len(done))
        return done

    def _stored(self, part: Part, report: PutReport, job: Job) -> list[bytes]:
        """Returns the keys that the store has now."""
        kept = [key for key, there in zip(part.keys, report.kept, strict=True) if there]
        if report.stored == len(part.keys):
            self.gate.note_written(part.keys)
        self._meter.count("stored_blocks", report.stored)
        self._meter.count("stored_bytes", report.stored * self._rows.row_bytes)
        self._meter.count("present_blocks", report.present + report.pending)
        self._meter.count("store_failed_blocks", report.declined + report.failed)
        job.failed = job.failed or report.failed > 0
        if job.request is not None:
            job.request.learn(kept, [True] * len(kept))
        return kept
